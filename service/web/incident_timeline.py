# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The eight stations of a recovery, and when each was reached."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from relight.events import (
    AnomalyDetected,
    AttributionMade,
    Disposition,
    Event,
    IncidentAdvanced,
    IncidentOpened,
    MilestoneRecorded,
    Outcome,
    OutcomeReported,
    RecommendationApproved,
    RecommendationClaimed,
    RecommendationIssued,
    RecommendationRejected,
    ReconciliationReported,
)
from relight.incidents import IncidentState

KINDS = tuple(
    one.kind
    for one in (AnomalyDetected, AttributionMade, IncidentOpened, IncidentAdvanced, RecommendationIssued,
                RecommendationApproved, RecommendationRejected, RecommendationClaimed, MilestoneRecorded,
                ReconciliationReported, OutcomeReported)
)  # fmt: skip
STATIONS = ("onset", "detect", "attribute", "recommend", "approve", "claim", "act", "allocation", "first step",
            "checkpoint")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Station:
    """`after_s` is the time since the station reached before; None for one not reached."""

    name: str
    at: datetime | None
    by: str
    after_s: float | None


def stations(events: Iterable[Event]) -> tuple[Station, ...]:
    """The first time each station was reached. `approve` is a station only where somebody answered."""
    reached: dict[str, tuple[datetime, str]] = {}
    for event in events:
        for name, at, by in _passed(event):
            if name not in reached or at < reached[name][0]:
                reached[name] = (at, by)
    found = list[Station]()
    last: datetime | None = None
    for name in STATIONS:
        if name == "approve" and name not in reached:
            continue
        if name not in reached:
            found.append(Station(name, None, "", None))
            continue
        at, by = reached[name]
        found.append(Station(name, at, by, (at - last).total_seconds() if last is not None else None))
        last = at
    return tuple(found)


def _passed(event: Event) -> Iterator[tuple[str, datetime, str]]:
    match event:
        case AnomalyDetected():
            yield "onset", event.anomaly.onset_at, ""
            yield "detect", event.at, event.anomaly.detector
        case IncidentOpened():
            yield "onset", event.onset_at, ""
            yield "detect", event.at, ""
        case AttributionMade():
            yield "attribute", event.at, event.attributor
        case RecommendationIssued():
            yield "recommend", event.at, event.actor or "policy"
        case RecommendationApproved():
            yield "approve", event.at, event.actor
        case RecommendationRejected():
            yield "approve", event.at, f"rejected by {event.actor}"
        case RecommendationClaimed():
            yield "claim", event.at, event.actor
        case MilestoneRecorded():
            yield "act", event.at, event.actor
        case _:
            yield from _passed_after(event)


def _passed_after(event: Event) -> Iterator[tuple[str, datetime, str]]:
    """The stations behind the act."""
    match event:
        case ReconciliationReported() if event.disposition is Disposition.CONVERGED:
            yield "act", event.at, event.actor
        case OutcomeReported() if event.outcome is Outcome.ALLOCATION_RESTARTED:
            yield "allocation", event.at, str(event.next_attempt or "")
        case OutcomeReported() if event.outcome is Outcome.PROGRESS_RESUMED:
            yield "first step", event.at, f"step {event.step}" if event.step is not None else ""
            if event.checkpoint_step is not None:
                yield "checkpoint", event.at, f"step {event.checkpoint_step}"
        case IncidentAdvanced() if event.state == IncidentState.CLOSED_RECOVERED and "checkpoint" in event.reason:
            yield "checkpoint", event.at, ""
        case _:
            return
