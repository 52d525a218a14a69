# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Builds a diagnostician from the shipped rules, a site's own packs and its policy file."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from pathlib import Path

from rules.policy_table import load_policy, load_taxonomy
from service.adapters.rule_cache import check_cached
from service.adapters.rule_files import POLICY_FILE, TAXONOMY_FILE, read_packs, read_text
from service.diagnosis import Diagnostician


def build_diagnostician(
    folders: Iterable[Path] = (),
    policy: Path | None = None,
    cache: Path | None = None,
    at: datetime | None = None,
) -> Diagnostician:
    """Silences of signatures are those that hold at `at`; none without it.

    Errors: RulesInvalid with every problem of packs or policy; FileNotFoundError for a folder.
    """
    taxonomy = load_taxonomy("rules/taxonomy.yaml", read_text(TAXONOMY_FILE))
    policy_file = policy or POLICY_FILE
    table = load_policy("rules/policy.yaml" if policy is None else str(policy), read_text(policy_file), taxonomy)
    signatures, progress = check_cached(read_packs(folders), taxonomy, cache).compiled(at)
    return Diagnostician(signatures, progress, taxonomy, table)
