# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A recorded audit log decided anew: the same events in the same order, with today's policy in place of then's."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from relight.events import (
    AnomalyDetected,
    Event,
    FeedbackGiven,
    FeedbackVerdict,
    PolicyChanged,
    RecommendationIssued,
    ServiceStarted,
)
from relight.jsonform import decode
from relight.policy import PolicyTable
from relight.ports import AuditLog
from relight.types import Action, Attribution, RecommendationId
from service.config import Recommend
from service.journal import Journal
from service.replay import EventClock
from service.verdicts import Grounds, Verdicts


@dataclass(frozen=True, slots=True, kw_only=True)
class Redecided:
    """One recommendation as it was given and as it would be given now."""

    recommendation: str
    attempt: str
    at: str
    failure: str
    signature: str | None
    action: str
    nodes: tuple[str, ...]
    reason: str
    was_action: str
    was_nodes: tuple[str, ...]
    was_reason: str
    feedback: str = ""
    true_failure: str = ""
    delay_s: float | None = None

    @property
    def is_changed(self) -> bool:
        return (self.action, self.nodes) != (self.was_action, self.was_nodes)

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(slots=True)
class AuditReplay:
    """Folds recorded events into a state of its own and decides again where a verdict was recorded.

    What people and controllers did stays as recorded, so a changed verdict does not change what came after
    it: the answer to "what would have been said", not to "what would have happened".
    """

    audit: AuditLog
    table: PolicyTable
    settings: Recommend
    clock: EventClock = field(default_factory=EventClock)
    found: dict[RecommendationId, Redecided] = field(default_factory=dict)
    _journal: Journal = field(init=False)
    _verdicts: Verdicts = field(init=False)
    _delays: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._journal = Journal(self.audit, self.clock)
        self._verdicts = Verdicts(self._journal, self.settings, lambda: Grounds(self.table, "replay"))

    def take(self, events: Iterable[Event]) -> None:
        for event in events:
            self.clock.reach(_aware(event.at))
            self._take(event)

    def _take(self, event: Event) -> None:
        match event:
            case RecommendationIssued() if event.verdict:
                self._decide(event)
            case PolicyChanged() | ServiceStarted():
                pass  # the policy under trial stands in for all that were in force
            case AnomalyDetected():
                late = (event.anomaly.detected_at - event.anomaly.onset_at).total_seconds()
                self._delays.setdefault(event.anomaly.attempt, max(late, 0.0))
                self._journal.record(event)
            case FeedbackGiven():
                self._judged(event)
                self._journal.record(event)
            case _:
                self._journal.record(event)

    def _decide(self, then: RecommendationIssued) -> None:
        state = self._journal.state
        attempt, made = state.attempts.get(then.attempt), state.attribution(then.attempt)
        if attempt is None or made is None:
            self._journal.record(then)
            return
        said = decode(Attribution, made.event.attribution)
        fresh = self._verdicts.decided(attempt, said, then.at)
        now = replace(
            fresh, recommendation=then.recommendation, generation=then.generation, trigger=then.trigger,
            decide_deadline=then.decide_deadline, expires_at=then.expires_at, actor=then.actor,
            incident=then.incident, supersedes=then.supersedes,
        )  # fmt: skip
        self._journal.record(now)
        self.found[then.recommendation] = Redecided(
            recommendation=then.recommendation,
            attempt=then.attempt,
            at=then.at.isoformat(),
            failure=now.failure,
            signature=now.signature,
            action=_plain(now),
            nodes=_nodes(now),
            reason=now.reason,
            was_action=_plain(then),
            was_nodes=_nodes(then),
            was_reason=then.reason,
            delay_s=self._delays.get(then.attempt),
        )

    def _judged(self, event: FeedbackGiven) -> None:
        known = self.found.get(event.recommendation)
        if known is not None and event.verdict is not FeedbackVerdict.UNSURE:
            self.found[event.recommendation] = replace(
                known, feedback=event.verdict, true_failure=event.true_failure or ""
            )


def _plain(issued: RecommendationIssued) -> str:
    return Action.CONTINUE if issued.action is Action.NO_DECISION else issued.action


def _nodes(issued: RecommendationIssued) -> tuple[str, ...]:
    return tuple(sorted(one.node for one in issued.exclusions))


def _aware(at: datetime) -> datetime:
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
