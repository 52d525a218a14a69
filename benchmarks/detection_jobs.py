# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Synthetic training jobs by seed: step times of all ranks, a log's paces, and losses, with faults of known onset.

Noise is of the size and shape measured in real traces: nearly white, heavy-tailed, 0.4 % in jobs of fixed
sequence length and 11 % in those of variable length; static differences between ranks of some per mille.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from relight.types import AttemptId, JobShape, NodeName, Observation, StepBatch, StepProgress

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
ATTEMPT = AttemptId("job")
RANKS, PER_NODE, STAGES = 64, 8, 4
Matrix = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class RankFault:
    """A slowdown of some ranks: how much, from which step on, for how long and how often."""

    kind: str
    factor: float = 1.0
    onset: int = 0
    ranks: tuple[int, ...] = ()
    steps: int | None = None
    share: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """Own work of every rank in every step, and the wall time of the step."""

    work: Matrix
    wall: NDArray[np.float64]
    step_s: float
    fault: RankFault

    @property
    def shape(self) -> JobShape:
        return JobShape(
            attempt=ATTEMPT, at=NOON, world_size=RANKS,
            nodes=tuple(NodeName(f"node{rank // PER_NODE}") for rank in range(RANKS)),
            stages=tuple(rank % STAGES for rank in range(RANKS)),
        )  # fmt: skip

    def observations(self) -> Iterator[Observation]:
        yield self.shape
        ranks, passed = tuple(range(RANKS)), np.cumsum(self.wall)
        for step, (own, wall) in enumerate(zip(self.work, self.wall, strict=True)):
            at = NOON + timedelta(seconds=float(passed[step]))
            yield StepBatch(
                attempt=ATTEMPT, at=at, step=step, ranks=ranks, compute_s=packed(own), step_s=[float(wall)] * RANKS
            )


def packed(values: Matrix) -> array[float]:
    """The numbers as an array that detectors read without a copy."""
    return array("d", values.tobytes())


def correlated(rng: np.random.Generator, steps: int, rho: float, deviation: float) -> NDArray[np.float64]:
    """A stationary AR(1) series."""
    shocks = rng.normal(0, deviation * np.sqrt(1 - rho**2), steps)
    made = np.empty(steps)
    last = 0.0
    for index, shock in enumerate(shocks):
        last = made[index] = rho * last + shock
    return made


def rank_job(seed: int, steps: int, *, is_variable: bool, fault: RankFault, step_s: float | None = None) -> RankJob:
    rng = np.random.default_rng([seed, is_variable, *fault.kind.encode()])
    step_s = float(rng.uniform(8, 30)) if step_s is None else step_s
    sigma = 0.11 if is_variable else 0.004
    stage = np.ones(STAGES)
    stage[-1] = rng.uniform(1.0, 1.6)
    noise = sigma * rng.standard_t(10, (steps, RANKS)) / np.sqrt(1.25)
    offset = rng.normal(0, 0.003, RANKS) + np.repeat(rng.normal(0, 0.002, RANKS // PER_NODE), PER_NODE)
    walk = np.cumsum(rng.normal(0, 1e-4, (steps, RANKS)), axis=0)
    common = correlated(rng, steps, 0.9, 0.005)[:, None]
    work = step_s * 0.8 * stage[np.arange(RANKS) % STAGES] * np.exp(noise + offset + walk + common)
    work += np.where(rng.random((steps, RANKS)) < 1 / 600, rng.uniform(0.1, 0.5, (steps, RANKS)), 0)
    work[: int(rng.integers(5, 20))] *= rng.uniform(1.1, 2.0)
    work *= _slowness(rng, steps, step_s, fault)
    wall = work.max(axis=1) + 0.2 * step_s * (fault.factor if fault.kind == "network" else 1.0)
    for save in range(int(rng.integers(50, 200)), steps, max(20, int(rng.uniform(900, 5400) / step_s))):
        wall[save] += rng.uniform(2, 120)
    return RankJob(work=work, wall=wall, step_s=step_s, fault=fault)


def _slowness(rng: np.random.Generator, steps: int, step_s: float, fault: RankFault) -> Matrix:
    factor = np.ones((steps, RANKS))
    if not fault.ranks:
        return factor
    until = steps if fault.steps is None else fault.onset + fault.steps
    is_on = np.zeros(steps, dtype=bool)
    is_on[fault.onset : until] = True
    if fault.share < 1:
        burst = max(int(120 / step_s), 2)
        on = np.repeat(rng.random(steps // burst + 1) < fault.share, burst)[:steps]
        on[fault.onset : fault.onset + burst] = True
        is_on &= on
    factor[np.ix_(is_on, np.asarray(fault.ranks))] = fault.factor
    return factor


# ------------------------------------------------------------------ rank 0's lines


@dataclass(frozen=True, kw_only=True)
class LineJob:
    """What rank 0 prints: the time of each step and the tokens in it; a drop sets in at `onset`."""

    times_s: NDArray[np.float64]
    tokens: NDArray[np.int64]
    onset: int
    factor: float

    def observations(self, *, with_tokens: bool = True) -> Iterator[Observation]:
        for step, (at_s, tokens) in enumerate(zip(self.times_s, self.tokens, strict=True)):
            yield StepProgress(
                attempt=ATTEMPT, at=NOON + timedelta(seconds=float(at_s)), step=step,
                tokens=int(tokens) if with_tokens else None,
            )  # fmt: skip


def line_job(seed: int, hours: float, *, factor: float = 1.0) -> LineJob:
    rng = np.random.default_rng(seed)
    step_s = float(rng.uniform(2, 30))
    steps = int(hours * 3600 / step_s)
    sigma = float(rng.choice([0.0045, 0.023, 0.05]))
    pace = step_s * np.exp(sigma * rng.standard_t(10, steps) / np.sqrt(1.25) + correlated(rng, steps, 0.8, 0.006))
    pace *= np.exp(np.linspace(0, rng.uniform(-0.015, 0.015), steps))
    tokens = np.full(steps, 4_194_304, dtype=np.int64)
    if rng.random() < 0.25:
        ramp = np.interp(np.arange(steps), [steps * 0.3, steps * 0.6], [1, rng.uniform(1.25, 2)])
        pace, tokens = pace * ramp, (tokens * ramp).astype(np.int64)
    pace[: int(rng.integers(5, 20))] *= rng.uniform(1.2, 3)
    onset = int(steps * rng.uniform(0.5, 0.6))
    pace[onset:] *= factor
    for save in range(int(rng.integers(50, 150)), steps, max(20, int(rng.uniform(900, 5400) / step_s))):
        pace[save] += rng.uniform(2, 120)
    for stall in rng.integers(0, steps, int(3 * hours / 24) + 1):
        pace[stall] += rng.uniform(5, 60)
    return LineJob(times_s=np.cumsum(pace), tokens=tokens, onset=onset, factor=factor)


# ------------------------------------------------------------------ losses

LOSS_FAULTS = ("none", "nan", "spike_1", "spike_0.3", "divergence", "level_0.3")


def losses(seed: int, fault: str, *, steps: int = 6000, onset: int = 4000) -> NDArray[np.float64]:
    """A falling loss with correlated and heavy-tailed noise; the fault sets in at `onset`."""
    rng = np.random.default_rng(seed)
    step = np.arange(steps)
    loss = rng.uniform(1.8, 2.6) + rng.uniform(4, 8) * (1 + step / rng.uniform(20, 80)) ** -0.6
    sigma = rng.uniform(0.01, 0.03)
    loss = loss + sigma * rng.standard_t(8, steps) + correlated(rng, steps, 0.95, 0.3 * sigma)
    after = np.clip(step - onset, 0, None)
    is_on = step >= onset
    match fault:
        case "nan":
            loss = np.where(is_on, np.nan, loss)
        case "spike_1":
            loss = loss + is_on * 1.0 * np.exp(-after / 15)
        case "spike_0.3":
            loss = loss + is_on * 0.3 * np.exp(-after / 15)
        case "divergence":
            loss = loss + 0.004 * after
        case "level_0.3":
            loss = loss + is_on * 0.3
    return np.asarray(loss)
