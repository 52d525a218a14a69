# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the service knows now of attempts, incidents, recommendations, exclusions and modes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from relight.events import (
    AnomalyDetected,
    AttemptObserved,
    AttributionMade,
    FeedbackGiven,
    IncidentOpened,
    MilestoneRecorded,
    RecommendationApproved,
    RecommendationIssued,
    RecommendationRejected,
    ReconciliationReported,
)
from relight.incidents import IncidentState, RecommendationState
from relight.promotion import Stage
from relight.silences import Silence
from relight.types import (
    AttemptId,
    ClusterId,
    Exclusion,
    FailureClass,
    IncidentId,
    Mode,
    RecommendationId,
    WorkloadId,
)

TRAINS_WITH = "trains_with"  # among the counts of accepted signals: what the job stated of its shape
_ACTED_ON = frozenset(
    {
        RecommendationState.CLAIMED,
        RecommendationState.ACTING,
        RecommendationState.CONVERGED,
        RecommendationState.FAILED,
        RecommendationState.ABANDONED,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptRecord:
    """An attempt as last observed; `position` is where it first stood in the audit log.

    `logged_steps` counts the lines that stated a completed step. `is_relative`: its step counter started anew
    on the way, so its steps can't be compared. `has_gaps`: of some file, lines are missing. `shape` is what the
    job itself stated of it, see `relight.shape`.
    """

    seen: AttemptObserved
    position: int
    revision: int
    first_seen_at: datetime
    ended_at: datetime | None = None
    last_step: int | None = None
    last_checkpoint: int | None = None
    checkpoint_at: datetime | None = None
    lines: int = 0
    logged_steps: int = 0
    is_relative: bool = False
    has_gaps: bool = False
    shape: Mapping[str, int] = field(default_factory=dict)

    @property
    def id(self) -> AttemptId:
        return self.seen.attempt

    @property
    def observed_at(self) -> datetime:
        """When the observer looked, which is not when it was recorded."""
        said = self.seen.detail.get("observed_at")
        return datetime.fromisoformat(said) if isinstance(said, str) else self.seen.at

    @property
    def was_read_whole(self) -> bool:
        """True if every line that we know of came, from the first of each file on."""
        return self.lines > 0 and not self.has_gaps

    def detail(self, name: str, default: Any = None) -> Any:
        return self.seen.detail.get(name, default)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyRecord:
    event: AnomalyDetected
    position: int

    @property
    def id(self) -> str:
        return f"anomaly-{self.position}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionRecord:
    event: AttributionMade
    position: int


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentRecord:
    opened: IncidentOpened
    position: int
    revision: int
    state: IncidentState
    changed_at: datetime
    reason: str = ""
    recommendation: RecommendationId | None = None

    @property
    def id(self) -> IncidentId:
        return self.opened.incident

    @property
    def is_open(self) -> bool:
        return not self.state.is_closed


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A controller's lease; only the newest token digest is worth anything."""

    controller: str
    generation: int
    lease_expires_at: datetime
    token_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationRecord:
    """A recommendation in its newest generation; `position` is that of the first one."""

    issued: RecommendationIssued
    position: int
    revision: int
    created_at: datetime
    state: RecommendationState
    claim: Claim | None = None
    approved: RecommendationApproved | None = None
    rejected: RecommendationRejected | None = None
    reconciliation: ReconciliationReported | None = None
    milestones: tuple[MilestoneRecorded, ...] = ()
    feedback: tuple[FeedbackGiven, ...] = ()
    superseded_by: RecommendationId | None = None

    @property
    def id(self) -> RecommendationId:
        return self.issued.recommendation

    @property
    def generation(self) -> int:
        return self.issued.generation

    @property
    def is_acted_on(self) -> bool:
        """True from the claim on: from here nothing may revise it."""
        return self.state in _ACTED_ON


ExclusionKey = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionRecord:
    """A node kept out; `workload` is None for the scope of a whole cluster."""

    exclusion: Exclusion
    cluster: ClusterId
    workload: WorkloadId | None
    position: int
    added_at: datetime
    actor: str
    evidence: tuple[str, ...] = ()

    def stands(self, at: datetime) -> bool:
        return at < self.exclusion.expires_at


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeEntry:
    scope: str
    target: str
    mode: Mode
    actor: str
    reason: str
    changed_at: datetime
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StageEntry:
    """One change of a class's stage; `record` is what the class had to show then."""

    failure_class: FailureClass
    stage: Stage
    previous: Stage
    actor: str
    reason: str
    changed_at: datetime
    record: Mapping[str, Any]
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceRecord:
    """A silence and, once it is over, who ended it when; `ended_by` is empty where its time was over."""

    silence: Silence
    position: int
    ended_at: datetime | None = None
    ended_by: str = ""
    end_reason: str = ""

    @property
    def id(self) -> str:
        return self.silence.id

    def stands(self, at: datetime) -> bool:
        return self.silence.stands(at) and (self.ended_at is None or at < self.ended_at)

    def is_overdue(self, at: datetime) -> bool:
        """Over by time, with nothing on record that says so yet."""
        return self.ended_at is None and at >= self.silence.ends_at


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyText:
    """The policy table in force, as its YAML source."""

    text: str
    version: str
    actor: str = ""
    reason: str = ""
    changed_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What an idempotency key was first used for."""

    body_sha256: str
    recommendation: RecommendationId


@dataclass(slots=True)
class Counted:
    """Totals since the log began, for statistics and metrics."""

    events: dict[str, int] = field(default_factory=dict)
    signals: dict[str, int] = field(default_factory=dict)

    def add(self, kind: str) -> None:
        self.events[kind] = self.events.get(kind, 0) + 1

    def add_signals(self, outcomes: Mapping[str, int]) -> None:
        for name, count in outcomes.items():
            self.signals[name] = self.signals.get(name, 0) + count
