# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The application: decides what to advise on an attempt, records it, and only then says it."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from relight.events import (
    AnomalyDetected,
    AttributionMade,
    Event,
    IncidentOpened,
    ModeChanged,
    RecommendationExpired,
    RecommendationIssued,
    RecommendationRequested,
    RecommendationSuperseded,
)
from relight.incidents import IncidentTransition, RecommendationState
from relight.jsonform import canonical_json, decode, encode
from relight.policy import PolicyTable, Verdict, decide, lowest_mode
from relight.types import (
    CAUSE_NOT_IN_LOG,
    NO_FAILURE,
    Action,
    Anomaly,
    AnomalyKind,
    AttemptId,
    Attribution,
    EvidenceStatus,
    Exclusion,
    FailureClass,
    IncidentId,
    Mode,
    RecommendationId,
    Trigger,
)
from service import course
from service.config import Recommend
from service.history import BREAKER, Question
from service.journal import Journal
from service.records import AttemptRecord, AttributionRecord, IncidentRecord, RecommendationRecord
from service.refusals import Refused

BUILTIN = "builtin"
_RICHNESS = (
    EvidenceStatus.UNKNOWN,
    EvidenceStatus.HYPOTHESIS,
    EvidenceStatus.SUPPORTED,
    EvidenceStatus.ESTABLISHED,
)
_NAMESPACE = uuid.UUID("5f0d2c0e-5a0b-5c5e-9b62-0c1c7a5b9f11")
UNKNOWN_CAUSE = Attribution(
    failure=CAUSE_NOT_IN_LOG,
    failure_class=FailureClass.UNKNOWN,
    evidence_status=EvidenceStatus.UNKNOWN,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One call for advice: `key` makes it safe to send twice."""

    attempt: AttemptId
    trigger: Trigger
    key: str
    body_sha256: str
    actor: str
    deadline_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a person wants done; it passes the same gates as our own verdict."""

    action: Action
    exclusions: tuple[Exclusion, ...]
    author: str


@dataclass(frozen=True, slots=True)
class Advice:
    recommendation: RecommendationRecord
    is_new: bool


@dataclass(frozen=True, slots=True)
class Versions:
    """What a verdict rests on, so that it can be told later why it was given."""

    policy: PolicyTable
    rule_set_hash: str


class Advisor:
    """Attribution, incident and recommendation of an attempt, each durable before it is told.

    Errors: Refused for what the state does not allow; AuditUnavailable if nothing could be recorded.
    """

    def __init__(
        self,
        journal: Journal,
        settings: Recommend,
        versions: Callable[[], Versions],
        attribution_of: Callable[[AttemptId], Attribution | None],
    ) -> None:
        self._journal = journal
        self._settings = settings
        self._versions = versions
        self._attribution_of = attribution_of

    # -------------------------------------------------------------- asking

    def advise(self, ask: Request, proposal: Proposal | None = None) -> Advice:
        """The recommendation for an attempt; the same attempt always gets the same answer."""
        with self._journal.lock:
            attempt = self._attempt(ask.attempt)
            known = self._answered(ask, attempt, proposal)
            if known is not None:
                return Advice(known, is_new=False)
            if proposal is None:
                events, identity = self._decided(attempt, ask)
            else:
                events, identity = self._proposed(attempt, ask, proposal)
            self._journal.record(*events, self._requested(ask, attempt, identity))
            return Advice(self._journal.state.recommendations[identity], is_new=True)

    def knows_cause(self, attempt: AttemptId) -> bool:
        """True if waiting for more lines is no longer needed to name a failure."""
        with self._journal.lock:
            return self.attribution(attempt).failure not in {CAUSE_NOT_IN_LOG, NO_FAILURE}

    def attribution(self, attempt: AttemptId) -> Attribution:
        """The best attribution there is: ours by all lines seen, unless a recorded one says more."""
        own = self._attribution_of(attempt)
        best = own if own is not None else UNKNOWN_CAUSE
        for record in self._recorded(attempt):
            said = decode(Attribution, record.event.attribution)
            is_lost = record.event.attributor == BUILTIN and own is None
            if _richness(said) > _richness(best) or (is_lost and _richness(said) >= _richness(best)):
                best = said
        return best

    # -------------------------------------------------------------- evidence arriving

    def attribute(self, attempt: AttemptId, anomaly: Anomaly | None = None) -> None:
        """Record what is now known of an attempt: attribution, anomaly, incident, and a revised verdict."""
        with self._journal.lock:
            known, now = self._attempt(attempt), self._journal.now()
            events = self._newly_attributed(known, self.attribution(attempt), now)
            if anomaly is not None:
                events += self._opened(known, anomaly, now)
            if events:
                self._journal.record(*events)
                self._revise(known, now)

    def add_attribution(self, said: Attribution, attempt: AttemptId, version: str) -> tuple[AttributionRecord, bool]:
        """An attribution from outside; it may raise a new generation and never acts."""
        with self._journal.lock:
            known, now = self._attempt(attempt), self._journal.now()
            for record in self._recorded(attempt):
                if (record.event.attributor, record.event.version) == (said.attributor, version):
                    return record, False
            before = self.attribution(attempt)
            self._journal.record(self._made(known, said, version, now))
            added = self._recorded(attempt)[-1]
            if _richness(said) > _richness(before):
                self._revise(known, now)
            return added, True

    # -------------------------------------------------------------- time passing

    def sweep(self) -> int:
        """Expire what nobody may act on any more; how many events that took."""
        with self._journal.lock:
            now, state = self._journal.now(), self._journal.state
            events: list[Event] = course.settled(state, now)
            for known in state.recommendations.values():
                if is_overdue(known, now):
                    events += self._expired(known, now)
            self._journal.record(*events)
            return len(events)

    def _expired(self, known: RecommendationRecord, now: datetime) -> list[Event]:
        issued = known.issued
        events: list[Event] = [
            RecommendationExpired(
                at=now, recommendation=known.id, generation=known.generation,
                reason=f"nobody acted until {issued.expires_at.isoformat()}", attempt=issued.attempt,
                incident=issued.incident, workload=issued.workload, cluster=issued.cluster,
            )
        ]  # fmt: skip
        incident = self._journal.state.incidents.get(issued.incident) if issued.incident else None
        if incident is not None:
            events += course.steps(
                incident, [IncidentTransition.FAILED_OPEN], now, reason="recommendation expired"
            )
        return events

    # -------------------------------------------------------------- deciding

    def _answered(
        self, ask: Request, attempt: AttemptRecord, proposal: Proposal | None
    ) -> RecommendationRecord | None:
        state = self._journal.state
        before = state.requests.get((attempt.seen.cluster, ask.key))
        if before is not None:
            if before.body_sha256 != ask.body_sha256:
                raise Refused("idempotency_conflict", f"key {ask.key!r} was used before with another body")
            return state.recommendations[before.recommendation]
        latest = state.latest_recommendation(ask.attempt)
        if latest is None or (proposal is not None and not latest.state.is_open):
            return None
        self._journal.record(self._requested(ask, attempt, latest.id))
        return latest

    def _decided(self, attempt: AttemptRecord, ask: Request) -> tuple[list[Event], RecommendationId]:
        now = self._journal.now()
        said = self.attribution(ask.attempt)
        events = self._newly_attributed(attempt, said, now)
        incident = self._journal.state.open_incident(attempt.id)
        identity = RecommendationId(str(uuid.uuid5(_NAMESPACE, f"{attempt.id}/1")))
        if incident is None and said.failure != NO_FAILURE:
            opened = self._opened(attempt, _asked_anomaly(attempt, said, now), now)
            events += opened
            incident = _opened_by(opened)
        verdict, deadline = self._verdict(attempt, said, now, ask.deadline_s)
        issued = self._issued(attempt, said, verdict, identity, incident, now)
        issued = replace(issued, decide_deadline=deadline, trigger=ask.trigger, actor=ask.actor)
        events += self._breaker(attempt, verdict, now)
        events.append(issued)
        if incident is not None:
            events += self._incident_steps(incident, issued, now)
        return events, identity

    def _revise(self, attempt: AttemptRecord, now: datetime) -> None:
        """A richer verdict replaces the one given, as a new generation, until that was acted on."""
        known = self._journal.state.latest_recommendation(attempt.id)
        if known is None or not _is_revisable(known, now):
            return
        said = self.attribution(attempt.id)
        verdict, _ = self._verdict(attempt, said, known.created_at, None)
        incident = self._journal.state.incidents.get(known.issued.incident) if known.issued.incident else None
        fresh = self._issued(attempt, said, verdict, known.id, incident, now)
        fresh = replace(
            fresh,
            generation=known.generation + 1,
            decide_deadline=known.issued.decide_deadline,
            expires_at=known.issued.expires_at,
            trigger=known.issued.trigger,
            actor=known.issued.actor,
        )
        if _says(fresh) != _says(known.issued):
            steps = self._incident_steps(incident, fresh, now) if incident is not None else []
            self._journal.record(fresh, *steps)

    def _verdict(
        self, attempt: AttemptRecord, said: Attribution, at: datetime, deadline_s: float | None
    ) -> tuple[Verdict, datetime]:
        table = self._versions().policy
        question = Question(self._journal.state, attempt, said, table, self._settings.mode, at)
        within = min(deadline_s or self._settings.decide_within_s, float(table.deadlines.hard_s))
        deadline = at + timedelta(seconds=within)
        return decide(said, question.history(), question.facts(deadline), table, at=at), deadline

    def _issued(
        self,
        attempt: AttemptRecord,
        said: Attribution,
        verdict: Verdict,
        identity: RecommendationId,
        incident: IncidentRecord | None,
        now: datetime,
    ) -> RecommendationIssued:
        versions = self._versions()
        return RecommendationIssued(
            at=now,
            recommendation=identity,
            attempt=attempt.id,
            action=verdict.action,
            generation=1,
            mode=verdict.mode,
            is_actionable=verdict.actionable,
            failure=verdict.failure,
            failure_class=verdict.failure_class,
            evidence_status=said.evidence_status,
            decide_deadline=now,
            expires_at=now + timedelta(seconds=self._settings.expire_after_s),
            reason=verdict.reason,
            decision_basis="; ".join(verdict.decision_basis),
            retry_outlook=verdict.retry_outlook,
            exclusions=verdict.exclusions,
            blocked_by=verdict.blocked_by,
            policy_version=verdict.policy_version,
            rule_set_hash=versions.rule_set_hash,
            signature=said.root.signature if said.root else None,
            ledgers={"before": encode(verdict.ledgers_before), "after": encode(verdict.ledgers_after)},
            verdict=encode(verdict),
            incident=incident.id if incident else None,
            workload=attempt.seen.workload,
            cluster=attempt.seen.cluster,
        )
