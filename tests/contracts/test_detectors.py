# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Every detector of slowness and divergence keeps the contract."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

from detectors.divergence import DivergenceDetector
from detectors.slowdown import SlowdownDetector
from detectors.straggler import StragglerDetector
from relight.ports import Detector
from relight.testing.detector import NOON, DetectorContract
from relight.types import AttemptId, Observation, StepProgress
from tests.unit.detection_streams import (
    STEP_S,
    batches,
    falling_loss,
    lines,
    losses,
    shape,
    slow_rank,
    timings,
)

NO_NUMBERS = (math.nan, math.inf, -math.inf, -1.0)


class TestStragglerByBatches(DetectorContract):
    def make(self) -> Detector:
        return StragglerDetector()

    def healthy(self, attempt: AttemptId, steps: int) -> Sequence[Observation]:
        return [shape(attempt), *batches(attempt, steps, seed=101)]

    def faulty(self, attempt: AttemptId) -> Sequence[Observation]:
        return [shape(attempt), *batches(attempt, 300, slow_rank(5, 1.3, 150))]

    def spoilt(self, attempt: AttemptId, after: int) -> Sequence[Observation]:
        some = batches(attempt, 40, first=after, seed=102)
        spoilt = [replace(b, compute_s=[NO_NUMBERS[b.step % 4]] * len(b.ranks)) for b in some[:20]]
        return [*spoilt, *(replace(b, step_s=[NO_NUMBERS[b.step % 4]] * len(b.ranks)) for b in some[20:])]


class TestStragglerByTimings(TestStragglerByBatches):
    def healthy(self, attempt: AttemptId, steps: int) -> Sequence[Observation]:
        return timings(batches(attempt, steps, ranks=4, seed=101))

    def faulty(self, attempt: AttemptId) -> Sequence[Observation]:
        return timings(batches(attempt, 300, slow_rank(2, 1.3, 150), ranks=4))

    def spoilt(self, attempt: AttemptId, after: int) -> Sequence[Observation]:
        some = timings(batches(attempt, 40, first=after, ranks=4, seed=102))
        return [replace(t, compute_s=NO_NUMBERS[t.step % 4], step_s=NO_NUMBERS[t.rank]) for t in some]


class TestSlowdown(DetectorContract):
    def make(self) -> Detector:
        return SlowdownDetector()

    def healthy(self, attempt: AttemptId, steps: int) -> Sequence[Observation]:
        return lines(attempt, steps, seed=101)

    def faulty(self, attempt: AttemptId) -> Sequence[Observation]:
        return lines(attempt, 400, factor=1.2, onset=200)

    def spoilt(self, attempt: AttemptId, after: int) -> Sequence[Observation]:
        at = NOON + timedelta(seconds=STEP_S * after)
        return [
            StepProgress(
                attempt=attempt, at=at + timedelta(seconds=STEP_S * i), step=after + i, step_s=NO_NUMBERS[i % 4],
                throughput=NO_NUMBERS[i % 4], tokens=1_000_000,
            )
            for i in range(60)
        ]  # fmt: skip


class TestDivergence(DetectorContract):
    def make(self) -> Detector:
        return DivergenceDetector()

    def healthy(self, attempt: AttemptId, steps: int) -> Sequence[Observation]:
        return losses(attempt, falling_loss(steps, seed=101), grads=[1.0] * steps)

    def faulty(self, attempt: AttemptId) -> Sequence[Observation]:
        loss = falling_loss(600)
        return losses(attempt, [*loss[:300], *(v + 0.01 * i for i, v in enumerate(loss[300:]))])

    def spoilt(self, attempt: AttemptId, after: int) -> Sequence[Observation]:
        """A loss scaler skips single steps whose gradients overflow: that is its work."""
        rest = falling_loss(after + 60, seed=101)[after:]
        overflow = [math.inf if i % 7 == 0 else 1.0 for i in range(60)]
        return losses(attempt, rest, first=after, grads=overflow)
