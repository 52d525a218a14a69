# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the folded state to what policy is asked with: history of a workload, facts of an attempt."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from relight.policy import Facts, History, OptIn, PolicyTable, Witness
from relight.progress import StepLedger, entity_key
from relight.promotion import Stage
from relight.suspects import Suspicion
from relight.types import (
    AnomalyKind,
    AttemptId,
    Attribution,
    Mode,
    NodeName,
    Progress,
    StepProgress,
    WorkloadId,
)
from relight.watching import Slowness, opens_incident, ratio_of
from service.places import NOWHERE, Places
from service.projection import Projection
from service.records import AttemptRecord

BREAKER = "relight:breaker"
LOCAL_SHARE = 0.8
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
    places: Places = NOWHERE
    start: Stage = Stage.ACT

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
            accused_elsewhere=self._accused_elsewhere(),
            excluded_last_hour=sum(e.cluster == seen.cluster and self.at - e.at <= _HOUR for e in past.excluded),
            cluster_restarts_last_hour=len(restarts),
            user_restarts_last_hour=sum(r.user == user for r in restarts) if user else 0,
            same_failure_workloads=len(same | {seen.workload}),
            same_failure_places=self._blamed_places(window),
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
            domains=self.places.domains,
            racks=self.places.racks,
            slowness=self.slowness(limit - runtime if limit and runtime is not None else None),
            modes=self.modes(),
            is_off=self.stage is Stage.OFF,
        )

    @property
    def stage(self) -> Stage:
        """How far the class of this failure is trusted now."""
        return self.state.stage_of(self.attempt.seen.cluster, self.attribution.failure_class, self.start)

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
        if self.stage is not Stage.ACT:
            modes["stage"] = self.stage.mode
        return modes

    def progress(self) -> Progress:
        """Did this attempt get further than those before it? The steps reached say so first, then the log.

        That a log holds no step means something only where it was read whole and the workload's lines are
        known to be understood; and steps of a counter that starts anew on the way are not compared.
        """
        siblings = [self.state.attempts[one] for one in self.state.workloads.get(self.attempt.seen.workload, ())]
        siblings.sort(key=lambda one: (one.seen.attempt_index, one.position))
        is_understood = any(one.logged_steps > 0 for one in siblings)
        is_relative = any(one.is_relative for one in siblings)
        steps = StepLedger()
        for known in siblings:
            steps.begin(known.id)
            reached = self._reached(known) if not is_relative else None
            steps.observe(
                StepProgress(attempt=known.id, at=known.seen.at, step=reached, checkpoint_step=known.last_checkpoint)
            )
            if known.ended_at is not None and is_understood and not is_relative:
                steps.ended(known.id, was_readable=known.was_read_whole)
        found = steps.progress_of(self.attempt.id)
        if is_relative and found is Progress.NO:
            found = Progress.UNKNOWN  # by checkpoints alone: a job may complete steps and save none
        return self.attribution.made_progress if found is Progress.UNKNOWN else found

    def _reached(self, known: AttemptRecord) -> int | None:
        if known.last_step is not None or known.id != self.attempt.id:
            return known.last_step
        return self.attribution.last_step

    def slowness(self, remaining_s: float | None) -> Slowness | None:
        """How a job that goes on became slower, by what its open incident holds."""
        incident = self.state.open_incident(self.attempt.id)
        found = [
            one.event.anomaly
            for one in self.state.anomalies_of.get(self.attempt.id, ())
            if incident is not None and one.event.incident == incident.id and opens_incident(one.event.anomaly)
        ]
        ranks = [one for one in found if one.kind is AnomalyKind.STRAGGLER]
        whole = [one for one in found if one.kind is AnomalyKind.SLOWDOWN]
        if not ranks and not whole:
            return None
        # A slow rank's own work is a part of the step only; the pace of the whole job tells it directly.
        ratios = [ratio_of(one) for one in whole] or [1.0 + LOCAL_SHARE * (ratio_of(one) - 1.0) for one in ranks]
        saved_at = self.attempt.checkpoint_at
        return Slowness(
            ratio=max(ratios),
            since=min(one.onset_at for one in (*ranks, *whole)),
            remaining_s=None if remaining_s is None else max(remaining_s, 0.0),
            since_checkpoint_s=None if saved_at is None else max((self.at - saved_at).total_seconds(), 0.0),
        )

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

    def _blamed_places(self, window: timedelta) -> dict[WorkloadId, frozenset[NodeName]]:
        """Nodes that kernel or scheduler blame for this failure of other workloads within the breaker's window."""
        seen, past = self.attempt.seen, self.state.past
        near = [a for a in past.accusations if a.cluster == seen.cluster and self.at - a.at <= window]
        witnessed = {a.node for a in near if a.attempt is None and a.is_independent}
        blamed: dict[AttemptId, set[NodeName]] = {}
        for a in near:
            if a.attempt is not None and (a.is_independent or a.node in witnessed):
                blamed.setdefault(a.attempt, set()).add(a.node)
        found: dict[WorkloadId, frozenset[NodeName]] = {}
        for one in past.failures:
            is_alike = one.cluster == seen.cluster and one.failure == self.attribution.failure
            if one.workload == seen.workload or not is_alike or self.at - one.at > window:
                continue
            known = self.state.attempts.get(one.attempt)
            lost = known.seen.failed_nodes if known is not None else ()
            nodes = blamed.get(one.attempt, set()).union(lost)
            found[one.workload] = found.get(one.workload, frozenset()) | nodes
        return found

    def _relapses(self) -> dict[NodeName, int]:
        counts: dict[NodeName, int] = {}
        for one in self.state.past.excluded:
            if one.cluster == self.attempt.seen.cluster:
                counts[one.node] = counts.get(one.node, 0) + 1
        return counts

    def _accused_elsewhere(self) -> dict[str, int]:
        """Other workloads struck at the same place within a day, by sources out of their users' reach alone."""
        seen = self.attempt.seen
        struck: dict[str, set[str]] = {}
        for one in self.state.past.accusations:
            is_other = one.attempt is not None and one.workload != seen.workload and one.cluster == seen.cluster
            if not is_other or not one.is_independent or self.at - one.at > _DAY:
                continue
            for gpu in {None, one.gpu}:
                struck.setdefault(entity_key(one.failure, one.node, gpu), set()).add(one.workload)
        return {place: len(workloads) for place, workloads in struck.items()}

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
