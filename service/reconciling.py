# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The controller's side of a recommendation: claim it, act under a lease, report what came of it."""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from relight.events import (
    Disposition,
    Event,
    ExclusionAdded,
    MilestonePhase,
    MilestoneRecorded,
    Outcome,
    OutcomeReported,
    RecommendationClaimed,
    ReconciliationReported,
)
from relight.incidents import IncidentTransition, RecommendationState, RecommendationTransition
from relight.jsonform import JsonObject
from relight.types import Action, RecommendationId
from service import course
from service.advisor import is_overdue
from service.config import Recommend
from service.gates import Gates
from service.journal import Journal
from service.records import RecommendationRecord
from service.refusals import Refused
from service.tokens import digest

_STEPS = {
    Disposition.PENDING: RecommendationTransition.ACTION_BEGUN,
    Disposition.CONVERGED: RecommendationTransition.CONVERGED,
    Disposition.ABANDONED: RecommendationTransition.ABANDONED,
    Disposition.FAILED: RecommendationTransition.FAILED,
}


@dataclass(frozen=True, slots=True)
class Lease:
    """The token is told once and kept only as a digest."""

    recommendation: RecommendationRecord
    token: str
    expires_at: datetime
    is_renewal: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a controller says of one generation; whoever holds the claim is put on record as its `actor`."""

    generation: int
    disposition: Disposition
    reason: str
    observation: JsonObject
    token: str | None
    actor: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Milestone:
    """One verb of a controller: before it is sent, or after the answer; on record for the claim's holder."""

    step: str
    phase: MilestonePhase
    key: str
    actor: str
    detail: JsonObject


def _new_token() -> str:
    return secrets.token_urlsafe(24)


class Reconciliation:
    """Claims and reports, each checked against the state and the clock, then recorded.

    Errors: Refused with a stable code; AuditUnavailable if it could not be recorded.
    """

    def __init__(
        self,
        journal: Journal,
        gates: Gates,
        settings: Recommend,
        new_token: Callable[[], str] = _new_token,
    ) -> None:
        self._journal = journal
        self._gates = gates
        self._settings = settings
        self._new_token = new_token

    def claim(self, name: RecommendationId, controller: str, generation: int, lease_s: float) -> Lease:
        """A fencing token for one controller; asking again renews the lease with a new token."""
        with self._journal.lock:
            known, now = self._gates.known(name), self._journal.now()
            self._gates.require_generation(known, generation)
            self._gates.require_actionable(known, now)
            held = known.claim
            if held is not None and held.controller != controller and now < held.lease_expires_at:
                raise Refused("claimed", f"{held.controller!r} holds it until {held.lease_expires_at.isoformat()}")
            token = self._new_token()
            until = now + timedelta(seconds=min(lease_s, self._settings.max_lease_s))
            if known.state is not RecommendationState.ACTING:
                until = min(until, known.issued.expires_at)
            is_renewal = held is not None and held.controller == controller
            self._journal.record(
                RecommendationClaimed(
                    at=now,
                    recommendation=known.id,
                    generation=known.generation,
                    actor=controller,
                    lease_expires_at=until,
                    claim_token_sha256=digest(token),
                    is_renewal=is_renewal,
                    attempt=known.issued.attempt,
                    incident=known.issued.incident,
                    workload=known.issued.workload,
                    cluster=known.issued.cluster,
                )
            )
            return Lease(self._gates.known(name), token, until, is_renewal)

    def report(self, name: RecommendationId, said: Report) -> RecommendationRecord:
        """A controller's word on one generation; the last writer of the same generation wins."""
        with self._journal.lock:
            known, now = self._gates.known(name), self._journal.now()
            self._gates.require_generation(known, said.generation)
            if not known.state.is_open or is_overdue(known, now):
                return _repeated(known, said)
            _require_claim(known, said)
            if known.claim is not None:  # people look for the controller that acted, not for its token's name
                said = replace(said, actor=known.claim.controller)
            if said.disposition is not Disposition.PENDING or known.state is not RecommendationState.ACTING:
                self._gates.require_step(known, _STEPS[said.disposition])
            if _is_same(known.reconciliation, said):
                return known
            self._journal.record(*self._reported(known, said, now))
            return self._gates.known(name)

    def milestone(self, name: RecommendationId, said: Milestone) -> tuple[MilestoneRecorded, bool]:
        """A verb of a controller, recorded before it is sent and after; inserted once for each key."""
        with self._journal.lock:
            known, now = self._gates.known(name), self._journal.now()
            before = self._journal.state.milestone_keys.get((name, said.key))
            if before is not None:
                if (before.step, before.phase) != (said.step, said.phase):
                    raise Refused("idempotency_conflict", f"key {said.key!r} was used for {before.step} {before.phase}")
                return before, False
            if known.claim is None:
                raise Refused("not_claimed", "claim it before recording work on it")
            said = replace(said, actor=known.claim.controller)
            events: list[Event] = []
            if said.phase is MilestonePhase.INTENT:
                events = self._intended(known, said, now)
            event = MilestoneRecorded(
                at=now,
                recommendation=name,
                step=said.step,
                phase=said.phase,
                idempotency_key=said.key,
                actor=said.actor,
                detail=said.detail,
                attempt=known.issued.attempt,
                incident=known.issued.incident,
                workload=known.issued.workload,
                cluster=known.issued.cluster,
            )
            self._journal.record(event, *events)
            return event, True

    def _intended(self, known: RecommendationRecord, said: Milestone, now: datetime) -> list[Event]:
        """An intent is the last moment to say no; a rollback under way may always go on."""
        if known.state is RecommendationState.ACTING:
            return []
        self._gates.require_step(known, RecommendationTransition.ACTION_BEGUN)
        if gates := self._gates.blocked_by(known, now):
            raise Refused("not_actionable", f"blocked by {', '.join(gates)}")
        incident = self._gates.incident(known)
        begun = [IncidentTransition.ACTION_BEGUN]
        return [*course.steps(incident, begun, now, actor=said.actor)] if incident else []

    def _reported(self, known: RecommendationRecord, said: Report, now: datetime) -> list[Event]:
        issued = known.issued
        events: list[Event] = [
            ReconciliationReported(
                at=now,
                recommendation=known.id,
                generation=known.generation,
                disposition=said.disposition,
                actor=said.actor,
                reason=said.reason,
                observation=said.observation,
                attempt=issued.attempt,
                incident=issued.incident,
                workload=issued.workload,
                cluster=issued.cluster,
            )
        ]
        if said.disposition is Disposition.PENDING:
            incident = self._gates.incident(known)
            begun = [IncidentTransition.ACTION_BEGUN]
            return [*events, *course.steps(incident, begun, now, actor=said.actor)] if incident else events
        is_converged = said.disposition is Disposition.CONVERGED
        events += course.after_report(self._journal.state, known, is_converged, said.reason, said.actor, now)
        return events + self._executed(known, said, now) if is_converged else events

    def _executed(self, known: RecommendationRecord, said: Report, now: datetime) -> list[Event]:
        """The decision took effect: its exclusions stand from here on."""
        issued = known.issued
        done = OutcomeReported(
            at=now,
            attempt=issued.attempt,
            outcome=Outcome.DECISION_EXECUTED,
            recommendation=known.id,
            incident=issued.incident,
            workload=issued.workload,
            cluster=issued.cluster,
            actor=said.actor,
            detail={"action": str(issued.action), "reason": said.reason},
        )
        if issued.action is not Action.RESTART_EXCLUDING:
            return [done]
        return [
            done,
            *(
                ExclusionAdded(
                    at=now, exclusion=one, evidence=(issued.reason,), recommendation=known.id,
                    attempt=issued.attempt, workload=issued.workload, cluster=issued.cluster,
                    actor=said.actor,
                )
                for one in issued.exclusions
            ),
        ]  # fmt: skip


def _require_claim(known: RecommendationRecord, said: Report) -> None:
    """Work is reported under the newest claim; giving up what nobody claimed needs none."""
    held = known.claim
    if held is None:
        if said.disposition is not Disposition.ABANDONED:
            raise Refused("not_claimed", f"claim it before reporting {said.disposition}")
        return
    if said.token is None or not hmac.compare_digest(digest(said.token), held.token_sha256):
        raise Refused("stale_claim", f"the newest claim is that of {held.controller!r}")


def _repeated(known: RecommendationRecord, said: Report) -> RecommendationRecord:
    """The same terminal answer again is fine, another one is not; giving up on what is over is no news."""
    last = known.reconciliation
    is_same = last is not None and last.disposition is said.disposition
    is_answered = last is not None and last.disposition is not Disposition.PENDING
    if is_same or (said.disposition is Disposition.ABANDONED and not is_answered):
        return known
    raise Refused("already_answered", f"it is {known.state}, {said.disposition} comes too late")


def _is_same(last: ReconciliationReported | None, said: Report) -> bool:
    return last is not None and (last.disposition, last.reason, dict(last.observation)) == (
        said.disposition,
        said.reason,
        dict(said.observation),
    )
