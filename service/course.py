# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which steps an incident takes when something happens to its attempt, its workload or its advice."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta

from relight.events import Event, IncidentAdvanced, Outcome, OutcomeReported
from relight.incidents import IllegalTransition, IncidentState, IncidentTransition, advance
from relight.types import Action, AttemptState, RecommendationId
from service.projection import Projection
from service.records import AttemptRecord, IncidentRecord, RecommendationRecord

SETTLED_AFTER = timedelta(hours=1)


def steps(
    incident: IncidentRecord,
    transitions: Iterable[IncidentTransition],
    at: datetime,
    *,
    reason: str = "",
    actor: str = "",
    recommendation: RecommendationId | None = None,
) -> list[IncidentAdvanced]:
    """The events of these transitions in turn, without those that the state does not allow."""
    state, events = incident.state, list[IncidentAdvanced]()
    for transition in transitions:
        try:
            following = advance(state, transition)
        except IllegalTransition:
            continue
        events.append(
            IncidentAdvanced(
                at=at,
                incident=incident.id,
                previous=state,
                state=following,
                reason=reason or transition,
                attempt=incident.opened.attempt,
                recommendation=recommendation,
                workload=incident.opened.workload,
                cluster=incident.opened.cluster,
                actor=actor,
            )
        )
        state = following
    return events


def after_observation(state: Projection, attempt: AttemptRecord, at: datetime) -> list[Event]:
    """What an attempt's new state means for its own incident and for that of the attempt before."""
    events = list[Event]()
    own = state.open_incident(attempt.id)
    if own is not None:
        match attempt.seen.state:
            case AttemptState.COMPLETED:
                events += steps(own, [IncidentTransition.SELF_HEALED], at, reason="attempt completed")
            case AttemptState.CANCELLED_BY_USER:
                actor = attempt.seen.actor
                events += steps(own, [IncidentTransition.USER_TOOK_OVER], at, actor=actor)
            case _:
                pass
    for incident in _earlier(state, attempt):
        if attempt.seen.state is AttemptState.RUNNING and incident.state is not IncidentState.PROGRESS_RESUMED:
            moved = steps(incident, [IncidentTransition.ALLOCATION_RESTARTED], at)
            events += moved
            if moved:
                events.append(_outcome(incident, attempt, Outcome.ALLOCATION_RESTARTED, at))
        if attempt.seen.state is AttemptState.COMPLETED:
            events += steps(incident, [IncidentTransition.PROGRESS_RESUMED, IncidentTransition.RECOVERED], at)
            events.append(_outcome(incident, attempt, Outcome.TRAINING_COMPLETED, at))
    return events


def after_progress(
    state: Projection, attempt: AttemptRecord, step: int | None, checkpoint: int | None, at: datetime
) -> list[Event]:
    """A completed step beyond the last one, or a new checkpoint: only that is progress."""
    events = list[Event]()
    for incident in _earlier(state, attempt):
        before = state.attempts[incident.opened.attempt]
        is_further = _beyond(step, before.last_step) or _beyond(checkpoint, before.last_checkpoint)
        if not is_further:
            continue
        if incident.state is IncidentState.ALLOCATION_RESTARTED:
            events += steps(incident, [IncidentTransition.PROGRESS_RESUMED], at)
            events.append(_outcome(incident, attempt, Outcome.PROGRESS_RESUMED, at, step, checkpoint))
        elif incident.state is IncidentState.PROGRESS_RESUMED and _beyond(checkpoint, before.last_checkpoint):
            events += steps(incident, [IncidentTransition.RECOVERED], at, reason="checkpoint completed")
    return events


def after_recurrence(
    state: Projection, attempt: AttemptRecord, at: datetime
) -> tuple[list[Event], IncidentRecord | None]:
    """A new incident of the workload closes the one before, which it is linked to."""
    earlier = _earlier(state, attempt)
    events: list[Event] = [
        event
        for incident in earlier
        for event in steps(incident, [IncidentTransition.RECURRED], at, reason=f"again in {attempt.id}")
    ]
    closed = [one for one in earlier if any(getattr(e, "incident", None) == one.id for e in events)]
    return events, closed[-1] if closed else None


def after_report(
    state: Projection, known: RecommendationRecord, is_converged: bool, reason: str, actor: str, at: datetime
) -> list[Event]:
    """What a controller's terminal report means for the incident."""
    incident = state.incidents.get(known.issued.incident) if known.issued.incident else None
    if incident is None:
        return []
    if not is_converged:
        user = reason in {"user_cancelled", "user_released"}
        closing = IncidentTransition.USER_TOOK_OVER if user else IncidentTransition.FAILED_OPEN
        return [*steps(incident, [closing], at, reason=reason, actor=actor, recommendation=known.id)]
    closing_steps = [IncidentTransition.ACTION_BEGUN]
    if known.issued.action is Action.STOP:
        closing_steps.append(IncidentTransition.STOPPED)
    return [*steps(incident, closing_steps, at, reason=reason, actor=actor, recommendation=known.id)]


def settled(state: Projection, at: datetime) -> list[Event]:
    """Incidents whose progress resumed long enough ago are over."""
    return [
        event
        for incident in state.incidents.values()
        if incident.state is IncidentState.PROGRESS_RESUMED and at - incident.changed_at >= SETTLED_AFTER
        for event in steps(incident, [IncidentTransition.RECOVERED], at, reason="no recurrence for an hour")
    ]


def _earlier(state: Projection, attempt: AttemptRecord) -> list[IncidentRecord]:
    """Open incidents of earlier attempts of the same workload, oldest first."""
    siblings = state.workloads.get(attempt.seen.workload, ())
    earlier = (
        state.open_incident(other)
        for other in siblings
        if state.attempts[other].seen.attempt_index < attempt.seen.attempt_index
    )
    return [one for one in earlier if one is not None]


def _outcome(
    incident: IncidentRecord,
    attempt: AttemptRecord,
    outcome: Outcome,
    at: datetime,
    step: int | None = None,
    checkpoint: int | None = None,
) -> OutcomeReported:
    return OutcomeReported(
        at=at,
        attempt=incident.opened.attempt,
        outcome=outcome,
        next_attempt=attempt.id,
        step=step,
        checkpoint_step=checkpoint,
        recommendation=incident.recommendation,
        incident=incident.id,
        workload=attempt.seen.workload,
        cluster=attempt.seen.cluster,
    )


def _beyond(reached: int | None, before: int | None) -> bool:
    return reached is not None and (before is None or reached > before)
