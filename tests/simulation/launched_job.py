# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A launched example job as tests see it: its processes, its logs, and what its ranks report."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from examples.run_folder import RunFolder
from service.commands.inject import app

PROJECT = Path(__file__).parents[2]
WORLD = 3
WITHIN_S = 30.0


class Job:
    """A launched job of three ranks; `python` is the interpreter of the launcher and so of its ranks."""

    def __init__(
        self, path: Path, *flags: str, form: str = "numpy", python: str = sys.executable, within_s: float = WITHIN_S
    ) -> None:
        self.folder, self.within_s = RunFolder(path), within_s
        command = [python, "-m", "examples.launch", "--form", form, "--world", str(WORLD), "--run", str(path)]
        environ = {
            **os.environ,
            "RELIGHT_ATTEMPT_ID": "a1",
            "RELIGHT_SIGNALS_FILE": str(path / "signals"),
            "RELIGHT_TIMING_INTERVAL_S": "0",
            "RELIGHT_HEARTBEAT_S": "0.1",
            "RELIGHT_FLUSH_S": "0.05",
            "RELIGHT_STALL_S": "0.5",
        }
        self.process = subprocess.Popen(
            [*command, "--grace-s", "0.3", *flags], cwd=PROJECT, env=environ, stderr=subprocess.DEVNULL
        )

    def log(self, name: str = "rank0") -> str:
        file = self.folder.logs / f"{name}.log"
        return file.read_text() if file.exists() else ""

    def steps(self, rank: int = 0) -> list[int]:
        return [int(number) for number in re.findall(r" step=(\d+)/", self.log(f"rank{rank}"))]

    def reaches(self, step: int) -> None:
        """Wait until every rank has logged a step, and so has begun the next."""
        self.until(lambda: all(max(self.steps(rank), default=0) >= step for rank in range(WORLD)), f"step {step}")

    def inject(self, *words: object) -> None:
        given = [str(word) for word in (words[0], "--run", self.folder.path, *words[1:])]
        done = CliRunner().invoke(app, given)
        assert done.exit_code == 0, done.output

    def ends(self) -> int:
        return self.process.wait(self.within_s)

    def signals(self, rank: int, kind: str) -> list[dict[str, Any]]:
        file = self.folder.path / f"signals.rank{rank}"
        text = file.read_text() if file.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()  # the last line may still be being written
        return [item for item in map(json.loads, whole) if kind in item]

    def until(self, holds: Callable[[], bool], what: str) -> None:
        until(holds, what, self.within_s)

    def close(self) -> None:
        """Whatever happened, nothing stays behind: the launcher ends its ranks, stopped ones too."""
        self.process.terminate()
        try:
            self.process.wait(self.within_s)
        finally:
            for rank in range(WORLD):
                with contextlib.suppress(OSError, ValueError, KeyError):
                    os.kill(json.loads(self.folder.pid_file(rank).read_text())["pid"], signal.SIGKILL)


def until(holds: Callable[[], bool], what: str, within_s: float = WITHIN_S) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, f"not within {within_s}s: {what}"
        time.sleep(0.02)


def last_loss(text: str) -> str:
    return str(re.findall(r"loss=(\S+)", text)[-1])
