# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From a growing file to a verdict: follow, read progress, detect, with a restart of the service in between."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from detectors.hang import HangDetector
from detectors.progress import ProgressReader
from relight.types import Anomaly, AttemptId, LogLine, Scope, Tier
from service.adapters.log_cursor import CursorStore
from service.adapters.log_roots import LogRoots
from service.adapters.log_tail import Followed, LogTail
from service.diagnosis import Diagnostician

JOB = AttemptId("job.0")
T0 = datetime(2026, 1, 2, tzinfo=UTC)


class House:
    """The parts of the service that watch one log, in virtual time; `restart` keeps only what is stored."""

    def __init__(self, folder: Path, shipped: Diagnostician) -> None:
        self.log, self.now, self.shipped = folder / "job.out", T0, shipped
        self.found: list[Anomaly] = []
        self.steps: list[int] = []
        self.detector = HangDetector(shipped.signatures)
        self.start()

    def start(self) -> None:
        folder = self.log.parent
        self.reader = ProgressReader(self.shipped.progress)
        self.tail = LogTail(LogRoots([folder]), CursorStore(folder / "cursors"), self.deliver)
        self.tail.follow(Followed(attempt=JOB, path=str(self.log)))

    def restart(self) -> None:
        state = json.loads(json.dumps(self.detector.snapshot()))
        self.detector = HangDetector(self.shipped.signatures)
        self.detector.restore(state)
        self.start()

    def deliver(self, _: AttemptId, lines: Sequence[LogLine]) -> None:
        for line in lines:
            self.found += self.detector.observe(line)
            for seen in self.reader.read_all([line], self.now):
                self.found += self.detector.observe(seen)
                self.steps += [seen.step] if seen.step is not None else []

    def tick(self, seconds: float = 2.0) -> None:
        self.now += timedelta(seconds=seconds)
        self.tail.tick(self.now)
        self.found += self.detector.overdue(self.now)


def megatron(step: int) -> str:
    return (
        f" iteration {step:8d}/    5000 | consumed samples: {step * 32:12d} | elapsed time per iteration (ms): 2001.3 | "
        f"global batch size:    32 | lm loss: 2.611034E+00 | loss scale: 1.0 | grad norm: 0.312 |\n"
    )


def test_a_job_that_stops_is_found_over_a_restart_and_no_step_is_lost_or_doubled(
    tmp_path: Path, shipped: Diagnostician
) -> None:
    house = House(tmp_path, shipped)
    for step in range(1, 201):
        with house.log.open("a") as out:
            out.write(megatron(step))
        if step in (60, 140):
            house.restart()
        house.tick()
    assert house.steps == list(range(1, 201))
    assert house.found == []
    for _ in range(300):
        house.tick()
    assert [a.tier for a in house.found] == [Tier.SUSPECT, Tier.CONFIRMED]
    hang = house.found[-1]
    assert (hang.scope, hang.rank) == (Scope.JOB, None)
    assert hang.evidence[0].line == 200


def test_a_progress_bar_without_line_ends_is_progress(tmp_path: Path, shipped: Diagnostician) -> None:
    house = House(tmp_path, shipped)
    for step in range(1, 400):
        with house.log.open("a") as out:
            out.write(f"\r 31%|###1      | {step}/1000 [05:10<11:30,  2.00s/it]")
        house.tick()
    assert house.found == []
    assert house.steps[-1] == 398  # the newest rewrite is not known to be whole yet


def test_lines_that_come_late_and_together_are_no_pause_beyond_their_delay(
    tmp_path: Path, shipped: Diagnostician
) -> None:
    house = House(tmp_path, shipped)
    for first in range(1, 2000, 10):
        with house.log.open("a") as out:
            out.write("".join(megatron(step) for step in range(first, first + 10)))
        for _ in range(10):
            house.tick()
    assert house.found == []
