# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`python -m examples.launch --world N --run DIR`: starts the ranks of an example job on this machine."""

from __future__ import annotations

import argparse
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.job_options import add_job_flags
from examples.run_folder import RunFolder

_PROJECT = Path(__file__).parent.parent
_FORMS = {"numpy": "examples.ddp_numpy", "torch": "examples.ddp_torch"}
_LOOK_EVERY_S = 0.05
_KILL_AFTER_S = 3.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What to start, and how often again. `grace_s` lets the other ranks say what they saw of a failure."""

    form: str
    world: int
    folder: RunFolder
    flags: Sequence[str]
    max_restarts: int
    grace_s: float


class Terminated(Exception):
    """The launcher itself was asked to end."""


class Launcher:
    """Starts all ranks, and ends all of them once one has failed, as elastic launchers do."""

    def __init__(self, orders: Orders, environ: Mapping[str, str]) -> None:
        self._orders = orders
        self._environ = environ
        self._log = logging.getLogger("launcher")

    def run(self) -> int:
        """Exit code 0 if every rank of some attempt ended well."""
        for attempt in range(self._orders.max_restarts + 1):
            if self._attempt(attempt):
                return 0
            self._log.error("attempt %d failed, %d restarts left", attempt, self._orders.max_restarts - attempt)
        return 1

    def _attempt(self, attempt: int) -> bool:
        ranks = self._start(attempt)
        try:
            failed = self._watch(ranks)
        finally:
            self._end(ranks)
        return not failed

    def _start(self, attempt: int) -> dict[int, subprocess.Popen[bytes]]:
        orders = self._orders
        orders.folder.logs.mkdir(parents=True, exist_ok=True)
        with socket.create_server(("127.0.0.1", 0), backlog=orders.world) as desk:
            self._log.info("starting %d ranks, attempt %d, folder %s", orders.world, attempt, orders.folder.path)
            return {rank: self._rank(rank, attempt, desk) for rank in range(orders.world)}

    def _rank(self, rank: int, attempt: int, desk: socket.socket) -> subprocess.Popen[bytes]:
        """One rank. Rank 0 of the NumPy form inherits the listening socket, so that no port is raced for."""
        orders = self._orders
        port = desk.getsockname()[1]
        command = [sys.executable, "-m", _FORMS[orders.form], "--rank", str(rank), "--world", str(orders.world)]
        command += ["--run", str(orders.folder.path), "--master", f"127.0.0.1:{port}", *orders.flags]
        hands_over = rank == 0
        if hands_over:
            command += ["--listen-fd", str(desk.fileno())]
        environ = {
            **self._environ,
            "RELIGHT_NODE": f"node{rank + 1}",
            "RELIGHT_RANK": str(rank),
            "RELIGHT_RESTART_COUNT": str(attempt),
            "PYTHONUNBUFFERED": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        if attempt and "RELIGHT_ATTEMPT_ID" in environ:
            environ["RELIGHT_ATTEMPT_ID"] += f".{attempt}"
        with (orders.folder.logs / f"rank{rank}.log").open("ab") as log:
            return subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                command, cwd=_PROJECT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                pass_fds=(desk.fileno(),) if hands_over else (),
            )  # fmt: skip

    def _watch(self, ranks: Mapping[int, subprocess.Popen[bytes]]) -> bool:
        """Wait until all ranks have ended, or the first that failed and the others' grace."""
        until = float("inf")
        told: set[int] = set()
        while any(rank.poll() is None for rank in ranks.values()) and time.monotonic() < until:
            time.sleep(_LOOK_EVERY_S)
            for number, process in ranks.items():
                if process.poll() and number not in told:
                    told.add(number)
                    until = min(until, time.monotonic() + self._orders.grace_s)
                    self._log.error(
                        "failed (exitcode: %d) local_rank: %d (pid: %d) of binary: %s",
                        process.returncode, number, process.pid, sys.executable,
                    )  # fmt: skip
        return any(process.poll() != 0 for process in ranks.values())

    def _end(self, ranks: Mapping[int, subprocess.Popen[bytes]]) -> None:
        """SIGTERM, then SIGKILL: a stopped process takes only the second."""
        left = {number: process for number, process in ranks.items() if process.poll() is None}
        for number, process in left.items():
            self._log.warning("Sending process %d closing signal SIGTERM (rank %d)", process.pid, number)
            process.terminate()
        deadline = time.monotonic() + _KILL_AFTER_S
        for process in left.values():
            try:
                process.wait(max(deadline - time.monotonic(), 0))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--form", choices=sorted(_FORMS), default="numpy")
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--run", type=Path, required=True)
    parser.add_argument("--max-restarts", type=int, default=0)
    parser.add_argument("--grace-s", type=float, default=1.0)
    job = argparse.ArgumentParser(add_help=False)
    add_job_flags(job)
    said, flags = parser.parse_known_args()
    job.parse_args(flags)
    folder = RunFolder(said.run.absolute())
    _open_log(folder)
    signal.signal(signal.SIGTERM, _terminated)
    orders = Orders(
        form=said.form, world=said.world, folder=folder, flags=flags, max_restarts=said.max_restarts,
        grace_s=said.grace_s,
    )  # fmt: skip
    try:
        return Launcher(orders, os.environ).run()  # noqa: TID251 -- handed on to the ranks
    except (KeyboardInterrupt, Terminated):
        return 128 + signal.SIGTERM


def _terminated(*_: object) -> None:
    raise Terminated


def _open_log(folder: RunFolder) -> None:
    folder.logs.mkdir(parents=True, exist_ok=True)
    formatter = logging.Formatter("%(asctime)s [launcher] %(levelname)s %(message)s")
    formatter.converter = time.gmtime
    log = logging.getLogger("launcher")
    log.setLevel(logging.INFO)
    for handler in (logging.StreamHandler(sys.stderr), logging.FileHandler(folder.logs / "launcher.log")):
        handler.setFormatter(formatter)
        log.addHandler(handler)


if __name__ == "__main__":
    sys.exit(main())
