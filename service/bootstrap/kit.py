# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The parts that several doors share: clock, rules, taxonomy, audit log, tokens."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from relight.ports import AuditLog, Clock
from relight.types import Taxonomy
from rules.checked import Checked
from rules.policy_table import load_taxonomy
from service.adapters.clock import SystemClock
from service.adapters.rule_cache import check_cached
from service.adapters.rule_files import POLICY_FILE, TAXONOMY_FILE, read_packs, read_text
from service.config import Settings, cache_folder
from service.plugins import Group, load
from service.tokens import TokenBook

if TYPE_CHECKING:
    from service.adapters.model_store import ModelStore
    from service.model_hints import ModelHints
    from service.rules_store import RuleStore


def clock() -> Clock:
    return SystemClock()


@cache
def taxonomy() -> Taxonomy:
    return load_taxonomy("rules/taxonomy.yaml", read_text(TAXONOMY_FILE))


def failures() -> frozenset[str]:
    """The names that signatures may use."""
    return frozenset(taxonomy())


def rule_texts(settings: Settings) -> dict[str, str]:
    """Every rule file, of the shipped packs and of the site's folders, by a readable name."""
    return read_packs(settings.rules.folders)


def shipped_rule_texts() -> dict[str, str]:
    """The shipped packs alone, by a readable name."""
    return read_packs()


def read_rule_files(paths: Iterable[Path]) -> dict[str, str]:
    """Rule files and whole folders of them, by path. Errors: OSError if one can't be read."""
    found: dict[str, str] = {}
    for path in paths:
        files = sorted(path.rglob("*.yaml")) if path.is_dir() else [path]
        found.update({str(file): read_text(file) for file in files if file.name != "pack.yaml"})
    return found


def rule_store(settings: Settings, the_clock: Clock | None = None) -> RuleStore:
    """Errors: RulesInvalid with every problem of packs and overlays."""
    from service.rules_store import RuleStore

    def checked(texts: Mapping[str, str], known: Iterable[str]) -> Checked:
        return check_cached(texts, known, cache_folder())

    return RuleStore(lambda: rule_texts(settings), failures(), checked, (the_clock or clock()).now)


def open_audit(settings: Settings, the_clock: Clock | None = None) -> AuditLog:
    """The audit log that the settings name. Errors: PluginError, or what the log itself raises."""
    (plugin,) = load(Group.AUDIT_LOGS, [settings.audit.log])
    log: AuditLog = plugin.make(settings.audit.path, the_clock or clock())
    return log


def open_tokens(settings: Settings) -> TokenBook:
    """Errors: TokenError if the file is not ours."""
    return TokenBook(settings.auth.tokens_file, max_days=settings.auth.max_token_days)


def model_store(settings: Settings, folder: Path | None = None) -> ModelStore:
    """Trained models: in `folder`, else beside the audit log that records their promotions."""
    from service.adapters.model_store import ModelStore

    return ModelStore(folder or settings.audit.path.with_name(f"{settings.audit.path.stem}-models"))


def model_hints(settings: Settings, log: AuditLog | None = None) -> ModelHints:
    """The promoted attribution model, or why there is none: then the rules speak alone.

    Errors: what the audit log raises when it can't be opened or read.
    """
    from service.model_hints import ModelHints, promotions

    if log is not None:
        return ModelHints.of(model_store(settings), promotions(log))
    if settings.audit.log == "duckdb" and not settings.audit.path.exists():
        return ModelHints(reason=f"no audit log at {settings.audit.path}, so no model was promoted")
    opened = open_audit(settings)
    try:
        return ModelHints.of(model_store(settings), promotions(opened))
    finally:
        opened.close()


def policy_text(settings: Settings) -> str:
    return read_text(settings.rules.policy_file or POLICY_FILE)


def held_folder(settings: Settings) -> Path:
    """Where lines of jobs that are not registered yet are kept."""
    audit = settings.audit.path
    return settings.ingest.hold_folder or audit.with_name(f"{audit.stem}.held")


def beside(audit: Path, chosen: Path | None, name: str) -> Path:
    return chosen or audit.with_name(f"{audit.stem}.{name}.json")
