# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Everything that the audit log can say: a closed union of events, each with a kind and a schema number."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, get_args

from relight.jsonform import JsonObject, MalformedJson, decode, encode
from relight.types import (
    Action,
    Anomaly,
    AnomalyKind,
    AttemptId,
    AttemptState,
    ClusterId,
    EvidenceStatus,
    Exclusion,
    FailureClass,
    FailureName,
    IncidentId,
    Mode,
    NodeName,
    RecommendationId,
    SignatureId,
    Trigger,
    WorkloadId,
)


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


class Repair(StrEnum):
    """What the audit log did to itself when it was opened or got its disk back."""

    WAL_QUARANTINED = "wal_quarantined"
    SPILL_FOLDED_BACK = "spill_folded_back"
    SPILL_QUARANTINED = "spill_quarantined"
    TAIL_MISSING = "tail_missing"
    CHAIN_BROKEN = "chain_broken"
    MIGRATED = "migrated"


# ------------------------------------------------------------------ attempts and anomalies


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


# ------------------------------------------------------------------ recommendations


@dataclass(frozen=True, slots=True, kw_only=True)
class _AboutRecommendation:
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
class RecommendationApproved(_AboutRecommendation):
    kind: ClassVar[str] = "recommendation.approved"
    schema: ClassVar[int] = 1
    generation: int
    actor: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationRejected(_AboutRecommendation):
    kind: ClassVar[str] = "recommendation.rejected"
    schema: ClassVar[int] = 1
    generation: int
    actor: str
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationClaimed(_AboutRecommendation):
    """A controller took the lease; only the SHA-256 of its fencing token is ever written down."""

    kind: ClassVar[str] = "recommendation.claimed"
    schema: ClassVar[int] = 1
    generation: int
    actor: str
    lease_expires_at: datetime
    claim_token_sha256: str
    is_renewal: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationSuperseded(_AboutRecommendation):
    kind: ClassVar[str] = "recommendation.superseded"
    schema: ClassVar[int] = 1
    superseded_by: RecommendationId
    generation: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecommendationExpired(_AboutRecommendation):
    kind: ClassVar[str] = "recommendation.expired"
    schema: ClassVar[int] = 1
    generation: int
    reason: str = ""


# ------------------------------------------------------------------ what came of it


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
class ReconciliationReported(_AboutRecommendation):
    kind: ClassVar[str] = "reconciliation.reported"
    schema: ClassVar[int] = 1
    generation: int
    disposition: Disposition
    actor: str
    reason: str = ""
    observation: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class MilestoneRecorded(_AboutRecommendation):
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
class FeedbackGiven(_AboutRecommendation):
    kind: ClassVar[str] = "feedback.given"
    schema: ClassVar[int] = 1
    verdict: FeedbackVerdict
    actor: str
    true_failure: FailureName | None = None
    note: str = ""


# ------------------------------------------------------------------ exclusions


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionAdded:
    kind: ClassVar[str] = "exclusion.added"
    schema: ClassVar[int] = 1
    at: datetime
    exclusion: Exclusion
    evidence: tuple[str, ...] = ()
    recommendation: RecommendationId | None = None
    attempt: AttemptId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    actor: str = ""

    @property
    def node(self) -> NodeName:
        return self.exclusion.node


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionPardoned:
    kind: ClassVar[str] = "exclusion.pardoned"
    schema: ClassVar[int] = 1
    at: datetime
    node: NodeName
    actor: str
    scope: str = "workload"
    reason: str = ""
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionExpired:
    kind: ClassVar[str] = "exclusion.expired"
    schema: ClassVar[int] = 1
    at: datetime
    node: NodeName
    scope: str = "workload"
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None


# ------------------------------------------------------------------ Relight itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChanged:
    """`scope` is cluster, partition, class or workload; `target` is the name within that scope."""

    kind: ClassVar[str] = "mode.changed"
    schema: ClassVar[int] = 1
    at: datetime
    scope: str
    target: str
    mode: Mode
    actor: str
    reason: str
    previous: Mode | None = None
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChanged:
    """The policy table was replaced; `text` is the whole table, so that replay needs no file."""

    kind: ClassVar[str] = "policy.changed"
    schema: ClassVar[int] = 1
    at: datetime
    version: str
    text: str
    actor: str
    reason: str
    previous: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLoaded:
    kind: ClassVar[str] = "pack.loaded"
    schema: ClassVar[int] = 1
    at: datetime
    pack: str
    digest: str
    signatures: int
    version: str = ""
    source: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPromoted:
    kind: ClassVar[str] = "model.promoted"
    schema: ClassVar[int] = 1
    at: datetime
    model: str
    version: str
    digest: str
    actor: str
    reason: str
    stage: str = "live"
    previous: str = ""
    metrics: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorFailed:
    """A detector raised: its silence from here on says nothing about health."""

    kind: ClassVar[str] = "detector.failed"
    schema: ClassVar[int] = 1
    at: datetime
    detector: str
    error: str
    failures: int = 1
    is_disabled: bool = False
    attempt: AttemptId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalAccepted:
    """One batch of signals, counted and not copied: the log lines stay where they are."""

    kind: ClassVar[str] = "signal.accepted"
    schema: ClassVar[int] = 1
    at: datetime
    source: str
    accepted: int
    duplicates: int = 0
    refused: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    digest: str = ""
    attempt: AttemptId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    actor: str = ""
    counts: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStarted:
    kind: ClassVar[str] = "service.started"
    schema: ClassVar[int] = 1
    at: datetime
    version: str
    config_digest: str = ""
    loaded: JsonObject = field(default_factory=dict)
    cluster: ClusterId | None = None
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStopped:
    kind: ClassVar[str] = "service.stopped"
    schema: ClassVar[int] = 1
    at: datetime
    reason: str = ""
    cluster: ClusterId | None = None
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRepaired:
    """The audit log had to mend or doubt itself; `first` to `last` are the positions concerned."""

    kind: ClassVar[str] = "audit.repaired"
    schema: ClassVar[int] = 1
    at: datetime
    repair: Repair
    summary: str
    first: int | None = None
    last: int | None = None
    kept_at: str = ""
    detail: JsonObject = field(default_factory=dict)


Event = (
    AttemptObserved
    | AnomalyDetected
    | AttributionMade
    | IncidentOpened
    | IncidentAdvanced
    | RecommendationIssued
    | RecommendationRequested
    | RecommendationApproved
    | RecommendationRejected
    | RecommendationClaimed
    | RecommendationSuperseded
    | RecommendationExpired
    | OutcomeReported
    | ReconciliationReported
    | MilestoneRecorded
    | WatchdogReleased
    | FeedbackGiven
    | ExclusionAdded
    | ExclusionPardoned
    | ExclusionExpired
    | ModeChanged
    | PolicyChanged
    | PackLoaded
    | ModelPromoted
    | DetectorFailed
    | SignalAccepted
    | ServiceStarted
    | ServiceStopped
    | AuditRepaired
)

EVENT_TYPES: Mapping[str, type[Event]] = {one.kind: one for one in get_args(Event)}


class UnknownEvent(MalformedJson):
    """An event of a kind or schema that this version of Relight does not know."""


def to_json(event: Event) -> dict[str, Any]:
    """The event as a JSON object: `kind` and `schema`, then its fields."""
    body: dict[str, Any] = encode(event)
    return {"kind": event.kind, "schema": event.schema, **body}


def from_json(said: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote.

    Errors: UnknownEvent for a kind or a schema number of a newer Relight; MalformedJson for fields
    that are unknown, missing or of the wrong type.
    """
    kind, schema = said.get("kind"), said.get("schema")
    known = EVENT_TYPES.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise UnknownEvent(f"unknown event kind {kind!r}; a newer Relight may have written it: upgrade to read it")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise MalformedJson(f"{kind}: need a schema number of at least 1, got {schema!r}")
    if schema > known.schema:
        raise UnknownEvent(f"{kind}: schema {schema} is newer than the {known.schema} known here; upgrade Relight")
    return decode(known, {name: value for name, value in said.items() if name not in ("kind", "schema")})
