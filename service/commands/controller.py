# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight controller slurm` and `relight watchdog slurm`: the processes that act on a cluster."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from controllers.slurm.advice import Advisor
from controllers.slurm.checkup import Checkup, Verdict
from controllers.slurm.command_line import SlurmCommandLine
from controllers.slurm.controller import Controller, Round
from controllers.slurm.http_transport import HttpTransport
from controllers.slurm.ledger import entry, exposition
from controllers.slurm.opt_in import OFF, OptInRules
from controllers.slurm.rounds import Lock, Said, Taken, run_rounds
from controllers.slurm.runners import LocalRunner, Runner, SshRunner
from controllers.slurm.settings import ControllerSettings
from controllers.slurm.slips import FolderOfSlips
from controllers.slurm.store import Store, StoreUnusable
from controllers.slurm.watchdog import Watchdog
from relight.types import ClusterId, Mode
from service import bootstrap
from service.config import slurm_environment
from service.terminal import ExitCode, escaped, message, result, stop

R = TypeVar("R", bound=Said)
app = typer.Typer(help="Carry recommendations out on a cluster.", no_args_is_help=True, rich_markup_mode=None)
watchdog_app = typer.Typer(help="Let go of our holds in time.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _controllers() -> None:
    """Keeps `slurm` a sub-command while it is the only one."""


@watchdog_app.callback()
def _watchdogs() -> None:
    """Keeps `slurm` a sub-command while it is the only one."""


Ssh = Annotated[str | None, typer.Option(help="USER@HOST[:PORT] of a login node, instead of commands on this host.")]
SshKey = Annotated[Path | None, typer.Option(help="Private key for --ssh.")]
KnownHosts = Annotated[Path | None, typer.Option(help="File with the pinned host key for --ssh.")]
Zone = Annotated[str, typer.Option(help="Time zone in which the login node prints times, with --ssh.")]
MarksIn = Annotated[str, typer.Option(help="Job field for our marks: AdminComment (operators only) or Comment.")]
Every = Annotated[float, typer.Option(help="Seconds between rounds.", min=0.2)]
Once = Annotated[bool, typer.Option(help="One round, then exit.")]
State = Annotated[Path, typer.Option(help="Folder of the process's own memory.")]
Slips = Annotated[Path, typer.Option(help="Folder of hold slips: the controller writes, the watchdog reads.")]


@app.command("slurm")
def controller_slurm(
    url: Annotated[str, typer.Option(help="Where the advisor listens.")] = "http://127.0.0.1:8756",
    token_file: Annotated[Path, typer.Option(help="File with a controller's token.")] = Path("controller.token"),
    cluster: Annotated[str, typer.Option(help="The cluster's name at the advisor.")] = "default",
    name: Annotated[str, typer.Option(help="This controller's name in claims.")] = "slurm-controller",
    mode: Annotated[str, typer.Option(help="Mode of jobs that choose none: off, monitor, approve or act.")] = "monitor",
    partition: Annotated[list[str] | None, typer.Option(help="PARTITION=MODE; may be repeated.")] = None,
    jobs_choose: Annotated[bool, typer.Option(help="Whether relight=MODE in a job's comment counts.")] = True,
    settle_s: Annotated[float, typer.Option(help="Wait for late log lines while no cause is known.")] = 4.0,
    verify_after_s: Annotated[float, typer.Option(help="Look again after this long.")] = 15.0,
    max_delay_s: Annotated[float, typer.Option(help="Longest back-off before a restart.")] = 3600.0,
    state: State = Path("/var/lib/relight/controller"),
    slips: Slips = Path("/var/lib/relight/slips"),
    metrics_file: Annotated[Path | None, typer.Option(help="Write metrics here, for a textfile collector.")] = None,
    pause_file: Annotated[Path, typer.Option(help="While this file exists nothing new is done.")] = Path(
        "/etc/relight/pause"
    ),
    ssh: Ssh = None,
    ssh_key: SshKey = None,
    known_hosts: KnownHosts = None,
    zone: Zone = "UTC",
    marks_in: MarksIn = "AdminComment",
    every: Every = 5.0,
    once: Once = False,
) -> None:
    """Publish jobs, ask for advice on failures, and act on it where that is allowed."""
    try:
        settings = ControllerSettings(
            cluster=ClusterId(cluster), controller_id=name, opt_in=_opt_in(mode, partition or [], jobs_choose),
            settle_s=settle_s, verify_after_s=verify_after_s, max_delay_s=max_delay_s,
        )  # fmt: skip
        slurm = _scheduler(_Reach(ssh, ssh_key, known_hosts, zone, marks_in), state)
    except ValueError as why:
        raise stop(str(why), ExitCode.USAGE) from why
    transport = HttpTransport(url, token_file)
    with _own(state, "controller") as store:
        controller = Controller(
            settings, slurm, Advisor(transport), store, FolderOfSlips(slips), bootstrap.clock(), pause_file.exists
        )

        def tick() -> Round:
            done = controller.tick()
            if metrics_file is not None:
                _write_metrics(metrics_file, store, done)
            return done

        last = _run(tick, every, once)
    if last is not None and once:
        result(f"jobs {last.jobs}, recoveries {last.recoveries}" + (f", {last.why}" if last.why else ""))
        if last.is_blind or not last.is_advised:
            raise typer.Exit(ExitCode.CANNOT_REACH)


@app.command("doctor")
def controller_doctor(
    job: Annotated[str | None, typer.Argument(help="Job whose way to walk; without it only the cluster.")] = None,
    url: Annotated[str, typer.Option(help="Where the advisor listens.")] = "http://127.0.0.1:8756",
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token that may read; without it no advisor.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="The cluster's name at the advisor.")] = "default",
    mode: Annotated[str, typer.Option(help="As the controller is started with.")] = "monitor",
    partition: Annotated[list[str] | None, typer.Option(help="As the controller is started with.")] = None,
    ssh: Ssh = None,
    ssh_key: SshKey = None,
    known_hosts: KnownHosts = None,
    zone: Zone = "UTC",
) -> None:
    """Walk a Slurm job's way: seen, opted in, signals, advice, gates, action; say where it ends and why."""
    try:
        opt_in = _opt_in(mode, partition or [], jobs_choose=True)
        slurm = _scheduler(_Reach(ssh, ssh_key, known_hosts, zone, "AdminComment"), Path.cwd())
    except ValueError as why:
        raise stop(str(why), ExitCode.USAGE) from why
    advisor = Advisor(HttpTransport(url, token_file)) if token_file is not None else None
    checkup = Checkup(scheduler=slurm, opt_in=opt_in, cluster=ClusterId(cluster), advisor=advisor)
    is_through = True
    for one in checkup.walk(job, bootstrap.clock().now()):
        result(f"{one.verdict:10} {one.station:18} {escaped(one.says)}")
        is_through = is_through and one.verdict is not Verdict.ENDS
    if not is_through:
        raise typer.Exit(ExitCode.FINDINGS)


@watchdog_app.command("slurm")
def watchdog_slurm(
    state: State = Path("/var/lib/relight/watchdog"),
    slips: Slips = Path("/var/lib/relight/slips"),
    hard_s: Annotated[float, typer.Option(help="No hold of ours lasts longer.", min=1, max=240)] = 240.0,
    ssh: Ssh = None,
    ssh_key: SshKey = None,
    known_hosts: KnownHosts = None,
    zone: Zone = "UTC",
    marks_in: MarksIn = "AdminComment",
    every: Every = 5.0,
    once: Once = False,
) -> None:
    """Release holds of ours at their deadline, whatever became of advisor and controller."""
    try:
        slurm = _scheduler(_Reach(ssh, ssh_key, known_hosts, zone, marks_in), state)
    except ValueError as why:
        raise stop(str(why), ExitCode.USAGE) from why
    with _own(state, "watchdog") as store:
        watchdog = Watchdog(slurm, store, FolderOfSlips(slips), bootstrap.clock(), timedelta(seconds=hard_s))
        last = _run(watchdog.tick, every, once)
    if last is not None and once:
        result(f"holds {last.holds}, released {', '.join(last.released) or 'none'}")
        if last.is_blind:
            raise stop(last.why, ExitCode.CANNOT_REACH)


# ------------------------------------------------------------------ the pieces


class _own:  # noqa: N801 -- reads as a verb: with _own(folder)
    """The folder's store, for one process at a time."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name

    def __enter__(self) -> Store:
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o750)
            self._lock = Lock(self._folder / f"{self._name}.lock")
            self._store = Store(str(self._folder / f"{self._name}.sqlite"))
        except (OSError, StoreUnusable) as why:
            raise stop(f"{self._folder}: {why}", ExitCode.CONFIG) from why
        except Taken as why:
            raise stop(str(why), ExitCode.REFUSED) from why
        return self._store

    def __exit__(self, *_: object) -> None:
        self._store.close()
        self._lock.release()


def _run(tick: Callable[[], R], every: float, once: bool) -> R | None:
    """Rounds until SIGTERM or Ctrl-C: a round that has begun is always finished."""
    stopped = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    return run_rounds(
        tick, lambda seconds: once or stopped.wait(seconds), every, lambda said: message(f"relight: {said}")
    )


@dataclass(frozen=True, slots=True)
class _Reach:
    """How Slurm's commands are reached."""

    ssh: str | None
    key: Path | None
    known_hosts: Path | None
    zone: str
    marks_in: str


def _scheduler(reach: _Reach, state: Path) -> SlurmCommandLine:
    if reach.marks_in not in {"AdminComment", "Comment"}:
        raise ValueError(f"--marks-in must be AdminComment or Comment, got {reach.marks_in!r}")
    try:
        zone = ZoneInfo(reach.zone)
    except (ZoneInfoNotFoundError, ValueError) as why:
        raise ValueError(f"--zone {reach.zone!r}: no such time zone") from why
    runner: Runner = LocalRunner(environment=slurm_environment())
    if reach.ssh is not None:
        runner = _ssh_runner(reach, state)
    return SlurmCommandLine(runner=runner, zone=zone, marks_in=reach.marks_in)


def _ssh_runner(reach: _Reach, state: Path) -> SshRunner:
    user, at, place = (reach.ssh or "").partition("@")
    host, _, port = place.partition(":")
    if not at or not user or not host or (port and not port.isdigit()) or place.startswith("-"):
        raise ValueError(f"--ssh must be USER@HOST or USER@HOST:PORT, got {reach.ssh!r}")
    if reach.key is None or reach.known_hosts is None:
        raise ValueError("--ssh needs --ssh-key and --known-hosts: the host key is pinned, never learnt")
    return SshRunner(
        host=host, user=user, port=int(port or 22), key_file=str(reach.key), known_hosts=str(reach.known_hosts),
        control_path=str(state / "ssh-%C"),
    )  # fmt: skip


def _opt_in(mode: str, partitions: list[str], jobs_choose: bool) -> OptInRules:
    chosen = {}
    for text in partitions:
        name, sign, said = text.partition("=")
        if not sign or not name:
            raise ValueError(f"--partition must be PARTITION=MODE, got {text!r}")
        chosen[name] = _mode(said)
    return OptInRules(default=_mode(mode), partitions=chosen, jobs_may_choose=jobs_choose)


def _mode(text: str) -> Mode | None:
    if text == OFF:
        return None
    try:
        return Mode(text)
    except ValueError as why:
        raise ValueError(f"no mode {text!r}, choose from off, {', '.join(Mode)}") from why


def _write_metrics(file: Path, store: Store, done: Round) -> None:
    entries = [entry(body, body.get("gpus")) for _, body in store.all("outcome")]
    text = exposition(entries, is_blind=done.is_blind, is_advised=done.is_advised, holds=done.recoveries)
    part = file.with_suffix(".part")
    part.write_text(text, "utf-8")
    part.replace(file)
