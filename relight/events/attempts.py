# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What happened to an attempt: what was observed, concluded and opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from relight.jsonform import JsonObject
from relight.types import (
    Anomaly,
    AnomalyKind,
    AttemptId,
    AttemptState,
    ClusterId,
    EvidenceStatus,
    FailureClass,
    FailureName,
    IncidentId,
    NodeName,
    RecommendationId,
    WorkloadId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptObserved:
    """What a scheduler or an agent said of an attempt; `detail` holds the fields that nothing folds."""

    kind: ClassVar[str] = "attempt.observed"
    schema: ClassVar[int] = 1
    at: datetime
    attempt: AttemptId
    workload: WorkloadId
    cluster: ClusterId
    state: AttemptState
    attempt_index: int = 0
    nodes: tuple[NodeName, ...] = ()
    failed_nodes: tuple[NodeName, ...] = ()
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    actor: str = ""
    scheduler: JsonObject = field(default_factory=dict)
    detail: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AnomalyDetected:
    kind: ClassVar[str] = "anomaly.detected"
    schema: ClassVar[int] = 1
    at: datetime
    anomaly: Anomaly
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    incident: IncidentId | None = None

    @property
    def attempt(self) -> AttemptId:
        return self.anomaly.attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class AttributionMade:
    """`attribution` is the whole Attribution as JSON, so that its shape may grow without a new schema."""

    kind: ClassVar[str] = "attribution.made"
    schema: ClassVar[int] = 1
    at: datetime
    attempt: AttemptId
    failure: FailureName
    failure_class: FailureClass
    evidence_status: EvidenceStatus
    attribution: JsonObject
    attributor: str = "builtin"
    version: str = ""
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    incident: IncidentId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentOpened:
    kind: ClassVar[str] = "incident.opened"
    schema: ClassVar[int] = 1
    at: datetime
    incident: IncidentId
    attempt: AttemptId
    onset_at: datetime
    anomalies: tuple[AnomalyKind, ...] = ()
    summary: str = ""
    recurrence_of: IncidentId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentAdvanced:
    """The incident went from one state to another; the legal transitions are those of `incidents`."""

    kind: ClassVar[str] = "incident.advanced"
    schema: ClassVar[int] = 1
    at: datetime
    incident: IncidentId
    previous: str
    state: str
    reason: str = ""
    attempt: AttemptId | None = None
    recommendation: RecommendationId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    actor: str = ""
