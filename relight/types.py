# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The nouns of workload recovery, from a log line to an outcome."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, NewType

AttemptId = NewType("AttemptId", str)
WorkloadId = NewType("WorkloadId", str)
ClusterId = NewType("ClusterId", str)
IncidentId = NewType("IncidentId", str)
RecommendationId = NewType("RecommendationId", str)
FailureName = NewType("FailureName", str)
SignatureId = NewType("SignatureId", str)
NodeName = NewType("NodeName", str)
Rank = NewType("Rank", int)

NO_FAILURE = FailureName("none")
CAUSE_NOT_IN_LOG = FailureName("cause_not_in_log")

CaptureValue = str | int
Captures = Mapping[str, CaptureValue]


class Stream(StrEnum):
    """Who wrote a line: only `application` is under the job's own control."""

    APPLICATION = "application"
    KERNEL = "kernel"
    SCHEDULER = "scheduler"
    FABRIC = "fabric"
    DCGM = "dcgm"
    KUBERNETES = "kubernetes"

    @property
    def is_independent(self) -> bool:
        """True if the job's user can't write into it, so it may bear witness at cluster scope."""
        return self is not Stream.APPLICATION


class Role(StrEnum):
    """What a signature may be in a causal chain."""

    ROOT = "root"
    SYMPTOM = "symptom"
    CONFIRMATION = "confirmation"
    TEARDOWN = "teardown"
    BENIGN = "benign"


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"


class FailureClass(StrEnum):
    HARDWARE = "hardware"
    NETWORK = "network"
    SYSTEM_SOFTWARE = "system_software"
    APPLICATION = "application"
    RESOURCE = "resource"
    STORAGE = "storage"
    USER_OR_SCHEDULER = "user_or_scheduler"
    UNKNOWN = "unknown"
    BENIGN = "benign"


class EvidenceStatus(StrEnum):
    """How far the evidence carries the claim."""

    ESTABLISHED = "established"
    SUPPORTED = "supported"
    HYPOTHESIS = "hypothesis"
    UNKNOWN = "unknown"


class Action(StrEnum):
    RESTART = "restart"
    RESTART_EXCLUDING = "restart_excluding"
    STOP = "stop"
    CONTINUE = "continue"
    NO_DECISION = "no_decision"


class Mode(StrEnum):
    """How far a recommendation may go; ordered by boldness in `policy.lowest_mode`."""

    MONITOR = "monitor"
    APPROVE = "approve"
    ACT = "act"


class Trigger(StrEnum):
    EXITED = "exited"
    MANUAL = "manual"
    EXTERNAL = "external"


class AttemptState(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    SUSPECT = "SUSPECT"
    ENDING = "ENDING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED_BY_USER = "CANCELLED_BY_USER"
    PREEMPTED = "PREEMPTED"
    TIMED_OUT = "TIMED_OUT"
    NODE_FAILED = "NODE_FAILED"
    LOST = "LOST"

    @property
    def is_terminal(self) -> bool:
        return self not in {
            AttemptState.PENDING,
            AttemptState.RUNNING,
            AttemptState.SUSPECT,
            AttemptState.ENDING,
        }


class Progress(StrEnum):
    """Did this attempt get further than the last one? Only NO is ever a strike."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"


class AnomalyKind(StrEnum):
    CRASH = "crash"
    HANG = "hang"
    STRAGGLER = "straggler"
    SLOWDOWN = "slowdown"
    DIVERGENCE = "divergence"
    NOVELTY = "novelty"


class Tier(StrEnum):
    """How firm an anomaly is: a suspicion asks for probes, only a confirmed one opens an incident."""

    SUSPECT = "suspect"
    CONFIRMED = "confirmed"


class Scope(StrEnum):
    """What an anomaly accuses; `job` means that the culprit is unknown or that there is none."""

    JOB = "job"
    STAGE = "stage"
    NODE = "node"
    RANK = "rank"


# ------------------------------------------------------------------ observations


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLine:
    """One line as it arrived. `number` counts from 1 within `file`; `at` is aware UTC or unknown."""

    attempt: AttemptId
    file: str
    number: int
    stream: Stream
    text: str
    at: datetime | None = None
    node: NodeName | None = None
    rank: Rank | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRef:
    """A place in a log; `line` counts from 1."""

    file: str
    line: int


class Phase(StrEnum):
    """What a training job is doing: each phase has its own idea of how long a pause is usual."""

    START = "start"
    STEP = "step"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    DATA = "data"
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepProgress:
    """A step, a checkpoint or another phase that was begun or completed.

    `at` is when we received it. `rank` is the writer where known. What a line does not say is None:
    `loss` and `grad_norm` may be NaN, `throughput` is in the line's own unit per second, `tokens` is the
    work of one step where the line states it.
    """

    attempt: AttemptId
    at: datetime
    step: int | None = None
    checkpoint_step: int | None = None
    is_completed: bool = True
    phase: Phase = Phase.STEP
    rank: Rank | None = None
    loss: float | None = None
    grad_norm: float | None = None
    step_s: float | None = None
    throughput: float | None = None
    tokens: int | None = None
    where: LogRef | None = None
    is_skipped: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTiming:
    attempt: AttemptId
    at: datetime
    rank: Rank
    step: int
    step_s: float
    compute_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepBatch:
    """The timings of one step of many ranks at once; the sequences run in the order of `ranks`.

    `compute_s` is a rank's own work before the first collective of the step: only that tells a slow rank
    from those who wait for it. NaN stands for a rank that did not report. Arrays (`array`, NumPy) spare
    the copy that lists need. `stages` are the pipeline stages, if they are known here and not from a
    `JobShape`.
    """

    attempt: AttemptId
    at: datetime
    step: int
    ranks: Sequence[int]
    step_s: Sequence[float]
    compute_s: Sequence[float] | None = None
    stages: Sequence[int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobShape:
    """What an attempt trains with; baselines of another shape do not apply, those of the same one do.

    `nodes` and `stages` are indexed by rank; empty if unknown. `batch` is the global batch size.
    """

    attempt: AttemptId
    at: datetime
    workload: WorkloadId | None = None
    world_size: int | None = None
    batch: int | None = None
    sequence_length: int | None = None
    nodes: Sequence[NodeName] = ()
    stages: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    attempt: AttemptId
    at: datetime
    rank: Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """What the scheduler says of an attempt, in its own words and in ours."""

    attempt: AttemptId
    at: datetime
    state: AttemptState
    reason: str = ""
    exit_code: int | None = None
    signal: int | None = None
    failed_nodes: tuple[NodeName, ...] = ()
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEvent:
    at: datetime
    node: NodeName
    code: str
    is_fatal: bool
    text: str = ""
    gpu: str | None = None


Observation = LogLine | StepProgress | StepTiming | StepBatch | JobShape | Heartbeat | SchedulerState | NodeEvent


# ------------------------------------------------------------------ evidence and attribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A line that a signature (or a parsed traceback) explains.

    `order` is the position in the attempt's whole input: comparable within one file, and across files
    only where `at` is known. `is_survived`: training went on after it; `is_after_completion`: the run had
    said before that it was done; `steps_before`: how many
    steps the writer had completed by then, as far as the log shows. `rank` and `node` are those of the
    writer, `captures` hold what the line says of others. `count` is how many such lines were folded into
    this one, `last_order` where the last of them stood.
    """

    signature: SignatureId
    title: str
    failure: FailureName
    role: Role
    severity: Severity
    where: LogRef
    order: int
    stream: Stream
    text: str
    at: datetime | None = None
    rank: Rank | None = None
    node: NodeName | None = None
    captures: Captures = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
    count: int = 1
    last_order: int = 0
    action: Action | None = None
    accuses_node: str = "writer"
    does_not_prove: str = ""
    maturity: str = "stable"
    excuses: tuple[FailureName, ...] = ()
    excuses_earlier_only: bool = False
    is_survived: bool = False
    is_after_completion: bool = False
    steps_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A node or rank accused of a failure, with the evidence that accuses it."""

    node: NodeName | None = None
    rank: Rank | None = None
    gpu: str | None = None
    score: float = 1.0
    is_independent: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loser:
    """A claim that did not become the root, and what it lost to."""

    signature: SignatureId
    failure: FailureName
    where: LogRef
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What failed, where, and how sure the evidence makes us.

    `suspects` are the nodes that the evidence accuses; `rank_nodes` are where the culprit ranks ran, which
    accuses nobody: a process that failed says little of its node.
    """

    failure: FailureName
    failure_class: FailureClass
    evidence_status: EvidenceStatus
    root: Evidence | None = None
    ranks: tuple[Rank, ...] = ()
    rank_nodes: tuple[NodeName, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    losers: tuple[Loser, ...] = ()
    confirmations: tuple[LogRef, ...] = ()
    summary: str = ""
    action: Action | None = None
    attributor: str = "builtin"
    last_step: int | None = None
    made_progress: Progress = Progress.UNKNOWN

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return tuple(dict.fromkeys(s.node for s in self.suspects if s.node is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An entry of the taxonomy. `depth`: the lower explains the higher when both are in one log."""

    name: FailureName
    failure_class: FailureClass
    meaning: str
    action: Action
    retries: int
    depth: int
    notes: str = ""
    explains: tuple[FailureName, ...] = ()


Taxonomy = Mapping[FailureName, Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """A claim of one detector; detection latency is `detected_at - onset_at`.

    `scope` is what is meant: `job` (culprit unknown), `rank`, `node` or `stage` (an imbalance of the
    workload, which accuses nobody). `detail` holds JSON values of the detector's own.
    """

    attempt: AttemptId
    kind: AnomalyKind
    detector: str
    onset_at: datetime
    detected_at: datetime
    score: float
    threshold: float | None = None
    baseline: float | None = None
    evidence: Sequence[LogRef] = ()
    summary: str = ""
    rank: Rank | None = None
    node: NodeName | None = None
    scope: str = Scope.JOB
    detail: Mapping[str, Any] = field(default_factory=dict)
    tier: Tier = Tier.CONFIRMED

    @property
    def latency_s(self) -> float:
        """Seconds from the onset to the claim; never below zero."""
        return max((self.detected_at - self.onset_at).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A node kept out of the next attempts until `expires_at`."""

    node: NodeName
    reason: str
    score: float
    expires_at: datetime
    scope: str = "workload"
    source: str = "policy"
