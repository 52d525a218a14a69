# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A real data parallel job of real processes: killed, stopped, broken, and resumed."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from examples.run_folder import RunFolder
from tests.simulation.launched_job import PROJECT, WITHIN_S, WORLD, Job, last_loss, until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def started(*flags: str) -> Job:
        jobs.append(Job(tmp_path / "run", *flags))
        return jobs[-1]

    yield started
    for job in jobs:
        job.close()


def test_it_learns_and_resumes_to_the_very_same_loss(start: Callable[..., Job]) -> None:
    quick = ("--step-s", "0.001", "--checkpoint-every", "20")
    whole = start("--steps", "60", "--no-resume", *quick)
    assert whole.ends() == 0
    losses = [float(loss) for loss in re.findall(r"loss=(\S+)", whole.log())]
    assert losses[-1] < 0.8 * losses[0]
    wanted = last_loss(whole.log())
    again = start("--steps", "40", "--no-resume", *quick)
    assert again.ends() == 0
    resumed = start("--steps", "60", *quick)
    assert resumed.ends() == 0
    after = resumed.log().rpartition("resumed from checkpoint")[2]
    assert re.findall(r" step=(\d+)/", after)[0] == "41"
    assert last_loss(after) == wanted


def test_a_killed_rank_is_named_and_the_next_attempt_resumes(start: Callable[..., Job]) -> None:
    job = start("--steps", "60", "--step-s", "0.02", "--checkpoint-every", "10", "--max-restarts", "1")
    job.reaches(15)
    job.inject("kill", "--rank", 1)
    assert job.ends() == 0
    assert re.search(r"failed \(exitcode: -9\) local_rank: 1 ", job.log("launcher"))
    assert "Traceback" not in job.log("rank1")
    assert re.search(r"\[rank2\]: .*(closed by peer|Read error|Write error)", job.log("rank2"))
    resumed_at = re.search(r"resumed from checkpoint \S+ at step (\d+)", job.log())
    assert resumed_at is not None
    assert int(resumed_at[1]) >= 10
    assert job.steps()[-1] == 60


def test_a_stopped_rank_silences_all_and_only_its_own_heartbeat(start: Callable[..., Job]) -> None:
    job = start("--steps", "100000", "--step-s", "0.01")
    job.reaches(5)
    job.inject("stop", "--rank", 2)
    sizes = [-1] * WORLD

    def is_quiet() -> bool:
        before, sizes[:] = list(sizes), [len(job.log(f"rank{rank}")) for rank in range(WORLD)]
        return before == sizes and time.monotonic() > quiet_from

    quiet_from = time.monotonic() + 0.3
    until(is_quiet, "silence")
    beats = [len(job.signals(rank, "heartbeat")) for rank in range(WORLD)]
    until(lambda: all(len(job.signals(r, "heartbeat")) >= beats[r] + 3 for r in (0, 1)), "heartbeats of the waiting")
    assert len(job.signals(2, "heartbeat")) == beats[2]
    assert job.process.poll() is None
    stopped_at = job.steps()[-1]
    job.inject("continue", "--rank", 2)
    job.reaches(stopped_at + 5)


def test_a_stopped_rank_ends_in_a_timeout_of_the_others(start: Callable[..., Job]) -> None:
    job = start("--steps", "100000", "--step-s", "0.01", "--timeout-s", "1")
    job.reaches(3)
    job.inject("stop", "--rank", 1)
    assert job.ends() == 1
    assert "Timed out waiting 1000ms for recv operation to complete" in job.log("rank2")
    assert "Traceback" not in job.log("rank1")


def test_a_looping_rank_stops_beating_while_those_that_wait_go_on(start: Callable[..., Job]) -> None:
    job = start("--steps", "100000", "--step-s", "0.01")
    job.reaches(5)
    job.inject("loop", "--rank", 0)

    def beat_of(rank: int) -> str:
        return str(max((item["event_time"] for item in job.signals(rank, "heartbeat")), default=""))

    until(lambda: bool(beat_of(0)) and seconds(beat_of(1)) - seconds(beat_of(0)) > 1.0, "one heartbeat to stop")
    assert abs(seconds(beat_of(1)) - seconds(beat_of(2))) < 1.0


def seconds(moment: str) -> float:
    return datetime.fromisoformat(moment).timestamp()


def test_a_slow_rank_shows_in_its_local_time_and_in_nobody_elses(start: Callable[..., Job]) -> None:
    job = start("--steps", "100000", "--step-s", "0.005")
    job.reaches(3)
    job.inject("slow", "--rank", 1, "--delay-s", 0.1)
    begun = job.steps()[-1] + 2
    job.reaches(begun + 12)

    def timings(rank: int) -> list[dict[str, Any]]:
        said = [item["step_timing"] for item in job.signals(rank, "step_timing")]
        return [timing for timing in said if begun <= timing["step"] < begun + 10]

    until(lambda: all(len(timings(rank)) == 10 for rank in range(WORLD)), "timings")
    local = [statistics.median(t["compute_s"] for t in timings(rank)) for rank in range(WORLD)]
    whole = [statistics.median(t["step_s"] for t in timings(rank)) for rank in range(WORLD)]
    assert local[1] > 0.1 > 2 * max(local[0], local[2])
    assert max(whole) < 1.3 * min(whole)


def test_an_exception_on_one_rank_comes_first_and_the_others_are_its_echoes(start: Callable[..., Job]) -> None:
    job = start("--steps", "100000", "--step-s", "0.01")
    job.reaches(3)
    job.inject("exception", "--rank", 1)
    assert job.ends() == 1
    assert "[rank1]: ValueError: data shard 1: token id 65021 is out of range" in job.log("rank1")
    assert "ValueError" not in job.log("rank0") + job.log("rank2")
    assert "CollectiveError" in job.log("rank2")


@pytest.mark.parametrize("checks", [[], ["--check-nan"]])
def test_nan_on_one_rank_is_nan_on_all(start: Callable[..., Job], checks: list[str]) -> None:
    job = start("--steps", "40", "--step-s", "0.01", *checks)
    job.reaches(3)
    job.inject("nan", "--rank", 2)
    assert job.ends() == (1 if checks else 0)
    assert all("loss=nan" in job.log(f"rank{rank}") for rank in range(WORLD))
    assert ("FloatingPointError: loss is nan" in job.log("rank1")) == bool(checks)


def test_a_full_disk_fails_the_next_checkpoint_and_keeps_the_last(start: Callable[..., Job]) -> None:
    job = start("--steps", "100000", "--step-s", "0.01", "--checkpoint-every", "10")
    until(lambda: "saved checkpoint step=10 " in job.log(), "the first checkpoint")
    job.inject("full-disk", "--rank", 0)
    assert job.ends() == 1
    assert "OSError: [Errno 28] No space left on device" in job.log("rank0")
    said = [item["progress"] for item in job.signals(0, "progress") if "checkpoint_step" in item["progress"]]
    begun, completed = ([p["checkpoint_step"] for p in said if p["kind"] == kind] for kind in ("started", "completed"))
    kept = json.loads((job.folder.checkpoints / "latest.json").read_text())["step"]
    assert completed[-1] == kept
    assert completed in (begun, begun[:-1])


def test_a_damaged_checkpoint_is_not_passed_over(start: Callable[..., Job]) -> None:
    flags = ("--step-s", "0.001", "--checkpoint-every", "10")
    assert start("--steps", "10", *flags).ends() == 0
    (part,) = (RunFolder(start("--steps", "0").folder.path).checkpoints).glob("*/rank1.npz")
    part.write_bytes(part.read_bytes()[: part.stat().st_size // 2])
    job = start("--steps", "20", "--start-timeout-s", "5", *flags)
    assert job.ends() == 1
    assert "BadZipFile" in job.log("rank1")


def test_one_rank_speaks_for_all_when_only_rank_0_is_logged(start: Callable[..., Job]) -> None:
    job = start("--steps", "10", "--step-s", "0.001", "--log-ranks", "rank0")
    assert job.ends() == 0
    assert job.steps(0) == list(range(1, 11))
    assert job.steps(1) == []


def test_ranks_find_each_other_by_what_slurm_tells_them(tmp_path: Path) -> None:
    ranks = []
    for rank in range(2):
        environ = {
            "SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1", "SLURMD_NODENAME": f"n{rank}", "SLURM_RESTART_COUNT": "1",
        }  # fmt: skip
        command = [sys.executable, "-m", "examples.ddp_numpy", "--run", str(tmp_path), "--steps", "3", "--step-s", "0"]
        ranks.append(subprocess.Popen(command, cwd=PROJECT, env=environ, stdout=subprocess.PIPE, text=True))
    said = [rank.communicate(timeout=WITHIN_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert all(f"[rank{rank}] [n{rank}] INFO training finished at step 3" in said[rank] for rank in range(2))
    assert "attempt=1" in said[0]
