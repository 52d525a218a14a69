# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the folded state to what policy is asked with: history of a workload, facts of an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from relight.policy import Facts, History, OptIn, PolicyTable, Witness
from relight.progress import StepLedger
from relight.suspects import Suspicion
from relight.types import (
    Attribution,
    Mode,
    NodeName,
    Progress,
    StepProgress,
)
from service.projection import Projection
from service.records import AttemptRecord

BREAKER = "relight:breaker"
_DAY = timedelta(days=1)
_HOUR = timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class Question:
    """One attempt to decide on, at one moment, against one state."""

    state: Projection
    attempt: AttemptRecord
    attribution: Attribution
    table: PolicyTable
    default_mode: Mode
    at: datetime

    def history(self) -> History:
        """What happened before, to the workload and to the cluster."""
        past, seen = self.state.past, self.attempt.seen
        window = timedelta(seconds=self.table.limits.breaker_window_s)
        restarts = [r for r in past.restarts if r.cluster == seen.cluster and self.at - r.at <= _HOUR]
        same = {
            f.workload
            for f in past.failures
            if f.cluster == seen.cluster and f.failure == self.attribution.failure and self.at - f.at <= window
        }
        user = self.attempt.detail("user", "")
        return History(
            ledger=past.ledger_before(seen.workload, seen.attempt),
            suspicion=past.suspicion.get(seen.cluster, Suspicion()),
            exclusions=tuple(
                one.exclusion
                for one in self.state.standing_exclusions(seen.cluster, self.at)
                if one.workload in (None, seen.workload)
            ),
            witnesses=self._witnesses(),
            relapses=self._relapses(),
            launch_failures=self._launch_failures(),
            excluded_last_hour=sum(e.cluster == seen.cluster and self.at - e.at <= _HOUR for e in past.excluded),
            cluster_restarts_last_hour=len(restarts),
            user_restarts_last_hour=sum(r.user == user for r in restarts) if user else 0,
            same_failure_workloads=len(same | {seen.workload}),
            is_breaker_open=self._is_breaker_open(),
            cluster_nodes=self.attempt.detail("cluster_nodes"),
            partition_nodes=self.attempt.detail("partition_nodes"),
            eligible_nodes=self.attempt.detail("eligible_nodes"),
            opt_in=_opt_in(self.attempt),
        )

    def facts(self, deadline: datetime) -> Facts:
        """What is known of the attempt itself; what nobody said stays unknown."""
        seen, runtime = self.attempt.seen, self._runtime_s()
        limit = self.attempt.detail("time_limit_s")
        return Facts(
            state=seen.state,
            requeueable=self.attempt.detail("requeueable", True) is not False,
            scheduler_requeued=self._was_requeued() or None,
            requested_nodes=self.attempt.detail("requested_nodes") or len(seen.nodes),
            allocated_nodes=seen.nodes,
            failed_nodes=seen.failed_nodes,
            user_exclusions=tuple(NodeName(n) for n in self.attempt.detail("user_exclusions", ())),
            progress=self.progress(),
            runtime_s=runtime,
            remaining_time_s=max(limit - runtime, 0.0) if limit and runtime is not None else None,
            decide_deadline=deadline,
            modes=self.modes(),
        )

    def modes(self) -> dict[str, Mode]:
        """Every mode that was set for this attempt, by who set it; the cluster's has a default."""
        seen = self.attempt.seen
        places = {
            "cluster": str(seen.cluster),
            "partition": str(self.attempt.detail("partition") or self.attempt.detail("namespace") or ""),
            "class": str(self.attribution.failure_class),
            "workload": str(seen.workload),
        }
        modes = {"cluster": self.default_mode}
        for (owner, scope, target), entry in self.state.modes.items():
            if owner in ("", seen.cluster) and places.get(scope) == target:
                modes[scope] = entry.mode
        return modes

    def progress(self) -> Progress:
        """Did this attempt get further than those before it, by its own reports and by its log?"""
        if self.attribution.made_progress is Progress.YES:
            return Progress.YES
        steps = StepLedger()
        for other in self.state.workloads.get(self.attempt.seen.workload, ()):
            steps.begin(other)
            known = self.state.attempts[other]
            step = self.attribution.last_step if other == self.attempt.id else None
            reached = max((s for s in (known.last_step, step) if s is not None), default=None)
            steps.observe(
                StepProgress(attempt=other, at=known.seen.at, step=reached, checkpoint_step=known.last_checkpoint)
            )
        found = steps.progress_of(self.attempt.id)
        return self.attribution.made_progress if found is Progress.UNKNOWN else found

    def _runtime_s(self) -> float | None:
        started = self.attempt.detail("started_at")
        if not isinstance(started, str):
            return None
        end = self.attempt.ended_at or self.at
        return max((end - datetime.fromisoformat(started)).total_seconds(), 0.0)

    def _was_requeued(self) -> bool:
        siblings = self.state.workloads.get(self.attempt.seen.workload, ())
        mine = self.attempt.seen.attempt_index
        return any(self.state.attempts[other].seen.attempt_index > mine for other in siblings)

    def _is_breaker_open(self) -> bool:
        entry = self.state.modes.get((self.attempt.seen.cluster, "cluster", self.attempt.seen.cluster))
        return entry is not None and entry.actor == BREAKER

    def _witnesses(self) -> dict[NodeName, tuple[Witness, ...]]:
        """Who else accused the suspects within a day; this attempt's own words don't count twice."""
        found: dict[NodeName, dict[str, Witness]] = {}
        for one in self.state.past.accusations:
            is_ours = one.attempt is not None and one.attempt == self.attempt.id
            if is_ours or one.cluster != self.attempt.seen.cluster or self.at - one.at > _DAY:
                continue
            known = found.setdefault(one.node, {}).get(one.source)
            is_independent = one.is_independent or (known is not None and known.is_independent)
            found[one.node][one.source] = Witness(source=one.source, is_independent=is_independent)
        return {node: tuple(voices.values()) for node, voices in found.items()}

    def _relapses(self) -> dict[NodeName, int]:
        counts: dict[NodeName, int] = {}
        for one in self.state.past.excluded:
            if one.cluster == self.attempt.seen.cluster:
                counts[one.node] = counts.get(one.node, 0) + 1
        return counts

    def _launch_failures(self) -> dict[NodeName, int]:
        blamed: dict[NodeName, set[str]] = {}
        for one in self.state.past.accusations:
            entry = self.table.failures.get(one.failure)
            if entry is not None and entry.is_black_hole and self.at - one.at <= _DAY:
                blamed.setdefault(one.node, set()).add(one.workload)
        return {node: len(workloads) for node, workloads in blamed.items()}


def _opt_in(attempt: AttemptRecord) -> OptIn:
    said = attempt.detail("opt_in") or {}
    return OptIn(
        mode=Mode(said["mode"]) if said.get("mode") else None,
        max_restarts=said.get("max_restarts"),
        max_no_progress=said.get("max_no_progress"),
    )
