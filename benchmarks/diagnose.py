# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How long `relight diagnose` takes on a long job log, beside Drain3 alone on the same lines.

Whole processes are timed, start-up included, alternating, medians of the rounds. Another peer can be added by
naming a command in RELIGHT_BENCH_PEER, with {log} where the log's path goes. The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.job_log import write_job_log

EXPECTED = "gpu_fell_off_bus"
OURS = [sys.executable, "-c", "from service.cli import main; main()", "diagnose", "--json"]
DRAIN3 = [sys.executable, "-W", "ignore", "-m", "benchmarks.drain3_alone"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=300_000)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "job.log")
        size = write_job_log(log, asked.lines)
        print(f"{asked.lines} lines, {size / 1e6:.1f} MB, {asked.rounds} rounds, Python {platform.python_version()}")
        programs = {"relight diagnose": [*OURS, str(log)], "drain3 alone": [*DRAIN3, str(log)]}
        if peer := os.environ.get("RELIGHT_BENCH_PEER"):
            programs["peer"] = [part.format(log=log) for part in shlex.split(peer)]
        seconds = measured(programs, asked.rounds)
    medians = {name: statistics.median(taken) for name, taken in seconds.items()}
    ours = medians["relight diagnose"]
    for name, median in medians.items():
        spread = f"{min(seconds[name]):.2f} - {max(seconds[name]):.2f} s"
        print(
            f"{name:<18} {median:7.2f} s  ({spread})  {asked.lines / median:10,.0f} lines/s  {median / ours:6.1f} x ours"
        )
    print(
        json.dumps(
            {
                "benchmark": "diagnose",
                "lines": asked.lines,
                "bytes": size,
                "rounds": asked.rounds,
                "python": platform.python_version(),
                "cpus": os.cpu_count(),
                "seconds": seconds,
                "ratio": {name: median / ours for name, median in medians.items()},
            }
        )
    )


def measured(programs: dict[str, list[str]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each program and round; the programs take turns, so that noise meets all of them."""
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, command in programs.items():
            began = time.perf_counter()
            said = run(command)
            seconds[name].append(time.perf_counter() - began)
            if name == "relight diagnose" and EXPECTED not in said:
                raise SystemExit(f"relight diagnose did not name {EXPECTED}: {said[:400]}")
    return seconds


def run(command: Sequence[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: something failed, as it should
        raise SystemExit(f"{command[-2:]} ended with {done.returncode}: {done.stderr[-400:]}")
    return done.stdout


if __name__ == "__main__":
    main()
