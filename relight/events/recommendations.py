# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The life of a recommendation, from the asking to its claim or its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from relight.jsonform import JsonObject
from relight.types import (
    Action,
    AttemptId,
    ClusterId,
    EvidenceStatus,
    Exclusion,
    FailureClass,
    FailureName,
    IncidentId,
    Mode,
    RecommendationId,
    SignatureId,
    Trigger,
    WorkloadId,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutRecommendation:
    """What every event about a recommendation carries."""

    at: datetime
    recommendation: RecommendationId
    attempt: AttemptId | None = None
    incident: IncidentId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationIssued:
    """What was advised, on what grounds, and how far it may go; `confidence` is shown, never a gate.

    `delay_s` is to pass before a restart, `stop_grace_s` before a stopped attempt is ended for good. `verdict` is
    the whole of policy's answer, and empty where a person proposed.
    """

    kind: ClassVar[str] = "recommendation.issued"
    schema: ClassVar[int] = 1
    at: datetime
    recommendation: RecommendationId
    attempt: AttemptId
    action: Action
    generation: int
    mode: Mode
    is_actionable: bool
    failure: FailureName
    failure_class: FailureClass
    evidence_status: EvidenceStatus
    decide_deadline: datetime
    expires_at: datetime
    reason: str = ""
    decision_basis: str = ""
    retry_outlook: str = ""
    exclusions: tuple[Exclusion, ...] = ()
    blocked_by: tuple[str, ...] = ()
    trigger: Trigger = Trigger.EXITED
    confidence: float | None = None
    policy_version: str = ""
    rule_set_hash: str = ""
    signature: SignatureId | None = None
    model_version: str = ""
    supersedes: RecommendationId | None = None
    ledgers: JsonObject = field(default_factory=dict)
    verdict: JsonObject = field(default_factory=dict)
    delay_s: int = 0
    stop_grace_s: int = 0
    incident: IncidentId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationRequested:
    """Who asked under which idempotency key, and which recommendation was the answer."""

    kind: ClassVar[str] = "recommendation.requested"
    schema: ClassVar[int] = 1
    at: datetime
    recommendation: RecommendationId
    attempt: AttemptId
    idempotency_key: str
    body_sha256: str
    trigger: Trigger = Trigger.EXITED
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationApproved(AboutRecommendation):
    kind: ClassVar[str] = "recommendation.approved"
    schema: ClassVar[int] = 1
    generation: int
    actor: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationRejected(AboutRecommendation):
    kind: ClassVar[str] = "recommendation.rejected"
    schema: ClassVar[int] = 1
    generation: int
    actor: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationClaimed(AboutRecommendation):
    """A controller took the lease; only the SHA-256 of its fencing token is ever written down."""

    kind: ClassVar[str] = "recommendation.claimed"
    schema: ClassVar[int] = 1
    generation: int
    actor: str
    lease_expires_at: datetime
    claim_token_sha256: str
    is_renewal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationSuperseded(AboutRecommendation):
    kind: ClassVar[str] = "recommendation.superseded"
    schema: ClassVar[int] = 1
    superseded_by: RecommendationId
    generation: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationExpired(AboutRecommendation):
    kind: ClassVar[str] = "recommendation.expired"
    schema: ClassVar[int] = 1
    generation: int
    reason: str = ""
