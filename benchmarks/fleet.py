# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A simulated fleet in virtual time: jobs of thousands of ranks, with phases, noise and faults by seed.

Noise as measured on public step traces of real pre-training jobs: within-rank scatter 0.4 % (fixed sequence length)
or 11 % (variable length), nearly white, heavy-tailed; static rank offsets below 2 %; a heavier last stage;
pauses for checkpoints, evaluations and data. Tune on seeds below 100, report seeds from 100 on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

DAY_S = 86_400.0
FIRST_TEST_SEED = 100
_BLOCK = 256
_COMMUNICATION = 0.2
_TAIL_DF = 10.0

Floats = NDArray[np.float64]


class What(StrEnum):
    STEP = "step"
    CHECKPOINT_BEGUN = "checkpoint_begun"
    CHECKPOINT_COMPLETED = "checkpoint_completed"
    EVALUATION = "evaluation"
    DATA_STALL = "data_stall"
    HANG = "hang"


class FaultKind(StrEnum):
    SLOW_RANK = "slow_rank"
    SLOW_NODE = "slow_node"
    INTERMITTENT = "intermittent"
    SLOW_NETWORK = "slow_network"
    SLOW_JOB = "slow_job"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A slowdown by `factor` from `at_s` on, of one rank, of its node, of the network or of everything."""

    kind: FaultKind
    at_s: float
    factor: float
    rank: int = 0
    lasts_s: float = float("inf")
    duty: float = 1.0


@dataclass(frozen=True, slots=True)
class Event:
    """What happened at a virtual time; `compute` holds the ranks' own work of a step, in seconds."""

    at_s: float
    what: What
    step: int
    wall_s: float = 0.0
    tokens: int = 0
    compute: Floats | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPlan:
    """What a seed makes of a job; every figure may be overridden."""

    seed: int
    ranks: int = 64
    ranks_per_node: int = 8
    stages: int = 4
    step_s: float
    sigma: float
    offset_sigma: float
    last_stage: float
    checkpoint_every: int
    checkpoint_s: float
    is_async: bool
    eval_every: int | None
    eval_s: float
    stalls_per_day: float = 3.0
    start_s: float
    warm_up_steps: int
    tokens: int = 1 << 22
    ramp_at_s: float | None = None
    ramp: float = 1.0
    drift_ratio: float = 0.0
    faults: tuple[Fault, ...] = field(default=())

    @property
    def stage_of(self) -> NDArray[np.int64]:
        return np.arange(self.ranks) * self.stages // self.ranks


def plan(seed: int, *, ranks: int = 64, is_variable: bool | None = None, faults: tuple[Fault, ...] = ()) -> JobPlan:
    """Draw a job. `is_variable` chooses variable sequence lengths (11 % scatter) over fixed ones (0.4 %)."""
    draw = np.random.default_rng([seed, 7])
    step_s = float(np.exp(draw.uniform(np.log(2.0), np.log(30.0))))
    variable = bool(draw.random() < 0.5) if is_variable is None else is_variable
    is_async = bool(draw.random() < 0.5)
    checkpoint_min = float(draw.uniform(15.0, 90.0))
    has_eval = bool(draw.random() < 0.7)
    has_ramp = bool(draw.random() < 0.25)
    stages = min(4, ranks)
    return JobPlan(
        seed=seed, ranks=ranks, stages=stages, step_s=step_s,
        sigma=0.11 if variable else 0.004, offset_sigma=0.006 if variable else 0.003,
        last_stage=float(draw.uniform(1.0, 1.6)),
        checkpoint_every=max(10, round(checkpoint_min * 60.0 / step_s / 10.0) * 10),
        checkpoint_s=float(draw.uniform(2.0, 8.0) if is_async else draw.uniform(15.0, 120.0)), is_async=is_async,
        eval_every=max(20, round(float(draw.uniform(25.0, 80.0)) * 60.0 / step_s / 10.0) * 10) if has_eval else None,
        eval_s=float(draw.uniform(30.0, 400.0)), start_s=float(draw.uniform(60.0, 900.0)),
        warm_up_steps=int(draw.integers(5, 21)),
        ramp_at_s=float(draw.uniform(0.2, 0.8)) * DAY_S if has_ramp else None,
        ramp=float(draw.uniform(1.25, 2.0)) if has_ramp else 1.0,
        drift_ratio=float(draw.uniform(-0.015, 0.015)), faults=faults,
    )  # fmt: skip


class Job:
    """Runs a plan: events in order of virtual time, up to `until_s` or, with `hang_at_s`, up to the hang.

    Shapes: `compute` has one value a rank; drawn in blocks, so that 10,000 ranks cost no more than the draw.
    Units:  seconds of virtual time since the job was started.
    """

    def __init__(self, job: JobPlan) -> None:
        self.plan = job
        self._draw = np.random.default_rng([job.seed, 11])
        offsets = self._draw.normal(0.0, job.offset_sigma, job.ranks)
        nodes = self._draw.normal(0.0, job.offset_sigma / 2.0, job.ranks // job.ranks_per_node + 1)
        node_of = np.arange(job.ranks) // job.ranks_per_node
        stage = np.where(job.stage_of == job.stages - 1, job.last_stage, 1.0)
        self._base: Floats = (
            job.step_s * (1.0 - _COMMUNICATION) / job.last_stage * stage * np.exp(offsets + nodes[node_of])
        )
        self._walk: Floats = np.zeros(job.ranks)
        self._common = 0.0
        self._node_of = node_of

    def events(
        self, until_s: float = DAY_S, *, hang_at_s: float | None = None, hangs_in_pause: bool = False
    ) -> Iterator[Event]:
        job, at = self.plan, self.plan.start_s
        step = 0
        stalls = self._stalls(until_s)
        while True:
            for compute in self._block():
                if at >= until_s:
                    return
                if hang_at_s is not None and at >= hang_at_s and not hangs_in_pause:
                    yield Event(at, What.HANG, step)
                    return
                compute = compute * self._slowed(at)
                if step < job.warm_up_steps:
                    compute = compute * (1.0 + 4.0 / (1.0 + step))
                ramped = job.ramp if job.ramp_at_s is not None and at >= job.ramp_at_s else 1.0
                wall = self._wall(compute, at, until_s) * ramped
                step, at = step + 1, at + wall
                yield Event(at, What.STEP, step, wall, int(job.tokens * ramped), compute * ramped)
                for event in self._pauses(step, at, stalls):
                    yield event
                    at = event.at_s
                    if (
                        hang_at_s is not None
                        and hangs_in_pause
                        and at >= hang_at_s
                        and event.what is not What.CHECKPOINT_COMPLETED
                    ):
                        yield Event(at, What.HANG, step)
                        return

    def _block(self) -> Iterator[Floats]:
        job, draw = self.plan, self._draw
        noise = draw.standard_t(_TAIL_DF, (_BLOCK, job.ranks)) * job.sigma * np.sqrt((_TAIL_DF - 2.0) / _TAIL_DF)
        common = draw.normal(0.0, 0.3 * job.sigma, _BLOCK)
        hiccups = np.where(
            draw.random((_BLOCK, job.ranks)) < 1.0 / 600.0, draw.uniform(0.1, 0.5, (_BLOCK, job.ranks)), 0.0
        )
        self._walk = 0.9 * self._walk + draw.normal(0.0, 0.0005, job.ranks)
        for row, shared, hiccup in zip(noise, common, hiccups, strict=True):
            self._common = 0.1 * self._common + float(shared)
            yield self._base * np.exp(row + self._common + self._walk) + hiccup

    def _wall(self, compute: Floats, at: float, until_s: float) -> float:
        network = 1.0
        for fault in self.plan.faults:
            if fault.kind is FaultKind.SLOW_NETWORK and fault.at_s <= at < fault.at_s + fault.lasts_s:
                network *= fault.factor
        slowest = float(compute.max())
        drift = 1.0 + self.plan.drift_ratio * at / until_s
        return (slowest + self.plan.step_s * _COMMUNICATION * network) * drift

    def _slowed(self, at: float) -> Floats:
        factor = np.ones(self.plan.ranks)
        for fault in self.plan.faults:
            if not fault.at_s <= at < fault.at_s + fault.lasts_s or self._draw.random() >= fault.duty:
                continue
            match fault.kind:
                case FaultKind.SLOW_RANK | FaultKind.INTERMITTENT:
                    factor[fault.rank] *= fault.factor
                case FaultKind.SLOW_NODE:
                    factor[self._node_of == self._node_of[fault.rank]] *= fault.factor
                case FaultKind.SLOW_JOB:
                    factor *= fault.factor
                case FaultKind.SLOW_NETWORK:
                    pass
        return factor

    def _stalls(self, until_s: float) -> list[float]:
        count = int(self._draw.poisson(self.plan.stalls_per_day * until_s / DAY_S))
        return sorted(float(x) for x in self._draw.uniform(0.0, until_s, count))

    def _pauses(self, step: int, at: float, stalls: list[float]) -> Iterator[Event]:
        job, draw = self.plan, self._draw
        if step % job.checkpoint_every == 0:
            lasts = job.checkpoint_s * float(np.exp(draw.normal(0.0, 0.15)))
            lasts *= float(draw.uniform(2.0, 5.0)) if draw.random() < 0.05 else 1.0
            yield Event(at, What.CHECKPOINT_BEGUN, step)
            at += lasts
            yield Event(at, What.CHECKPOINT_COMPLETED, step)
        if job.eval_every is not None and step % job.eval_every == 0:
            yield Event(at, What.EVALUATION, step)
            at += job.eval_s * float(np.exp(draw.normal(0.0, 0.1))) * (2.0 if draw.random() < 0.05 else 1.0)
            yield Event(at, What.EVALUATION, step)
        while stalls and stalls[0] <= at:
            stalls.pop(0)
            lasts = float(draw.uniform(5.0, 60.0)) * (4.0 if draw.random() < 0.15 else 1.0)
            yield Event(at + lasts, What.DATA_STALL, step)
            at += lasts
