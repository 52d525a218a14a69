# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A log that fell silent before somebody ended the job is a hang; one that was working to the end is not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from detectors.log_text import LogText, read_log
from relight.types import Stream
from service.diagnosis import Diagnosis, Diagnostician

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def job(shipped: Diagnostician, silent: timedelta, last: int = 60) -> Diagnosis:
    steps = [f"{START + timedelta(seconds=n):%Y-%m-%d %H:%M:%S},000 INFO step={n} loss=2.0" for n in range(1, last + 1)]
    cancelled = START + timedelta(seconds=last) + silent
    order = f"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT {cancelled:%Y-%m-%dT%H:%M:%S} ***"
    control = f"[{cancelled:%Y-%m-%dT%H:%M:%S}.000] _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=7 uid 1000"
    logs: tuple[LogText, ...] = (
        read_log("job.log", "\n".join([*steps, order]).encode(), Stream.APPLICATION),
        read_log("slurmctld.log", control.encode(), Stream.SCHEDULER),
    )
    return shipped.judge(logs, at=cancelled)


def test_a_cancel_after_long_silence_answers_a_hang(shipped: Diagnostician) -> None:
    said = job(shipped, timedelta(minutes=5))
    assert said.attribution.failure == "silent_hang"
    assert said.attribution.root is not None
    assert said.attribution.root.where.line == 60
    assert said.verdict.action.value == "stop"  # the user ended it: respected


def test_a_cancel_in_mid_work_is_just_a_cancel(shipped: Diagnostician) -> None:
    assert job(shipped, timedelta(seconds=3)).attribution.failure == "user_cancelled"


def test_silence_below_ten_usual_gaps_is_no_hang(shipped: Diagnostician) -> None:
    assert job(shipped, timedelta(seconds=15)).attribution.failure == "user_cancelled"
