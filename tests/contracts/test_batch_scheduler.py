# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The fake scheduler keeps the contract of a real one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from relight.jobs import BatchScheduler
from relight.testing.scheduler import BatchSchedulerContract, FakeSlurm


class _Clock:
    at = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at


class TestFakeSlurm(BatchSchedulerContract):
    @pytest.fixture(autouse=True)
    def fake(self) -> None:
        self._clock = _Clock()
        self._slurm = FakeSlurm(self._clock)

    def scheduler(self) -> BatchScheduler:
        return self._slurm

    def now(self) -> datetime:
        return self._clock.at

    def submit(self, *, nodes: int = 1, requeueable: bool = True, exclude: tuple[str, ...] = ()) -> str:
        return self._slurm.submit(nodes, requeueable=requeueable, exclude=exclude)

    def fail(self, job_id: str) -> None:
        self._slurm.end(job_id, exit_code=3)

    def wait(self, claim: Callable[[], bool]) -> None:
        for _ in range(300):
            if claim():
                return
            self._clock.at += timedelta(seconds=1)
        raise AssertionError("it never came true")
