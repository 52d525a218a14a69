# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What reaches a detector: a log line, progress, timings, the scheduler's and the node's word."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from relight.types.vocabulary import AttemptId, AttemptState, NodeName, Phase, Rank, Stream, WorkloadId


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
