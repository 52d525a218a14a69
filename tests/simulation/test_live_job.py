# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A real job of real processes beside a real service: hung, killed, and followed over a restart of the service."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from relight.events import SignalAccepted
from relight.ports import AuditFilter
from service.bootstrap import clock, open_audit
from service.config import Settings
from service.live_job import WORLD, Hang, hang_of, live_job, until
from tests.simulation.watched_service import settings_of, watching

STEPS = ("--steps", "100000", "--step-s", "0.05")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir()
    return tmp_path


def hang_when(folder: Path, *flags: str, patience: float, is_reporting: bool) -> tuple[Hang, str]:
    with (
        watching(settings_of(folder, patience), folder) as (watched, reporting),
        live_job(folder / "run", "live", reporting if is_reporting else None, (*STEPS, *flags)) as job,
    ):
        watched.put("RUNNING", clock().now(), job.logs)
        return hang_of(watched, job), watched.told()["incident_id"] or ""


def test_a_stopped_rank_is_a_hang_that_names_it_by_its_heartbeats(folder: Path) -> None:
    hang, incident = hang_when(folder, patience=0.1, is_reporting=True)
    assert (hang.scope, hang.rank) == ("rank", 1)
    assert hang.incident == incident != ""
    assert hang.after_s < 20


def test_with_rank_0_lines_only_the_hang_has_no_culprit(folder: Path) -> None:
    hang, incident = hang_when(folder, "--log-ranks", "rank0", patience=0.02, is_reporting=False)
    assert (hang.scope, hang.rank) == ("job", None)
    assert "culprit unknown" in hang.summary
    assert hang.incident == incident != ""


def test_a_killed_rank_is_an_incident_within_ten_seconds_of_its_line(folder: Path) -> None:
    with (
        watching(settings_of(folder, patience=1.0), folder) as (watched, reporting),
        live_job(folder / "run", "live", reporting, STEPS) as job,
    ):
        watched.put("RUNNING", clock().now(), job.logs)
        until(lambda: watched.reached(10), "step 10")
        job.signalled(2, signal.SIGKILL)
        launcher = folder / "run" / "logs" / "launcher.log"
        until(lambda: "exitcode: -9" in launcher.read_text() or None, "the launcher's line")
        began = time.monotonic()
        crash = until(lambda: watched.anomaly("crash"), "a crash anomaly", within_s=10)
        assert time.monotonic() - began < 10
        assert crash["incident_id"] == watched.told()["incident_id"]
        assert watched.told()["state"] == "RUNNING"


def test_a_restart_of_the_service_loses_and_doubles_no_line(folder: Path) -> None:
    settings = settings_of(folder, patience=1.0)
    with live_job(folder / "run", "live", None, ("--steps", "150", "--step-s", "0.02")) as job:
        logs = [Path(path) for path in job.logs]
        with watching(settings, folder) as (watched, _):
            watched.put("RUNNING", clock().now(), job.logs)
            until(lambda: watched.reached(20), "step 20")
        with watching(settings, folder) as (watched, _):
            until(lambda: watched.reached(150), "the last step")
            until(lambda: all("finished at step 150" in one.read_text() for one in logs[:WORLD]) or None, "the end")
            written = {str(one): one.read_text().count("\n") for one in logs}
            until(lambda: watched.told()["log_lines"] >= sum(written.values()) or None, "the last line")
    assert taken_in(settings) == written


def taken_in(settings: Settings) -> dict[str, int]:
    """The last number on record of each file; every batch must go on where the one before it ended."""
    audit = open_audit(settings)
    last: dict[str, int] = {}
    for stored in audit.read(limit=100_000, where=AuditFilter(kinds=("signal.accepted",))):
        assert isinstance(stored.event, SignalAccepted)
        for file, number in stored.event.counts.get("files", {}).items():
            assert number - last.get(file, 0) == stored.event.counts["lines"]
            last[file] = number
    audit.close()
    return last


def test_nothing_of_the_job_stays_behind(folder: Path) -> None:
    with live_job(folder / "run", "live", None, STEPS) as job:
        files = [folder / "run" / "pids" / f"rank{rank}.json" for rank in range(WORLD)]
        until(lambda: all(file.exists() for file in files) or None, "all ranks")
        pids = [job.pid(rank) for rank in range(WORLD)]
        job.signalled(1, signal.SIGSTOP)
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
