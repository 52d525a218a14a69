# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the audit log and the probes say of rule sets: taken into use, or refused and the last good one kept."""

from __future__ import annotations

from datetime import datetime

from relight.events import PackLoaded, PackRefused
from service.config import Settings
from service.rules_store import Reload, RuleStore
from service.terminal import escaped

_TOLD = 5
_LONGEST = 400


def loaded(settings: Settings, rules: RuleStore, now: datetime) -> PackLoaded:
    return PackLoaded(
        at=now,
        pack="all",
        digest=rules.current.digest,
        signatures=len(rules.current.signatures.signatures),
        source=_source(settings),
    )


def refused(settings: Settings, why: Reload, now: datetime) -> PackRefused:
    return PackRefused(
        at=now,
        pack="all",
        digest=why.digest,
        problems=len(why.problems),
        first=tuple(escaped(str(one))[:_LONGEST] for one in why.problems[:_TOLD]),
        source=_source(settings),
    )


def troubles(last: Reload) -> tuple[str, ...]:
    """For probes that anyone may ask: how many faults, the place of the first, and never what the file says."""
    if last.is_good:
        return ()
    first, count = last.problems[0], len(last.problems)
    place = f"{first.file.rpartition('/')[2]}:{first.line}"
    return (
        f"rules: changed files hold {count} problem{'s' * (count != 1)} (first at {place}), so rule set "
        f"{last.digest[:12]} stays in force; run: relight rules lint",
    )


def _source(settings: Settings) -> str:
    return ", ".join(["shipped", *map(str, settings.rules.folders)])
