# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The application: decides what to advise on an attempt, records it, and only then says it."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Protocol

from relight.events import Event, RecommendationIssued, RecommendationRequested
from relight.incidents import IncidentState, IncidentTransition, RecommendationState
from relight.jsonform import decode, encode
from relight.types import (
    CAUSE_NOT_IN_LOG,
    NO_FAILURE,
    Action,
    Anomaly,
    AnomalyKind,
    AttemptId,
    Attribution,
    RecommendationId,
    Trigger,
)
from relight.watching import CLASSES as WATCHED
from relight.watching import attribution_by_watch, calls_for_advice, is_same_claim
from service import course
from service.advice_events import (
    BY_A_PERSON,
    BY_A_QUESTION,
    BY_AN_INCIDENT,
    UNASKED,
    expired,
    is_lapsed,
    is_shadow,
    opened_by,
    superseded,
)
from service.attributing import NOTHING_FAILED, UNKNOWN_CAUSE, richness
from service.journal import Journal
from service.records import AttemptRecord, AttributionRecord, IncidentRecord, RecommendationRecord
from service.refusals import Refused
from service.verdicts import Proposal, Verdicts, asked_anomaly, identity

BUILTIN = "builtin"
_REVISABLE = frozenset({RecommendationState.PROPOSED, RecommendationState.APPROVED, RecommendationState.SHADOW})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call for advice: `key` makes it safe to send twice."""

    attempt: AttemptId
    trigger: Trigger
    key: str
    body_sha256: str
    actor: str
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True)
class Advice:
    recommendation: RecommendationRecord
    is_new: bool


class EvidenceSource(Protocol):
    """Where attributions by all lines seen come from; `lock` is taken before that of the journal."""

    lock: threading.RLock

    def attribution(self, attempt: AttemptId) -> Attribution | None: ...


class Advisor:
    """Attribution, incident and recommendation of an attempt, each durable before it is told.

    Errors: Refused for what the state does not allow; AuditUnavailable if nothing could be recorded.
    """

    def __init__(
        self,
        journal: Journal,
        verdicts: Verdicts,
        evidence: EvidenceSource,
        own: str = BUILTIN,
    ) -> None:
        self._journal = journal
        self._verdicts = verdicts
        self._evidence = evidence
        self._own = frozenset({BUILTIN, own})

    # -------------------------------------------------------------- asking

    def advise(self, ask: Request, proposal: Proposal | None = None) -> Advice:
        """The recommendation for an attempt; the same attempt always gets the same answer."""
        with self._evidence.lock, self._journal.lock:
            attempt = self._attempt(ask.attempt)
            known = self._answered(ask, attempt, proposal)
            if known is not None:
                return Advice(known, is_new=False)
            if proposal is None:
                events, name = self._decided(attempt, ask)
            else:
                events, name = self._proposed(attempt, proposal)
            self._journal.record(*events, requested(ask, attempt, name, self._journal.now()))
            return Advice(self._journal.state.recommendations[name], is_new=True)

    def knows_cause(self, attempt: AttemptId) -> bool:
        """True if waiting for more lines is no longer needed to name a failure."""
        with self._evidence.lock, self._journal.lock:
            return self.attribution(attempt).failure not in {CAUSE_NOT_IN_LOG, NO_FAILURE}

    def attribution(self, attempt: AttemptId, pending: Anomaly | None = None) -> Attribution:
        """The best there is: ours by all lines seen, unless a recorded one says more.

        Where no line names a cause, the open incident's anomalies (and `pending`, which is to join them) do.
        """
        own = self._evidence.attribution(attempt)
        best = own if own is not None else UNKNOWN_CAUSE
        for record in self._recorded(attempt):
            is_ours = record.event.attributor in self._own
            if is_ours and own is not None and record.position > self._journal.replayed:
                continue  # by fewer lines than we have now
            if is_ours and record.event.failure in WATCHED:
                continue  # by anomalies, which are asked afresh below
            said = decode(Attribution, record.event.attribution)
            # What we knew before a restart rests on lines that are gone: it yields only to more.
            if richness(said) > richness(best) or (is_ours and richness(said) == richness(best)):
                best = said
        if best.failure not in {NO_FAILURE, CAUSE_NOT_IN_LOG}:
            return best
        watched = attribution_by_watch([*self._open_anomalies(attempt), *([pending] if pending else [])])
        if watched is None:
            return best
        return replace(watched, last_step=best.last_step, made_progress=best.made_progress)

    def _open_anomalies(self, attempt: AttemptId) -> list[Anomaly]:
        incident = self._journal.state.open_incident(attempt)
        known = self._journal.state.anomalies_of.get(attempt, ()) if incident is not None else ()
        return [one.event.anomaly for one in known if incident is not None and one.event.incident == incident.id]

    # -------------------------------------------------------------- evidence arriving

    def attribute(self, attempt: AttemptId, anomaly: Anomaly | None = None) -> None:
        """Record what is now known of an attempt: attribution, anomaly, incident, and a revised verdict."""
        with self._evidence.lock, self._journal.lock:
            known, now = self._attempt(attempt), self._journal.now()
            if anomaly is not None and self._has_anomaly(attempt, anomaly):
                anomaly = None
            events = self._newly_attributed(known, self.attribution(attempt, anomaly), now)
            if anomaly is not None:
                events += self._verdicts.opened(known, anomaly, now)
            if events:
                self._journal.record(*events)
                self._revise(known, now)

    def note(self, anomaly: Anomaly) -> None:
        """Put an anomaly on record that opens no incident: a suspicion, a notice, uneven work."""
        with self._evidence.lock, self._journal.lock:
            if not self._has_anomaly(anomaly.attempt, anomaly):
                known, now = self._attempt(anomaly.attempt), self._journal.now()
                self._journal.record(self._verdicts.noted(known, anomaly, now))

    def healed(self, attempt: AttemptId) -> bool:
        """Close the incident of a job that trains on, if nothing but its stop was claimed; True if it was."""
        with self._evidence.lock, self._journal.lock:
            known, now = self._attempt(attempt), self._journal.now()
            incident = self._journal.state.open_incident(attempt)
            kinds = {one.kind for one in self._open_anomalies(attempt)}
            own = self._evidence.attribution(attempt)
            is_claimed = own is not None and own.failure not in {NO_FAILURE, CAUSE_NOT_IN_LOG}
            if incident is None or is_claimed or not kinds <= {AnomalyKind.HANG, AnomalyKind.CRASH}:
                return False
            reason = "training went on by itself"
            steps = course.steps(incident, [IncidentTransition.SELF_HEALED], now, reason=reason)
            self._journal.record(*steps)
            self._journal.record(*self._newly_attributed(known, self.attribution(attempt), now))
            self._revise(known, now)
            return bool(steps)

    def reconsider(self, attempt: AttemptId) -> None:
        """Look again at advice that may have waited for a moment such as a completed checkpoint."""
        with self._evidence.lock, self._journal.lock:
            self._revise(self._attempt(attempt), self._journal.now())

    def add_attribution(self, said: Attribution, attempt: AttemptId, version: str) -> tuple[AttributionRecord, bool]:
        """An attribution from outside; it may raise a new generation and never acts."""
        with self._evidence.lock, self._journal.lock:
            known, now = self._attempt(attempt), self._journal.now()
            for record in self._recorded(attempt):
                if (record.event.attributor, record.event.version) == (said.attributor, version):
                    return record, False
            is_richer = richness(said) > richness(self.attribution(attempt))
            self._journal.record(self._verdicts.attributed(known, said, now, version))
            added = self._recorded(attempt)[-1]
            if is_richer:
                self._revise(known, now)
            return added, True

    # -------------------------------------------------------------- time passing

    def sweep(self) -> int:
        """Expire what nobody may act on any more; how many events that took."""
        with self._journal.lock:
            now, state = self._journal.now(), self._journal.state
            events = course.settled(state, now)
            for known in state.recommendations.values():
                if is_overdue(known, now):
                    events += self._expired(known, now)
            self._journal.record(*events)
            return len(events)

    def _expired(self, known: RecommendationRecord, now: datetime) -> list[Event]:
        issued = known.issued
        events: list[Event] = [expired(known, now)]
        incident = self._journal.state.incidents.get(issued.incident) if issued.incident else None
        if incident is not None:
            closing = [IncidentTransition.FAILED_OPEN]
            events += course.steps(incident, closing, now, reason="recommendation expired")
        return events

    # -------------------------------------------------------------- deciding

    def volunteer(self, attempt: AttemptId) -> bool:
        """Advise, unasked and once an incident, on a job that hangs or trains in vain, if policy would act on it.

        Whoever asks about the attempt afterwards gets this same recommendation.
        """
        with self._evidence.lock, self._journal.lock:
            known, now, state = self._attempt(attempt), self._journal.now(), self._journal.state
            incident, latest = state.open_incident(attempt), state.latest_recommendation(attempt)
            is_over = known.ended_at is not None
            if incident is None or is_over or not any(map(calls_for_advice, self._open_anomalies(attempt))):
                return False
            if latest is not None and not (is_lapsed(latest, now) and latest.issued.incident != incident.id):
                return False
            issued = self._fresh(known, self.attribution(attempt), now)
            if issued.action in {Action.CONTINUE, Action.NO_DECISION}:
                return False
            issued = replace(issued, trigger=Trigger.DETECTED, actor=UNASKED, incident=incident.id)
            self._journal.record(
                *([superseded(latest, issued.recommendation, now, BY_AN_INCIDENT)] if is_shadow(latest) else []),
                *self._verdicts.breaker(issued, now),
                issued,
                *self._verdicts.incident_steps(incident, issued, now),
            )
            return True

    def _fresh(
        self, attempt: AttemptRecord, said: Attribution, now: datetime, deadline_s: float | None = None
    ) -> RecommendationIssued:
        """Our own verdict as the attempt's next recommendation."""
        issued = self._verdicts.decided(attempt, said, now, deadline_s)
        before = self._journal.state.latest_recommendation(attempt.id)
        if before is None:
            return issued
        number = len(self._journal.state.by_attempt.get(attempt.id, ())) + 1
        named = identity(attempt, number)
        return replace(issued, recommendation=named, generation=before.generation + 1, supersedes=before.id)

    def _answered(self, ask: Request, attempt: AttemptRecord, proposal: Proposal | None) -> RecommendationRecord | None:
        state = self._journal.state
        before = state.requests.get((attempt.seen.cluster, ask.key))
        if before is not None:
            if before.body_sha256 != ask.body_sha256:
                raise Refused("idempotency_conflict", f"key {ask.key!r} was used before with another body")
            return state.recommendations[before.recommendation]
        latest = state.latest_recommendation(ask.attempt)
        if latest is None or (proposal is not None and not latest.state.is_open):
            return None
        if latest.issued.trigger is Trigger.DETECTED and is_lapsed(latest, self._journal.now()):
            return None  # it was about a run that went on; this question is another one
        self._journal.record(requested(ask, attempt, latest.id, self._journal.now()))
        return state.recommendations[latest.id]

    def _decided(self, attempt: AttemptRecord, ask: Request) -> tuple[list[Event], RecommendationId]:
        now = self._journal.now()
        said = self.attribution(ask.attempt)
        events = self._newly_attributed(attempt, said, now)
        incident = self._journal.state.open_incident(attempt.id)
        if incident is None and said.failure != NO_FAILURE:
            opened = self._verdicts.opened(attempt, asked_anomaly(attempt, said, now), now)
            events += opened
            incident = opened_by(opened)
        before = self._journal.state.latest_recommendation(attempt.id)
        issued = self._fresh(attempt, said, now, ask.deadline_s)
        issued = replace(issued, trigger=ask.trigger, actor=ask.actor, incident=incident.id if incident else None)
        if is_shadow(before):
            events.append(superseded(before, issued.recommendation, now, BY_A_QUESTION))
        events += [*self._verdicts.breaker(issued, now), issued]
        if incident is not None:
            events += self._verdicts.incident_steps(incident, issued, now)
        return events, issued.recommendation

    def _proposed(self, attempt: AttemptRecord, proposal: Proposal) -> tuple[list[Event], RecommendationId]:
        now, state = self._journal.now(), self._journal.state
        before = state.latest_recommendation(attempt.id)
        incident = state.open_incident(attempt.id)
        said = self.attribution(attempt.id)
        name = identity(attempt, len(state.by_attempt.get(attempt.id, ())) + 1)
        issued = replace(
            self._verdicts.proposed(attempt, said, proposal, now),
            recommendation=name,
            generation=before.generation + 1 if before else 1,
            supersedes=before.id if before else None,
            trigger=Trigger.MANUAL,
            incident=incident.id if incident else None,
        )
        events: list[Event] = [*self._newly_attributed(attempt, said, now), issued]
        if before is not None and before.state is RecommendationState.SHADOW:
            events.append(superseded(before, name, now, BY_A_PERSON))
        if incident is not None:
            events += self._verdicts.incident_steps(incident, issued, now)
        return events, name

    def _revise(self, attempt: AttemptRecord, now: datetime) -> None:
        """A richer verdict becomes a new generation, until the one given was acted on."""
        state = self._journal.state
        known = state.latest_recommendation(attempt.id)
        if known is None or known.state not in _REVISABLE or now >= known.issued.expires_at:
            return
        if not known.issued.verdict:
            return  # a person's word is not revised by ours
        said = self.attribution(attempt.id)
        if said.failure == CAUSE_NOT_IN_LOG and self._trains_on(attempt):
            said = NOTHING_FAILED
        fresh = self._verdicts.revised(attempt, said, known, now)
        if fresh is None:
            return
        incident = state.incidents.get(fresh.incident) if fresh.incident else None
        steps = self._verdicts.incident_steps(incident, fresh, now) if incident is not None else []
        self._journal.record(fresh, *steps)

    def _trains_on(self, attempt: AttemptRecord) -> bool:
        """True if the last that was claimed of a running attempt has passed by itself."""
        names = self._journal.state.incidents_of.get(attempt.id)
        return attempt.ended_at is None and names is not None and _is_healed(self._journal.state.incidents[names[-1]])

    def _newly_attributed(self, attempt: AttemptRecord, said: Attribution, now: datetime) -> list[Event]:
        if said.attributor not in self._own:
            return []  # recorded when it came
        recorded = [r for r in self._recorded(attempt.id) if r.event.attributor in self._own]
        if recorded and recorded[-1].event.attribution == encode(said):
            return []
        return [self._verdicts.attributed(attempt, said, now)]

    def _has_anomaly(self, attempt: AttemptId, anomaly: Anomaly) -> bool:
        """More lines are the same crash; a crash or hang that healed and came again is another one."""
        state = self._journal.state
        return any(
            is_same_claim(one.event.anomaly, anomaly)
            for one in state.anomalies_of.get(attempt, ())
            if one.event.incident is None or not _is_healed(state.incidents.get(one.event.incident))
        )

    def _recorded(self, attempt: AttemptId) -> list[AttributionRecord]:
        return self._journal.state.attributions.get(attempt, [])

    def _attempt(self, attempt: AttemptId) -> AttemptRecord:
        known = self._journal.state.attempts.get(attempt)
        if known is None:
            raise Refused("unknown_attempt", f"attempt {attempt!r}: PUT /v1/attempts/{attempt} first")
        return known


def _is_healed(incident: IncidentRecord | None) -> bool:
    return incident is not None and incident.state is IncidentState.CLOSED_SELF_HEALED


def is_overdue(known: RecommendationRecord, now: datetime) -> bool:
    """True if nobody may act on it any more; once a verb was sent the truth is the scheduler's."""
    is_waiting = known.state.is_open and known.state is not RecommendationState.ACTING
    return is_waiting and now >= known.issued.expires_at


def requested(ask: Request, attempt: AttemptRecord, name: RecommendationId, now: datetime) -> RecommendationRequested:
    return RecommendationRequested(
        at=now,
        recommendation=name,
        attempt=ask.attempt,
        idempotency_key=ask.key,
        body_sha256=ask.body_sha256,
        trigger=ask.trigger,
        workload=attempt.seen.workload,
        cluster=attempt.seen.cluster,
        actor=ask.actor,
    )
