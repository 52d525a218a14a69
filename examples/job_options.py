# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a rank of an example job is told, by flags, by its launcher, or by Slurm."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from examples.run_folder import RunFolder

_FIRST_PORT, _PORTS = 20_000, 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """One rank's orders. Times in seconds; `step_s` is local work that is waited for instead of computed."""

    rank: int
    world: int
    host: str
    port: int
    node: str
    folder: RunFolder
    steps: int
    checkpoint_every: int
    step_s: float
    batch: int
    seed: int
    timeout_s: float
    start_timeout_s: float
    logs_on: str
    checks_nan: bool
    resumes: bool
    attempt: int
    listen_fd: int | None

    @property
    def speaks(self) -> bool:
        """Whether this rank prints its steps."""
        return self.logs_on == "all" or self.rank == 0


def read_options(arguments: Sequence[str] | None = None) -> JobOptions:
    """Flags first, then what torchrun, the launcher or Slurm set in the environment."""
    environ = os.environ  # noqa: TID251 -- a training job is configured by its launcher's environment
    said = _parser(environ).parse_args(arguments)
    host, _, port = said.master.rpartition(":")
    return JobOptions(
        rank=said.rank,
        world=said.world,
        host=host,
        port=int(port),
        node=environ.get("RELIGHT_NODE") or environ.get("SLURMD_NODENAME") or socket.gethostname(),
        folder=RunFolder(said.run.absolute()),
        steps=said.steps,
        checkpoint_every=said.checkpoint_every,
        step_s=said.step_s,
        batch=said.batch,
        seed=said.seed,
        timeout_s=said.timeout_s,
        start_timeout_s=said.start_timeout_s,
        logs_on=said.log_ranks,
        checks_nan=said.check_nan,
        resumes=not said.no_resume,
        attempt=int(environ.get("SLURM_RESTART_COUNT") or environ.get("RELIGHT_RESTART_COUNT") or 0),
        listen_fd=said.listen_fd,
    )


def _parser(environ: Mapping[str, str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="One rank of an example training job.")
    rank = environ.get("RANK") or environ.get("SLURM_PROCID")
    world = environ.get("WORLD_SIZE") or environ.get("SLURM_NTASKS")
    parser.add_argument("--rank", type=int, default=rank, required=rank is None)
    parser.add_argument("--world", type=int, default=world, required=world is None)
    parser.add_argument("--master", default=_master(environ), help="HOST:PORT of rank 0")
    parser.add_argument("--run", type=Path, required=True, help="folder of logs, pids and checkpoints")
    parser.add_argument("--listen-fd", type=int, help="rank 0's listening socket, handed over by a launcher")
    add_job_flags(parser)
    return parser


def add_job_flags(parser: argparse.ArgumentParser) -> None:
    """The flags that are the same on every rank."""
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--checkpoint-every", type=int, default=50, help="steps; 0 for never")
    parser.add_argument("--step-s", type=float, default=0.05, help="local work a step that is only waited for")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout-s", type=float, default=1_800.0, help="of a collective")
    parser.add_argument("--start-timeout-s", type=float, default=60.0, help="of the rendezvous")
    parser.add_argument("--log-ranks", choices=("all", "rank0"), default="all", help="who prints step lines")
    parser.add_argument("--check-nan", action="store_true", help="raise on a loss that is no number")
    parser.add_argument("--no-resume", action="store_true", help="ignore earlier checkpoints")


def _master(environ: Mapping[str, str]) -> str:
    """Under Slurm the node that launched the step holds rank 0, and the job id spreads the ports."""
    host = environ.get("MASTER_ADDR") or environ.get("SLURM_LAUNCH_NODE_IPADDR") or "127.0.0.1"
    job = int(environ.get("SLURM_JOB_ID") or 0)
    return f"{host}:{environ.get('MASTER_PORT') or _FIRST_PORT + job % _PORTS}"
