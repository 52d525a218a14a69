# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Streams of observations for the detection tests: deterministic noise, faults of known onset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta

import numpy as np

from relight.testing.detector import NOON
from relight.types import AttemptId, JobShape, NodeName, Rank, StepBatch, StepProgress, StepTiming, WorkloadId

STEP_S = 10.0
RANKS = 16
Slow = Callable[[int, int], float]


def no_fault(step: int, rank: int) -> float:
    return 1.0


def slow_rank(culprit: int, factor: float, onset: int, until: int = 10**9) -> Slow:
    return lambda step, rank: factor if rank == culprit and onset <= step < until else 1.0


def noise(seed: int, *shape: int, sigma: float = 0.01) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    return np.exp(np.random.default_rng(seed).normal(0, sigma, shape))


def batches(
    attempt: AttemptId, steps: int, slow: Slow = no_fault, *, ranks: int = RANKS, sigma: float = 0.01,
    seed: int = 100, stages: Sequence[int] | None = None, heavy_stage: float = 1.0, first: int = 0,
) -> list[StepBatch]:  # fmt: skip
    """One `StepBatch` a step; the wall time is the slowest rank's plus a fifth."""
    jitter = noise(seed, steps, ranks, sigma=sigma)
    made, names = [], tuple(range(ranks))
    for step in range(steps):
        factors = np.array([slow(step, rank) for rank in names])
        work = 8.0 * jitter[step] * factors
        if stages is not None:
            work = work * np.where(np.asarray(stages) == max(stages), heavy_stage, 1.0)
        wall = float(work.max()) + 2.0
        made.append(
            StepBatch(
                attempt=attempt, at=NOON + timedelta(seconds=STEP_S * step), step=first + step, ranks=names,
                step_s=[wall] * ranks, compute_s=work.tolist(), stages=stages,
            )
        )  # fmt: skip
    return made


def timings(some: Sequence[StepBatch]) -> list[StepTiming]:
    """The same, as each rank would send it by itself."""
    return [
        StepTiming(
            attempt=b.attempt, at=b.at + timedelta(milliseconds=rank), rank=Rank(rank), step=b.step,
            step_s=b.step_s[i], compute_s=None if b.compute_s is None else b.compute_s[i],
        )
        for b in some
        for i, rank in enumerate(b.ranks)
    ]  # fmt: skip


def shape(
    attempt: AttemptId, *, ranks: int = RANKS, per_node: int = 4, workload: str | None = None,
    batch: int | None = 512, nodes: Sequence[str] | None = None, stages: Sequence[int] = (),
) -> JobShape:  # fmt: skip
    names = nodes if nodes is not None else [f"node{rank // per_node}" for rank in range(ranks)]
    return JobShape(
        attempt=attempt, at=NOON, world_size=ranks, batch=batch, nodes=tuple(NodeName(n) for n in names),
        stages=tuple(stages), workload=None if workload is None else WorkloadId(workload),
    )  # fmt: skip


def lines(
    attempt: AttemptId, steps: int, *, factor: float = 1.0, onset: int = 10**9, sigma: float = 0.02, seed: int = 100,
    tokens: Callable[[int], int | None] = lambda step: 1_000_000, gap_s: Callable[[int], float] = lambda step: 0.0,
) -> list[StepProgress]:  # fmt: skip
    """What rank 0 prints of each step."""
    jitter, at, made = noise(seed, steps, sigma=sigma), NOON, []
    for step in range(steps):
        work = tokens(step)
        share = 1.0 if work is None else work / 1_000_000
        at += timedelta(seconds=STEP_S * share * float(jitter[step]) * (factor if step >= onset else 1) + gap_s(step))
        made.append(StepProgress(attempt=attempt, at=at, step=step, tokens=work))
    return made


def losses(
    attempt: AttemptId, values: Sequence[float], *, first: int = 0, grads: Sequence[float | None] | None = None,
    is_skipped: Callable[[int], bool | None] = lambda step: None,
) -> list[StepProgress]:  # fmt: skip
    return [
        StepProgress(
            attempt=attempt, at=NOON + timedelta(seconds=STEP_S * i), step=first + i, loss=value,
            grad_norm=None if grads is None else grads[i], is_skipped=is_skipped(i),
        )
        for i, value in enumerate(values)
    ]  # fmt: skip


def falling_loss(steps: int, seed: int = 100) -> list[float]:
    step = np.arange(steps)
    jitter = np.random.default_rng(seed).normal(0, 0.02, steps)
    return [float(v) for v in 2.2 + 6 * (1 + step / 40) ** -0.6 + jitter]
