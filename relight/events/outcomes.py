# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What came of a recommendation: verbs, dispositions, outcomes and what people said of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from relight.events.recommendations import AboutRecommendation
from relight.jsonform import JsonObject
from relight.types import AttemptId, ClusterId, FailureName, IncidentId, RecommendationId, WorkloadId


class Outcome(StrEnum):
    """What came of a recommendation: four facts that are never merged into one "success"."""

    DECISION_EXECUTED = "decision_executed"
    ALLOCATION_RESTARTED = "allocation_restarted"
    PROGRESS_RESUMED = "progress_resumed"
    TRAINING_COMPLETED = "training_completed"


class Disposition(StrEnum):
    """A controller's report on one generation of a recommendation; all but PENDING are terminal."""

    PENDING = "PENDING"
    CONVERGED = "CONVERGED"
    ABANDONED = "ABANDONED"
    FAILED = "FAILED"


class MilestonePhase(StrEnum):
    INTENT = "intent"
    DONE = "done"
    ERROR = "error"


class FeedbackVerdict(StrEnum):
    RIGHT = "right"
    WRONG = "wrong"
    UNSURE = "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeReported:
    """One of the four outcomes; `attempt` is the one that failed, `next_attempt` the one that followed."""

    kind: ClassVar[str] = "outcome.reported"
    schema: ClassVar[int] = 1
    at: datetime
    attempt: AttemptId
    outcome: Outcome
    next_attempt: AttemptId | None = None
    step: int | None = None
    checkpoint_step: int | None = None
    recommendation: RecommendationId | None = None
    incident: IncidentId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    actor: str = ""
    detail: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReconciliationReported(AboutRecommendation):
    kind: ClassVar[str] = "reconciliation.reported"
    schema: ClassVar[int] = 1
    generation: int
    disposition: Disposition
    actor: str
    reason: str = ""
    observation: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MilestoneRecorded(AboutRecommendation):
    """One verb of a controller, before it is sent (`intent`) and after the answer (`done`, `error`)."""

    kind: ClassVar[str] = "milestone.recorded"
    schema: ClassVar[int] = 1
    step: str
    phase: MilestonePhase
    idempotency_key: str
    actor: str = ""
    detail: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchdogReleased:
    """The deadline passed and the scheduler's own rule applies again."""

    kind: ClassVar[str] = "watchdog.released"
    schema: ClassVar[int] = 1
    at: datetime
    attempt: AttemptId
    deadline: datetime
    reason: str = ""
    recommendation: RecommendationId | None = None
    incident: IncidentId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedbackGiven(AboutRecommendation):
    kind: ClassVar[str] = "feedback.given"
    schema: ClassVar[int] = 1
    verdict: FeedbackVerdict
    actor: str
    true_failure: FailureName | None = None
    note: str = ""
