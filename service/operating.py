# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What operators set: modes, exclusions and the policy table, each with an actor and a reason on record."""

from __future__ import annotations

from collections.abc import Callable

from relight.events import ExclusionAdded, ExclusionExpired, ExclusionPardoned, ModeChanged, PolicyChanged
from relight.policy import PolicyTable
from relight.types import ClusterId, Exclusion, Mode, NodeName, WorkloadId
from service.journal import Journal
from service.projection import exclusion_key
from service.records import ExclusionRecord, ModeEntry, PolicyText
from service.refusals import Refused

SCOPES = ("cluster", "partition", "class", "workload")


class Policies:
    """The policy table in force: that of the files until somebody puts another.

    Errors: `parse` raises what it raises for a faulty table; the one in force then stays.
    """

    def __init__(self, journal: Journal, text: str, parse: Callable[[str], PolicyTable]) -> None:
        self._journal = journal
        self._parse = parse
        self._shipped = PolicyText(text=text, version=parse(text).version)
        self._parsed: tuple[str, PolicyTable] = (text, parse(text))

    def current(self) -> PolicyText:
        return self._journal.state.policy or self._shipped

    def table(self) -> PolicyTable:
        text = self.current().text
        if self._parsed[0] != text:
            self._parsed = (text, self._parse(text))
        return self._parsed[1]

    def put(self, text: str, actor: str, reason: str) -> PolicyText:
        with self._journal.lock:
            table, before = self._parse(text), self.current()
            if text != before.text:
                self._journal.record(
                    PolicyChanged(
                        at=self._journal.now(),
                        version=table.version,
                        text=text,
                        actor=actor,
                        reason=reason,
                        previous=before.version,
                    )
                )
            return self.current()


class Operation:
    """Modes and exclusions as people set them.

    Errors: Refused for a scope that does not exist; AuditUnavailable if it could not be recorded.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def set_mode(self, cluster: ClusterId, scope: str, target: str, mode: Mode, actor: str, reason: str) -> ModeEntry:
        if scope not in SCOPES:
            raise Refused("invalid", f"no scope {scope!r}, choose from {', '.join(SCOPES)}")
        if scope == "cluster" and target != cluster:
            raise Refused("invalid", f"the target of scope cluster is the cluster itself: {cluster!r}")
        with self._journal.lock:
            known = self._journal.state.modes.get((cluster, scope, target))
            self._journal.record(
                ModeChanged(
                    at=self._journal.now(),
                    scope=scope,
                    target=target,
                    mode=mode,
                    actor=actor,
                    reason=reason,
                    previous=known.mode if known else None,
                    cluster=cluster,
                )
            )
            return self._journal.state.modes[cluster, scope, target]

    def exclude(
        self,
        cluster: ClusterId,
        workload: WorkloadId | None,
        exclusion: Exclusion,
        evidence: tuple[str, ...],
        actor: str,
    ) -> ExclusionRecord:
        with self._journal.lock:
            now = self._journal.now()
            if exclusion.expires_at <= now:
                raise Refused("invalid", f"expires_at {exclusion.expires_at.isoformat()} is past")
            self._journal.record(
                ExclusionAdded(
                    at=now,
                    exclusion=exclusion,
                    evidence=evidence,
                    workload=workload,
                    cluster=cluster,
                    actor=actor,
                )
            )
            key = exclusion_key(cluster, exclusion.scope, workload, exclusion.node)
            return self._journal.state.exclusions[key]

    def pardon(self, known: ExclusionRecord, actor: str, reason: str) -> None:
        with self._journal.lock:
            self._journal.record(
                ExclusionPardoned(
                    at=self._journal.now(),
                    node=known.exclusion.node,
                    actor=actor,
                    scope=known.exclusion.scope,
                    reason=reason,
                    workload=known.workload,
                    cluster=known.cluster,
                )
            )

    def standing(
        self, cluster: ClusterId, scope: str, workload: WorkloadId | None, node: NodeName
    ) -> ExclusionRecord | None:
        known = self._journal.state.exclusions.get(exclusion_key(cluster, scope, workload, node))
        return known if known is not None and known.stands(self._journal.now()) else None

    def sweep(self) -> int:
        """Record the end of exclusions whose time is over; how many there were."""
        with self._journal.lock:
            now = self._journal.now()
            over = [
                ExclusionExpired(
                    at=now,
                    node=one.exclusion.node,
                    scope=one.exclusion.scope,
                    workload=one.workload,
                    cluster=one.cluster,
                )
                for one in self._journal.state.exclusions.values()
                if not one.stands(now)
            ]
            self._journal.record(*over)
            return len(over)
