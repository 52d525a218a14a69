# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The demo's live part: a small training job on this machine, one of whose ranks is stopped in mid-run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

import httpx

from service.demo import DemoFailed

PROJECT = Path(__file__).parent.parent
WORLD = 3
WITHIN_S = 25.0
HUNG_RANK = 1
WARM_STEPS = 120  # lines come in bunches, and pauses are learnt from the gaps between them
ATTEMPT = "demo-live"
_LOOK_EVERY_S = 0.1
_END_WITHIN_S = 10.0

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """Where the ranks report; None for a job of which only the log is known."""

    url: str
    token_file: Path


class LiveJob:
    """A launched job in `folder`: real processes over TCP, with checkpoints and a log for each rank.

    `form` is numpy, or torch with a `python` that has it.
    """

    def __init__(
        self,
        folder: Path,
        attempt: str,
        reporting: Reporting | None,
        flags: Sequence[str] = (),
        *,
        form: str = "numpy",
        python: str = sys.executable,
    ) -> None:
        self.folder = folder
        said = {"RELIGHT_ATTEMPT_ID": attempt, "RELIGHT_TIMING_INTERVAL_S": "0", "RELIGHT_HEARTBEAT_S": "0.2"}
        said |= {"RELIGHT_FLUSH_S": "0.2", "RELIGHT_STALL_S": "5"}
        if reporting is not None:
            said |= {"RELIGHT_URL": reporting.url, "RELIGHT_TOKEN_FILE": str(reporting.token_file)}
        command = [shutil.which("env") or "env", *(f"{name}={value}" for name, value in said.items())]
        command += [python, "-m", "examples.launch", "--form", form, "--world", str(WORLD), "--run", str(folder)]
        self._process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
            [*command, "--grace-s", "0.3", *flags], cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )

    @property
    def logs(self) -> list[str]:
        """Every log that the job will write, whether it exists yet or not."""
        names = [*(f"rank{rank}" for rank in range(WORLD)), "launcher"]
        return [str(self.folder / "logs" / f"{name}.log") for name in names]

    def signalled(self, rank: int, number: signal.Signals) -> None:
        os.kill(self.pid(rank), number)

    def close(self) -> None:
        """Nothing stays behind: the launcher ends its ranks, and a stopped one takes only SIGKILL."""
        self._process.terminate()
        try:
            self._process.wait(_END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        finally:
            for rank in range(WORLD):
                with suppress(OSError, ValueError, KeyError):
                    os.kill(self.pid(rank), signal.SIGKILL)

    def pid(self, rank: int) -> int:
        """Errors: OSError, ValueError or KeyError before the rank has said it."""
        return int(json.loads((self.folder / "pids" / f"rank{rank}.json").read_text())["pid"])


@contextmanager
def live_job(
    folder: Path,
    attempt: str,
    reporting: Reporting | None,
    flags: Sequence[str] = (),
    *,
    form: str = "numpy",
    python: str = sys.executable,
) -> Iterator[LiveJob]:
    """The job for as long as the block runs. Errors: OSError outside a source tree."""
    if not (PROJECT / "examples" / "launch.py").is_file():
        raise FileNotFoundError(f"{PROJECT / 'examples'} does not exist")
    job = LiveJob(folder, attempt, reporting, flags, form=form, python=python)
    try:
        yield job
    finally:
        job.close()


def until(look: Callable[[], Found | None], what: str, within_s: float = WITHIN_S) -> Found:
    """What `look` finds. Errors: DemoFailed if that is nothing for `within_s`."""
    deadline = time.monotonic() + within_s
    while (found := look()) is None:
        if time.monotonic() >= deadline:
            raise DemoFailed(f"not within {within_s:g} s: {what}")
        time.sleep(_LOOK_EVERY_S)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Hang:
    """The confirmed hang as the service tells it, and how long after the stop it was confirmed."""

    after_s: float
    summary: str
    scope: str
    rank: int | None
    incident: str
    step: int


class Watched:
    """One attempt at a running service, as a client sees it."""

    def __init__(self, client: httpx.Client, attempt: str = ATTEMPT) -> None:
        self._client = client
        self.attempt = attempt

    def put(self, state: str, at: datetime, log_paths: Sequence[str] = ()) -> None:
        body = {
            "workload_id": f"{self.attempt}-workload",
            "scheduler": {"kind": "slurm", "job_id": "2000"},
            "rank_to_node": {str(rank): f"node{rank + 1}" for rank in range(WORLD)},
            "allocated_nodes": [f"node{rank + 1}" for rank in range(WORLD)],
            "gpus_per_node": 1,
            "log_paths": list(log_paths),
            "state": state,
            "observed_at": at.isoformat(),
        }
        self._told(self._client.put(f"/v1/attempts/{self.attempt}", json=body))

    def told(self) -> dict[str, Any]:
        return self._told(self._client.get(f"/v1/attempts/{self.attempt}"))

    def reached(self, step: int) -> int | None:
        """The last step, once it is at least this one."""
        last = self.told()["last_step"]
        return int(last) if last is not None and last >= step else None

    def anomaly(self, kind: str) -> dict[str, Any] | None:
        """The confirmed anomaly of a kind, if there is one."""
        query = {"attempt": self.attempt, "kind": kind}
        items = self._told(self._client.get("/v1/anomalies", params=query))["items"]
        return next((one for one in items if one["tier"] == "confirmed"), None)

    def _told(self, answer: httpx.Response) -> dict[str, Any]:
        if answer.is_error:
            raise DemoFailed(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text}")
        told: dict[str, Any] = answer.json()
        return told


def hang_of(watched: Watched, job: LiveJob, rank: int = HUNG_RANK) -> Hang:
    """Let the job warm up, stop a rank, and wait until the service has confirmed a hang.

    Errors: DemoFailed if it does not in time.
    """
    step = until(lambda: watched.reached(WARM_STEPS), f"step {WARM_STEPS} of the live job")
    job.signalled(rank, signal.SIGSTOP)
    began = time.monotonic()
    found = until(lambda: watched.anomaly("hang"), "a confirmed hang of the stopped job")
    return Hang(
        after_s=time.monotonic() - began,
        summary=found["summary"],
        scope=found["scope"],
        rank=found["rank"],
        incident=found["incident_id"] or "",
        step=step,
    )
