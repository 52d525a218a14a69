# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The words that every part uses: identifiers, and the closed sets of what may be said."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import NewType

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
    """Who or what asked for advice; `detected` is nobody: a job that runs calls for it."""

    EXITED = "exited"
    MANUAL = "manual"
    EXTERNAL = "external"
    DETECTED = "detected"


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


class Phase(StrEnum):
    """What a training job is doing: each phase has its own idea of how long a pause is usual."""

    START = "start"
    STEP = "step"
    CHECKPOINT = "checkpoint"
    EVALUATION = "evaluation"
    DATA = "data"
    END = "end"
