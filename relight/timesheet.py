# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Runs with their marks, folded from the audit log: what `goodput` reckons with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from relight.events import (
    AttemptObserved,
    Disposition,
    Event,
    IncidentAdvanced,
    IncidentOpened,
    RecommendationIssued,
    ReconciliationReported,
    SignalAccepted,
)
from relight.goodput import Run, Trouble, closed
from relight.incidents import IncidentState
from relight.types import AnomalyKind, AttemptId, AttemptState, WorkloadId

KINDS = tuple(
    one.kind
    for one in (AttemptObserved, SignalAccepted, IncidentOpened, IncidentAdvanced, RecommendationIssued,
                ReconciliationReported)
)  # fmt: skip
_STARTED = frozenset({AttemptState.RUNNING, AttemptState.SUSPECT, AttemptState.ENDING})

_STOPPING = frozenset({AnomalyKind.CRASH, AnomalyKind.HANG})


class Timesheet:
    """The runs of every workload, one event after the other; events of unknown attempts change nothing."""

    def __init__(self) -> None:
        self.runs: dict[AttemptId, Run] = {}
        self._of: dict[WorkloadId, list[AttemptId]] = {}

    def workloads(self) -> Mapping[WorkloadId, tuple[Run, ...]]:
        return {name: tuple(self.runs[one] for one in own) for name, own in self._of.items()}

    def workload(self, name: WorkloadId) -> tuple[Run, ...]:
        return tuple(self.runs[one] for one in self._of.get(name, ()))

    def apply(self, event: Event) -> None:
        match event:
            case AttemptObserved():
                self._observed(event)
            case SignalAccepted():
                self._progressed(event)
            case IncidentOpened():
                stops = not event.anomalies or bool(_STOPPING & set(event.anomalies))
                trouble = Trouble(onset_at=event.onset_at, detected_at=event.at, stops_training=stops)
                self._change(event.attempt, trouble=trouble)
            case IncidentAdvanced():
                self._advanced(event)
            case RecommendationIssued():
                self._decided(event)
            case ReconciliationReported():
                self._acted(event)
            case _:
                pass  # the rest marks no stage

    def _observed(self, event: AttemptObserved) -> None:
        at, known = _observed_at(event), self.runs.get(event.attempt)
        if known is None:
            self._of.setdefault(event.workload, []).append(event.attempt)
        started = known.started_at if known is not None else None
        if started is None and (event.state in _STARTED or event.state.is_terminal):
            started = _moment(event, "started_at") or (at if event.state in _STARTED else None)
        self.runs[event.attempt] = Run(
            attempt=event.attempt,
            workload=event.workload,
            cluster=event.cluster,
            index=event.attempt_index,
            nodes=len(event.nodes),
            gpus=_gpus(event),
            state=event.state,
            submitted_at=known.submitted_at if known is not None else at,
            started_at=started,
            ended_at=(known.ended_at if known and known.ended_at else at) if event.state.is_terminal else None,
            first_step_at=known.first_step_at if known is not None else None,
            checkpoint_at=known.checkpoint_at if known is not None else None,
            trouble=known.trouble if known is not None else None,
        )

    def _progressed(self, event: SignalAccepted) -> None:
        known = self.runs.get(event.attempt) if event.attempt is not None else None
        if known is None:
            return
        if "step" in event.counts and known.first_step_at is None:
            self._change(known.attempt, first_step_at=event.at)
        if "checkpoint_step" in event.counts:
            self._change(known.attempt, checkpoint_at=event.at)

    def _advanced(self, event: IncidentAdvanced) -> None:
        if event.attempt is None or not event.state.startswith("CLOSED_"):
            return
        known = self.runs.get(event.attempt)
        if known is not None:
            is_harmless = event.state == IncidentState.CLOSED_SELF_HEALED
            self._change(event.attempt, trouble=closed(known.trouble, is_harmless=is_harmless))

    def _decided(self, event: RecommendationIssued) -> None:
        known = self.runs.get(event.attempt)
        if known is not None and known.trouble is not None and known.trouble.decided_at is None:
            self._change(event.attempt, trouble=replace(known.trouble, decided_at=event.at))

    def _acted(self, event: ReconciliationReported) -> None:
        known = self.runs.get(event.attempt) if event.attempt is not None else None
        if known is not None and known.trouble is not None and event.disposition is Disposition.CONVERGED:
            self._change(known.attempt, trouble=replace(known.trouble, acted_at=event.at))

    def _change(
        self,
        attempt: AttemptId,
        *,
        trouble: Trouble | None = None,
        first_step_at: datetime | None = None,
        checkpoint_at: datetime | None = None,
    ) -> None:
        known = self.runs.get(attempt)
        if known is not None:
            self.runs[attempt] = replace(
                known,
                trouble=trouble or known.trouble,
                first_step_at=first_step_at or known.first_step_at,
                checkpoint_at=checkpoint_at or known.checkpoint_at,
            )


def _gpus(event: AttemptObserved) -> int | None:
    each = event.detail.get("gpus_per_node")
    return len(event.nodes) * each if isinstance(each, int) and each > 0 and event.nodes else None


def _observed_at(event: AttemptObserved) -> datetime:
    return _moment(event, "observed_at") or event.at


def _moment(event: AttemptObserved, name: str) -> datetime | None:
    said = event.detail.get(name)
    if not isinstance(said, str):
        return None
    try:
        found = datetime.fromisoformat(said)
    except ValueError:
        return None
    return found if found.tzinfo is not None else None
