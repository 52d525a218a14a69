# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The PyTorch DDP form of the job, on gloo: killed, stopped, broken and resumed like the NumPy one."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from service.bootstrap import clock
from service.live_job import Hang, hang_of, live_job, until
from tests.simulation.launched_job import Job, last_loss
from tests.simulation.watched_service import settings_of, watching
from tests.torch_python import require_torch

pytestmark = [pytest.mark.torch, pytest.mark.slow]
PATIENCE_S = 90.0  # each rank imports torch first
STEPS = ("--steps", "100000", "--step-s", "0.05")


@pytest.fixture(scope="module")
def python() -> str:
    return require_torch()


@pytest.fixture
def start(tmp_path: Path, python: str) -> Iterator[Callable[..., Job]]:
    jobs: list[Job] = []

    def started(*flags: str, run: str = "run") -> Job:
        jobs.append(Job(tmp_path / run, *flags, form="torch", python=python, within_s=PATIENCE_S))
        return jobs[-1]

    yield started
    for job in jobs:
        job.close()


def test_a_killed_rank_is_named_and_the_job_resumes_to_the_very_same_loss(start: Callable[..., Job]) -> None:
    flags = ("--steps", "60", "--step-s", "0.03", "--checkpoint-every", "10")
    job, untroubled = start(*flags, "--max-restarts", "1"), start(*flags, run="untroubled")
    job.reaches(15)
    job.inject("kill", "--rank", 1)
    assert job.ends() == 0
    assert re.search(r"failed \(exitcode: -9\) local_rank: 1 ", job.log("launcher"))
    assert "Traceback" not in job.log("rank1")
    # Who is faster: the peer that reads a closed connection, or the agent that ends it.
    lost = re.search(r"\[rank2\]: .*Connection (closed by peer|reset by peer)", job.log("rank2"))
    assert lost or re.search(r"Sending process \d+ closing signal SIGTERM", job.log("launcher"))
    assert re.search(r"resumed from checkpoint \S+ at step [1-5]0", job.log())
    assert all("compute_s" in item["step_timing"] for item in job.signals(2, "step_timing"))
    assert untroubled.ends() == 0
    assert (job.steps()[-1], last_loss(job.log())) == (60, last_loss(untroubled.log()))


def test_an_exception_on_one_rank_comes_first_and_the_others_are_its_echoes(start: Callable[..., Job]) -> None:
    job = start(*STEPS)
    job.reaches(3)
    job.inject("exception", "--rank", 1)
    assert job.ends() == 1
    assert "[rank1]: ValueError: data shard 1: token id 65021 is out of range" in job.log("rank1")
    assert "ValueError" not in job.log("rank0") + job.log("rank2")
    assert "RuntimeError" in job.log("rank2")


def test_nan_on_one_rank_is_nan_on_all(start: Callable[..., Job]) -> None:
    job = start(*STEPS, "--check-nan")
    job.reaches(3)
    job.inject("nan", "--rank", 2)
    assert job.ends() == 1
    assert all("loss=nan" in job.log(f"rank{rank}") for rank in range(3))
    assert any("FloatingPointError: loss is nan" in job.log(f"rank{rank}") for rank in range(3))


def test_a_full_disk_fails_the_next_checkpoint_and_keeps_the_last(start: Callable[..., Job]) -> None:
    job = start(*STEPS, "--checkpoint-every", "10")
    job.until(lambda: "saved checkpoint step=10 " in job.log(), "the first checkpoint")
    job.inject("full-disk", "--rank", 0)
    assert job.ends() == 1
    kept = json.loads((job.folder.checkpoints / "latest.json").read_text())["step"]
    assert re.search(r"\[rank0\]: .*(PytorchStreamWriter|No space left)", job.log("rank0"))
    said = [item["progress"] for item in job.signals(0, "progress") if "checkpoint_step" in item["progress"]]
    assert [one["checkpoint_step"] for one in said if one["kind"] == "completed"][-1] == kept


# ------------------------------------------------------------------ beside a service


def hang_when(folder: Path, python: str, *flags: str, patience: float, is_reporting: bool) -> Hang:
    (folder / "run").mkdir()
    with (
        watching(settings_of(folder, patience), folder) as (watched, reporting),
        live_job(
            folder / "run", "live", reporting if is_reporting else None, (*STEPS, *flags), form="torch", python=python
        ) as job,
    ):
        watched.put("RUNNING", clock().now(), job.logs)
        until(lambda: watched.reached(1), "the first step", within_s=PATIENCE_S)
        hang = hang_of(watched, job)
        assert hang.incident == watched.told()["incident_id"] != ""
        return hang


def test_a_stopped_rank_is_a_hang_that_names_it_by_its_heartbeats(tmp_path: Path, python: str) -> None:
    hang = hang_when(tmp_path, python, patience=0.1, is_reporting=True)
    assert (hang.scope, hang.rank) == ("rank", 1)
    print(f"torch: the hang was confirmed {hang.after_s:.1f} s after the stop")
    assert hang.after_s < 20


def test_with_rank_0_lines_only_the_hang_has_no_culprit(tmp_path: Path, python: str) -> None:
    hang = hang_when(tmp_path, python, "--log-ranks", "rank0", patience=0.02, is_reporting=False)
    assert (hang.scope, hang.rank) == ("job", None)
    assert "culprit unknown" in hang.summary


def test_a_killed_rank_is_an_incident_within_ten_seconds_of_its_line(tmp_path: Path, python: str) -> None:
    (tmp_path / "run").mkdir()
    with (
        watching(settings_of(tmp_path, patience=1.0), tmp_path) as (watched, reporting),
        live_job(tmp_path / "run", "live", reporting, STEPS, form="torch", python=python) as job,
    ):
        watched.put("RUNNING", clock().now(), job.logs)
        until(lambda: watched.reached(10), "step 10", within_s=PATIENCE_S)
        job.signalled(2, signal.SIGKILL)
        launcher = tmp_path / "run" / "logs" / "launcher.log"
        until(lambda: "exitcode: -9" in launcher.read_text() or None, "the launcher's line")
        began = time.monotonic()
        crash = until(lambda: watched.anomaly("crash"), "a crash anomaly", within_s=10)
        assert time.monotonic() - began < 10
        assert crash["incident_id"] == watched.told()["incident_id"]
