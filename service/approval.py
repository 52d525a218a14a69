# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What people say of a recommendation: yes, no, and afterwards whether it was right."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from relight.events import (
    Event,
    FeedbackGiven,
    FeedbackVerdict,
    RecommendationApproved,
    RecommendationRejected,
)
from relight.incidents import IncidentTransition, RecommendationTransition
from relight.types import FailureName, RecommendationId
from service import course
from service.advisor import is_overdue
from service.gates import Gates
from service.journal import Journal
from service.records import RecommendationRecord
from service.refusals import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedback:
    verdict: FeedbackVerdict
    actor: str
    true_failure: FailureName | None
    note: str


class Approval:
    """One answer of a person to each recommendation, told again as often as asked.

    Errors: Refused if it was answered otherwise or may not be acted on any more.
    """

    def __init__(self, journal: Journal, gates: Gates) -> None:
        self._journal = journal
        self._gates = gates

    def approve(self, name: RecommendationId, actor: str, note: str) -> RecommendationRecord:
        """Clears the way for a controller; saying it again changes nothing."""
        with self._journal.lock:
            known, now = self._gates.known(name), self._journal.now()
            if known.approved is not None:
                return known
            self._require_undecided(known, RecommendationTransition.APPROVED, now)
            event = RecommendationApproved(
                at=now,
                recommendation=name,
                generation=known.generation,
                actor=actor,
                note=note,
                attempt=known.issued.attempt,
                incident=known.issued.incident,
                workload=known.issued.workload,
                cluster=known.issued.cluster,
            )
            steps = self._steps(known, IncidentTransition.APPROVED, now, actor)
            self._journal.record(event, *steps)
            return self._gates.known(name)

    def reject(self, name: RecommendationId, actor: str, note: str) -> RecommendationRecord:
        """A person decides otherwise: the scheduler's own rule applies."""
        with self._journal.lock:
            known, now = self._gates.known(name), self._journal.now()
            if known.rejected is not None:
                return known
            self._require_undecided(known, RecommendationTransition.REJECTED, now)
            event = RecommendationRejected(
                at=now,
                recommendation=name,
                generation=known.generation,
                actor=actor,
                note=note,
                attempt=known.issued.attempt,
                incident=known.issued.incident,
                workload=known.issued.workload,
                cluster=known.issued.cluster,
            )
            steps = self._steps(known, IncidentTransition.USER_TOOK_OVER, now, actor)
            self._journal.record(event, *steps)
            return self._gates.known(name)

    def feedback(self, name: RecommendationId, said: Feedback) -> RecommendationRecord:
        """What a person knows afterwards; the same words of the same person are kept once."""
        with self._journal.lock:
            known = self._gates.known(name)
            if any(_words(before) == _words(said) for before in known.feedback):
                return known
            self._journal.record(
                FeedbackGiven(
                    at=self._journal.now(),
                    recommendation=name,
                    verdict=said.verdict,
                    actor=said.actor,
                    true_failure=said.true_failure,
                    note=said.note,
                    attempt=known.issued.attempt,
                    incident=known.issued.incident,
                    workload=known.issued.workload,
                    cluster=known.issued.cluster,
                )
            )
            return self._gates.known(name)

    def _require_undecided(self, known: RecommendationRecord, step: RecommendationTransition, now: datetime) -> None:
        self._gates.require_step(known, step)
        if is_overdue(known, now):
            raise Refused("not_actionable", f"it expired at {known.issued.expires_at.isoformat()}")

    def _steps(self, known: RecommendationRecord, step: IncidentTransition, now: datetime, actor: str) -> list[Event]:
        incident = self._gates.incident(known)
        if incident is None:
            return []
        return [*course.steps(incident, [step], now, actor=actor, recommendation=known.id)]


def _words(said: Feedback | FeedbackGiven) -> tuple[object, ...]:
    return (said.verdict, said.actor, said.true_failure, said.note)
