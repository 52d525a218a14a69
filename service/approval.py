# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What people say of a recommendation: yes, no, and afterwards whether it was right."""

from __future__ import annotations

from collections.abc import Callable
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    """What yes and no differ in."""

    event: type[RecommendationApproved] | type[RecommendationRejected]
    step: RecommendationTransition
    incident_step: IncidentTransition
    given: Callable[[RecommendationRecord], RecommendationApproved | RecommendationRejected | None]


_APPROVAL = _Answer(
    event=RecommendationApproved,
    step=RecommendationTransition.APPROVED,
    incident_step=IncidentTransition.APPROVED,
    given=lambda known: known.approved,
)
_REJECTION = _Answer(
    event=RecommendationRejected,
    step=RecommendationTransition.REJECTED,
    incident_step=IncidentTransition.USER_TOOK_OVER,
    given=lambda known: known.rejected,
)


class Approval:
    """One answer of a person to each recommendation, told again as often as asked.

    Errors: Refused if it was answered otherwise or may not be acted on any more.
    """

    def __init__(self, journal: Journal, gates: Gates) -> None:
        self._journal = journal
        self._gates = gates

    def approve(
        self, name: RecommendationId, actor: str, note: str, generation: int | None = None
    ) -> RecommendationRecord:
        """Clears the way for a controller; saying it again changes nothing."""
        return self._answer(_APPROVAL, name, actor, note, generation)

    def reject(
        self, name: RecommendationId, actor: str, note: str, generation: int | None = None
    ) -> RecommendationRecord:
        """A person decides otherwise: the scheduler's own rule applies."""
        return self._answer(_REJECTION, name, actor, note, generation)

    def _answer(
        self, kind: _Answer, name: RecommendationId, actor: str, note: str, generation: int | None
    ) -> RecommendationRecord:
        """With a generation, only what that one said is answered: nobody approves what they did not see."""
        with self._journal.lock:
            known, now = self._gates.known(name), self._journal.now()
            if generation is not None:
                self._gates.require_generation(known, generation)
            if kind.given(known) is not None:
                return known
            self._gates.require_step(known, kind.step)
            if is_overdue(known, now):
                raise Refused("not_actionable", f"it expired at {known.issued.expires_at.isoformat()}")
            issued = known.issued
            answer = kind.event(
                at=now, recommendation=name, generation=known.generation, actor=actor, note=note,
                attempt=issued.attempt, incident=issued.incident, workload=issued.workload, cluster=issued.cluster,
            )  # fmt: skip
            self._journal.record(answer, *self._steps(known, kind.incident_step, now, actor))
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

    def _steps(self, known: RecommendationRecord, step: IncidentTransition, now: datetime, actor: str) -> list[Event]:
        incident = self._gates.incident(known)
        if incident is None:
            return []
        return [*course.steps(incident, [step], now, actor=actor, recommendation=known.id)]


def _words(said: Feedback | FeedbackGiven) -> tuple[object, ...]:
    return (said.verdict, said.actor, said.true_failure, said.note)
