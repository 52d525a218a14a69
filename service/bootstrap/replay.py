# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""For `relight replay`: cases and events from disk, and services that know nothing yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from relight.ports import Clock
from rules.policy_table import load_policy
from service.adapters import log_files
from service.adapters.log_files import Case
from service.bootstrap.kit import open_audit, policy_text, rule_store, taxonomy
from service.bootstrap.wiring import Parts, build_application
from service.config import Settings
from service.tokens import TokenBook

if TYPE_CHECKING:
    from relight.events import Event
    from relight.policy import PolicyTable
    from service.application import Application
    from service.replay_audit import AuditReplay


@dataclass(frozen=True, slots=True)
class ReplayKit:
    """What `relight replay` needs: cases and events from disk, and services that know nothing yet."""

    start: Callable[[Clock], Application]
    settings: Settings
    policy: PolicyTable
    rules_digest: str
    policy_version: str

    def cases(self, source: Path) -> list[tuple[str, Path]]:
        """Case folders below a folder by name; a single folder or file is a case itself."""
        below = list(log_files.case_folders(source)) if source.is_dir() else []
        if not below or below == [source]:
            return [(source.name, source)]
        return [(str(folder.relative_to(source)), folder) for folder in below]

    def read(self, case: Path) -> Case:
        return log_files.read_folder(case) if case.is_dir() else log_files.read_files([str(case)])

    def redecide(self) -> AuditReplay:
        from relight.testing.audit import MemoryAuditLog
        from service.replay_audit import AuditReplay

        return AuditReplay(MemoryAuditLog(), self.policy, self.settings.recommend)

    def events(self, source: Path) -> Iterator[list[Event]]:
        """The events of an audit log or of its export, in order. Errors: OSError, AuditUnavailable."""
        from service.adapters.audit_reading import recorded_events

        return recorded_events(source, lambda path: open_audit(self._audit_at(path)))

    def _audit_at(self, path: Path) -> Settings:
        return self.settings.model_copy(update={"audit": self.settings.audit.model_copy(update={"path": path})})


def replay_kit(settings: Settings) -> ReplayKit:
    """Services for a replay keep nothing and judge by one rule set.

    Errors: RulesInvalid, ConfigError or OSError now rather than at the first case.
    """
    from relight.testing.audit import MemoryAuditLog

    rules = rule_store(settings)
    policy = load_policy(str(settings.rules.policy_file or "rules/policy.yaml"), policy_text(settings), taxonomy())

    def start(the_clock: Clock) -> Application:
        return build_application(
            settings, Parts(clock=the_clock, audit=MemoryAuditLog(), tokens=TokenBook(), rules=rules)
        )

    return ReplayKit(start, settings, policy, rules.current.digest, policy.version)
