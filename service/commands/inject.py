# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight inject`: makes one rank of a local run fail, to see what is noticed and how soon."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from service.terminal import ExitCode, escaped, message, result_json, stop

_MIB = 1 << 20
_DEEP_ENOUGH = 3

app = typer.Typer(
    help="Make one rank of a local run fail: by a signal, or by its own doing through a control file.",
    epilog="A run is a folder with pids/rankN.json and control/rankN.json, as the example jobs make it.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)

Run = Annotated[Path | None, typer.Option("--run", help="Folder of the run, as given to the job.")]
RankNumber = Annotated[int, typer.Option("--rank", min=0, help="The rank that fails.")]
PidFile = Annotated[Path | None, typer.Option("--pid-file", help="A file with a pid instead of --run and --rank.")]
Keep = Annotated[bool, typer.Option("--keep", help="Happen in every later attempt too, as a bug in the code would.")]
FromStep = Annotated[int, typer.Option("--from-step", min=0, help="The first step it happens in.")]


@app.command()
def kill(run: Run = None, rank: RankNumber = 0, pid_file: PidFile = None) -> None:
    """SIGKILL: the process is gone at once and says nothing."""
    _signalled(signal.SIGKILL, run, rank, pid_file)


@app.command("stop")
def stop_rank(run: Run = None, rank: RankNumber = 0, pid_file: PidFile = None) -> None:
    """SIGSTOP: the process stays and does nothing, so that the others wait for it."""
    _signalled(signal.SIGSTOP, run, rank, pid_file)


@app.command("continue")
def continue_rank(run: Run = None, rank: RankNumber = 0, pid_file: PidFile = None) -> None:
    """SIGCONT: the end of `stop`."""
    _signalled(signal.SIGCONT, run, rank, pid_file)


@app.command()
def slow(
    run: Run = None,
    rank: RankNumber = 0,
    delay_s: Annotated[float, typer.Option(min=0, max=3_600, help="Seconds more in a step.")] = 0.1,
    share: Annotated[float, typer.Option(min=0, max=1, help="Share of the steps that are slow.")] = 1.0,
    from_step: FromStep = 0,
) -> None:
    """The rank's own work takes longer."""
    order = {"fault": "slow", "delay_s": delay_s, "share": share, "from_step": from_step}
    _ordered(run, rank, order)


@app.command()
def exception(
    run: Run = None,
    rank: RankNumber = 0,
    text: Annotated[str | None, typer.Option(help="What the exception says.")] = None,
    from_step: FromStep = 0,
    keep: Keep = False,
) -> None:
    """The rank raises a ValueError."""
    _ordered(run, rank, {"fault": "exception", "text": text, "from_step": from_step, "keep": keep})


@app.command()
def nan(run: Run = None, rank: RankNumber = 0, from_step: FromStep = 0) -> None:
    """The rank's loss and gradient are no numbers, which the all-reduce spreads to every rank."""
    _ordered(run, rank, {"fault": "nan", "from_step": from_step})


@app.command()
def loop(run: Run = None, rank: RankNumber = 0, from_step: FromStep = 0, keep: Keep = False) -> None:
    """The rank computes for ever in its own code, and the others wait for it."""
    _ordered(run, rank, {"fault": "loop", "from_step": from_step, "keep": keep})


@app.command("exit")
def leave(
    run: Run = None,
    rank: RankNumber = 0,
    code: Annotated[int, typer.Option(min=0, max=255, help="Its exit code.")] = 7,
    from_step: FromStep = 0,
    keep: Keep = False,
) -> None:
    """The rank leaves without a word."""
    _ordered(run, rank, {"fault": "exit", "code": code, "from_step": from_step, "keep": keep})


@app.command("full-disk")
def full_disk(
    run: Run = None,
    rank: RankNumber = 0,
    from_step: FromStep = 0,
    fill: Annotated[
        Path | None, typer.Option(help="Fill the file system of this folder instead, for every rank.")
    ] = None,
    max_mib: Annotated[int, typer.Option(min=1, help="The most that --fill may take.")] = 256,
) -> None:
    """The rank's next checkpoint meets a full disk."""
    if fill is None:
        _ordered(run, rank, {"fault": "full_disk", "from_step": from_step})
    else:
        _fill(fill, max_mib * _MIB)


@app.command()
def clear(run: Run = None, rank: RankNumber = 0) -> None:
    """Take an order back; what has happened stays."""
    control = _control(run, rank)
    if not control.exists():
        raise stop(f"rank {rank} has no order: {control} does not exist", ExitCode.USAGE)
    control.unlink()
    _tell("clear", rank, {})


# ------------------------------------------------------------------ by signal


def _signalled(number: signal.Signals, run: Path | None, rank: int, pid_file: Path | None) -> None:
    file = pid_file if pid_file is not None else _folder(run) / "pids" / f"rank{rank}.json"
    pid = _process(file)
    try:
        os.kill(pid, number)
    except OSError as why:
        raise stop(f"process {pid} of {file}: {why.strerror}", ExitCode.CANNOT_REACH) from why
    _tell(number.name, None if pid_file is not None else rank, {"pid": pid})


def _process(file: Path) -> int:
    """The pid in a file, if it is still that process: a pid alone may belong to another one by now."""
    try:
        text = file.read_text()
    except OSError as why:
        raise stop(f"pid file {file}: {why.strerror}", ExitCode.USAGE) from why
    try:
        said = json.loads(text)
        pid, known = (int(said["pid"]), said) if isinstance(said, dict) else (int(said), {})
    except (ValueError, KeyError, TypeError) as why:
        raise stop(f"pid file {file} holds no pid: {escaped(text[:80])!r}", ExitCode.USAGE) from why
    host = known.get("host", socket.gethostname())
    if host != socket.gethostname():
        raise stop(f"{file} is of host {escaped(str(host))!r}; run this command there", ExitCode.USAGE)
    if pid <= 1 or pid in {os.getpid(), os.getppid()}:
        raise stop(f"pid file {file} names process {pid}, which is none of a run", ExitCode.USAGE)
    started = _started_at(pid)
    if started is None or known.get("started", started) != started:
        raise stop(f"process {pid} of {file} has ended", ExitCode.CANNOT_REACH)
    return pid


def _started_at(pid: int) -> int | None:
    """Clock ticks since the boot (proc_pid_stat(5), field 22); None for a process that is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


# ------------------------------------------------------------------ by the job's own control file


def _ordered(run: Path | None, rank: int, order: Mapping[str, Any]) -> None:
    control = _control(run, rank)
    if not (control.parent.parent / "pids" / control.name).exists():
        raise stop(f"rank {rank} of {control.parent.parent} has not begun: no pids/{control.name}", ExitCode.USAGE)
    control.parent.mkdir(exist_ok=True)
    fresh = control.with_name(f".{control.name}.{os.getpid()}")
    fresh.write_text(json.dumps({name: value for name, value in order.items() if value is not None}))
    fresh.replace(control)
    _tell(str(order["fault"]), rank, {k: v for k, v in order.items() if k != "fault" and v is not None})


def _control(run: Path | None, rank: int) -> Path:
    return _folder(run) / "control" / f"rank{rank}.json"


def _folder(run: Path | None) -> Path:
    if run is None:
        raise stop("name the run: --run DIR", ExitCode.USAGE)
    if not run.is_dir():
        raise stop(f"--run {run} is not a folder", ExitCode.USAGE)
    return run


# ------------------------------------------------------------------ a file system


def _fill(folder: Path, most: int) -> None:
    """Fill a small file system, such as a scratch tmpfs. One with more room than `most` is left alone."""
    try:
        space = os.statvfs(folder)
    except OSError as why:
        raise stop(f"--fill {folder}: {why.strerror}", ExitCode.USAGE) from why
    free = space.f_bavail * space.f_frsize
    if len(folder.resolve().parts) < _DEEP_ENOUGH or free > most:
        raise stop(
            f"--fill {folder} has {free // _MIB} MiB free, more than --max-mib {most // _MIB}, or is a top folder; "
            "fill only a file system made for it",
            ExitCode.USAGE,
        )
    ballast = folder / "relight-inject.ballast"
    written = 0
    with ballast.open("wb", buffering=0) as file:
        for size in (_MIB, 4_096, 1):
            block = b"\0" * size
            try:
                while written <= most:
                    written += file.write(block)
            except OSError:
                continue
    message(f"remove {ballast} to end it")
    _tell("fill", None, {"path": str(ballast), "bytes": written})


def _tell(fault: str, rank: int | None, more: Mapping[str, Any]) -> None:
    """What was done and when, for whoever measures how soon it is noticed."""
    known = {"rank": rank} if rank is not None else {}
    result_json({"at_unix_s": round(time.time(), 3), "fault": fault, **known, **more})
