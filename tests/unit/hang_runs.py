# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Runs of a job in virtual time, for tests of the hang detector."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from detectors.hang import HangDetector
from relight.types import (
    Anomaly,
    AttemptId,
    AttemptState,
    Observation,
    Phase,
    Rank,
    SchedulerState,
    StepProgress,
    Tier,
)

T0 = datetime(2026, 1, 2, tzinfo=UTC)
JOB = AttemptId("job.0")
WATCHDOG = (
    "[rank3]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=118, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600042 milliseconds"
)


@dataclass
class Run:
    """A detector in virtual time, ticked every five seconds."""

    detector: HangDetector = field(default_factory=HangDetector)
    now_s: float = 0.0
    found: list[Anomaly] = field(default_factory=list)

    def at(self, seconds: float) -> datetime:
        return T0 + timedelta(seconds=seconds)

    def wait(self, seconds: float) -> Run:
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s = min(end, self.now_s + 5.0)
            self.found += self.detector.overdue(self.at(self.now_s))
        return self

    def see(self, *seen: Observation) -> Run:
        for one in seen:
            self.found += self.detector.observe(one)
        return self

    def train(self, steps: Iterable[int], *, every_s: float = 5.0, ranks: Sequence[int] = ()) -> Run:
        for number in steps:
            self.wait(every_s)
            for rank in ranks or (None,):
                self.see(step(number, self.at(self.now_s), rank))
        return self

    @property
    def tiers(self) -> list[Tier]:
        return [anomaly.tier for anomaly in self.found]

    @property
    def confirmed(self) -> list[Anomaly]:
        return [anomaly for anomaly in self.found if anomaly.tier is Tier.CONFIRMED]


def step(number: int, at: datetime, rank: int | None = None, attempt: AttemptId = JOB) -> StepProgress:
    return StepProgress(attempt=attempt, at=at, step=number, rank=Rank(rank) if rank is not None else None)


def phase(kind: Phase, at: datetime, *, is_completed: bool = False) -> StepProgress:
    return StepProgress(attempt=JOB, at=at, phase=kind, is_completed=is_completed)


def state(of: AttemptState, at: datetime, reason: str = "") -> SchedulerState:
    return SchedulerState(attempt=JOB, at=at, state=of, reason=reason)


def trained() -> Run:
    return Run().train(range(1, 60))
