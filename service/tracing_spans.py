# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The spans of one recovery, read off its events: the whole, its stations, and each verb of the controller."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from relight.events import (
    AnomalyDetected,
    AttributionMade,
    Disposition,
    IncidentAdvanced,
    IncidentOpened,
    MilestonePhase,
    MilestoneRecorded,
    Outcome,
    OutcomeReported,
    RecommendationApproved,
    RecommendationClaimed,
    RecommendationExpired,
    RecommendationIssued,
    RecommendationRejected,
    RecommendationSuperseded,
    ReconciliationReported,
    WatchdogReleased,
)
from relight.incidents import IncidentState
from relight.ports import StoredEvent
from relight.trace_ids import ROOT, span_id, trace_id
from relight.types import IncidentId
from service.terminal import escaped

STAGES = ("detect", "attribute", "recommend", "approve", "claim", "act", "allocation", "first step", "checkpoint")
_UNDONE = frozenset({IncidentState.CLOSED_FAIL_OPEN.value, IncidentState.CLOSED_RECURRED.value})
_MAX_TEXT = 300

Value = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """Something that happened within a span and took no time."""

    name: str
    at: datetime
    attributes: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a recovery that is over. `position` is that of the event that ended it.

    `parent_id` is "" for the whole; `actor` is the controller whose work it was; `links` are other traces, each
    with the span meant; a non-empty `error` says why it did not do what it was for.
    """

    name: str
    trace_id: str
    span_id: str
    parent_id: str
    begun_at: datetime
    ended_at: datetime
    position: int
    attributes: Mapping[str, Value] = field(default_factory=dict)
    marks: tuple[Mark, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    error: str = ""
    actor: str = ""


@dataclass(slots=True, kw_only=True)
class _End:
    """Where a station was reached, and by whom."""

    at: datetime
    position: int
    attributes: dict[str, Value]
    error: str = ""


def spans(incident: IncidentId, events: Sequence[StoredEvent]) -> tuple[Span, ...]:
    """What is over of this incident's recovery, in the order in which it ended.

    `events` are the incident's own and the attributions of its attempt, by position. Nothing is told of an
    incident before its opening is on record.
    """
    opened = next((one for one in events if isinstance(one.event, IncidentOpened)), None)
    if opened is None:
        return ()
    ends = _ends(events, opened)
    closing = next((one for one in events if _closes(one)), None)
    if closing is not None and "act" not in ends and any(isinstance(one.event, MilestoneRecorded) for one in events):
        ends["act"] = _End(at=closing.event.at, position=closing.position, attributes={}, error="no report on it")
    told = [*_stations(incident, ends, _onset(events)), *_verbs(incident, events)]
    if closing is not None:
        told.append(_whole(incident, events, opened, closing))
    return tuple(sorted(told, key=lambda one: (one.position, one.begun_at)))


def _stations(incident: IncidentId, ends: Mapping[str, _End], onset: datetime) -> Iterator[Span]:
    """Each station begins where the one before was reached."""
    last = onset
    for name in STAGES:
        end = ends.get(name)
        if end is None:
            continue
        yield Span(
            name=name, trace_id=trace_id(incident), span_id=span_id(incident, name), parent_id=span_id(incident),
            begun_at=min(last, end.at), ended_at=end.at, position=end.position,
            attributes={"relight.incident.id": incident, **end.attributes}, error=end.error,
        )  # fmt: skip
        last = max(last, end.at)


def _ends(events: Sequence[StoredEvent], opened: StoredEvent) -> dict[str, _End]:
    """The first event that reached each station; none counts before the incident's opening."""
    found: dict[str, _End] = {}
    for stored in _with_one_attribution(events, opened):
        for name, attributes, error in _reached(stored):
            if name not in found:
                position = max(stored.position, opened.position)
                found[name] = _End(at=stored.event.at, position=position, attributes=attributes, error=error)
    return found


def _with_one_attribution(events: Sequence[StoredEvent], opened: StoredEvent) -> Iterator[StoredEvent]:
    """Of an attempt's attributions the last one before the opening, or the first after it."""
    made = [one for one in events if isinstance(one.event, AttributionMade)]
    before = [one for one in made if one.position < opened.position]
    counted = before[-1] if before else made[0] if made else None
    return (one for one in events if not isinstance(one.event, AttributionMade) or one is counted)


def _reached(stored: StoredEvent) -> Iterator[tuple[str, dict[str, Value], str]]:
    match stored.event:
        case AnomalyDetected(anomaly=anomaly):
            yield "detect", {"relight.anomaly.kind": str(anomaly.kind), "relight.detector": anomaly.detector}, ""
        case IncidentOpened():
            yield "detect", {}, ""
        case AttributionMade() as said:
            yield "attribute", {"relight.failure": said.failure, "relight.failure.class": str(said.failure_class),
                                "relight.evidence_status": str(said.evidence_status)}, ""  # fmt: skip
        case RecommendationIssued() as said:
            yield "recommend", _advice(said), ""
        case RecommendationApproved():
            yield "approve", {"relight.answer": "approved"}, ""
        case RecommendationRejected():
            yield "approve", {"relight.answer": "rejected"}, ""
        case RecommendationClaimed() as said:
            yield "claim", {"relight.controller": said.actor}, ""
        case ReconciliationReported() as said if said.disposition is not Disposition.PENDING:
            error = "" if said.disposition is Disposition.CONVERGED else _cut(said.reason) or str(said.disposition)
            yield "act", {"relight.controller": said.actor, "relight.disposition": str(said.disposition)}, error
        case OutcomeReported(outcome=Outcome.ALLOCATION_RESTARTED) as said:
            yield "allocation", {"relight.next_attempt.id": str(said.next_attempt or "")}, ""
        case OutcomeReported(outcome=Outcome.PROGRESS_RESUMED) as said:
            yield "first step", {} if said.step is None else {"relight.step": said.step}, ""
        case IncidentAdvanced() as said if said.state == IncidentState.CLOSED_RECOVERED and "checkpoint" in said.reason:
            yield "checkpoint", {}, ""
        case _:
            return


def _verbs(incident: IncidentId, events: Sequence[StoredEvent]) -> Iterator[Span]:
    """What the controller did, from its intent to the scheduler's answer."""
    begun: dict[tuple[str, str], StoredEvent] = {}
    for stored in events:
        said = stored.event
        if not isinstance(said, MilestoneRecorded):
            continue
        if said.phase is MilestonePhase.INTENT:
            begun[said.recommendation, said.step] = stored
        elif (intent := begun.pop((said.recommendation, said.step), None)) is not None:
            error = _cut(str(said.detail.get("error", ""))) or "failed" if said.phase is MilestonePhase.ERROR else ""
            yield Span(
                name=said.step, trace_id=trace_id(incident), parent_id=span_id(incident, "act"),
                span_id=span_id(incident, f"act {intent.position}"), begun_at=intent.event.at, ended_at=said.at,
                position=stored.position, attributes={"relight.recommendation.id": said.recommendation},
                error=error, actor=said.actor or "controller",
            )  # fmt: skip


def _whole(incident: IncidentId, events: Sequence[StoredEvent], opened: StoredEvent, closing: StoredEvent) -> Span:
    said, last = opened.event, closing.event
    assert isinstance(said, IncidentOpened)
    assert isinstance(last, IncidentAdvanced)
    attributes: dict[str, Value] = {
        "relight.incident.id": incident,
        "relight.attempt.id": said.attempt,
        "relight.workload.id": said.workload or "",
        "relight.cluster": said.cluster or "",
        "relight.incident.state": last.state,
    }
    for advice in (one.event for one in events if isinstance(one.event, RecommendationIssued)):
        attributes |= _advice(advice)  # the last one is what was acted on
    before = said.recurrence_of
    return Span(
        name=ROOT, trace_id=trace_id(incident), span_id=span_id(incident), parent_id="",
        begun_at=min(_onset(events), last.at), ended_at=last.at, position=closing.position, attributes=attributes,
        marks=tuple(_marks(events)), links=((trace_id(before), span_id(before)),) if before else (),
        error=_cut(last.reason) or last.state if last.state in _UNDONE else "",
    )  # fmt: skip


def _marks(events: Sequence[StoredEvent]) -> Iterator[Mark]:
    """What changed the course without being a station: a verdict revised, a lease or a deadline that ran out."""
    issued = claimed = 0
    for said in (stored.event for stored in events):
        match said:
            case RecommendationIssued():
                issued += 1
                if issued > 1:
                    yield Mark(name=said.kind, at=said.at, attributes={"relight.generation": said.generation})
            case RecommendationClaimed():
                claimed += not said.is_renewal
                if claimed > 1 and not said.is_renewal:
                    yield Mark(name=said.kind, at=said.at, attributes={"relight.controller": said.actor})
            case RecommendationExpired() | RecommendationSuperseded() | WatchdogReleased():
                yield Mark(name=said.kind, at=said.at, attributes={"relight.reason": _cut(said.reason)})
            case _:
                pass


def _advice(said: RecommendationIssued) -> dict[str, Value]:
    return {
        "relight.recommendation.id": said.recommendation, "relight.action": str(said.action),
        "relight.mode": str(said.mode), "relight.failure": said.failure,
        "relight.failure.class": str(said.failure_class), "relight.exclusions": len(said.exclusions),
    }  # fmt: skip


def _onset(events: Sequence[StoredEvent]) -> datetime:
    onsets = [one.event.onset_at for one in events if isinstance(one.event, IncidentOpened)]
    onsets += [one.event.anomaly.onset_at for one in events if isinstance(one.event, AnomalyDetected)]
    return min(onsets)


def _closes(stored: StoredEvent) -> bool:
    said = stored.event
    return isinstance(said, IncidentAdvanced) and said.state.startswith("CLOSED_")


def _cut(text: str) -> str:
    return escaped(text)[:_MAX_TEXT]
