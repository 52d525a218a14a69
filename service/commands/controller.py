# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight controller slurm` and `relight watchdog slurm`: the processes that act on a cluster."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from controllers.slurm.advice import Advisor
from controllers.slurm.controller import Controller, Round
from controllers.slurm.http_transport import HttpTransport
from controllers.slurm.ledger import entry, exposition
from controllers.slurm.opt_in import opt_in
from controllers.slurm.rest_versions import RestVerb
from controllers.slurm.rounds import Lock, Said, Taken, run_rounds
from controllers.slurm.settings import ControllerSettings
from controllers.slurm.slips import FolderOfSlips
from controllers.slurm.store import Store, StoreUnusable
from controllers.slurm.watchdog import Watchdog
from relight.types import ClusterId
from service import bootstrap
from service.commands.slurm_doctor import slurm_doctor
from service.commands.slurm_reach import (
    REST_URL,
    REST_USER,
    WATCHDOG_VERBS,
    Backend,
    BackendChoice,
    KnownHosts,
    MarksIn,
    RestTokenFile,
    RestUrl,
    RestUser,
    RestVersionChoice,
    SlurmReach,
    Ssh,
    SshKey,
    Zone,
    reached,
)
from service.terminal import ExitCode, message, result, stop

R = TypeVar("R", bound=Said)
app = typer.Typer(help="Carry recommendations out on a cluster.", no_args_is_help=True, rich_markup_mode=None)
watchdog_app = typer.Typer(help="Let go of our holds in time.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _controllers() -> None:
    """Keeps `slurm` a sub-command while it is the only one."""


@watchdog_app.callback()
def _watchdogs() -> None:
    """Keeps `slurm` a sub-command while it is the only one."""


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
    backend: BackendChoice = Backend.COMMANDS,
    rest_url: RestUrl = REST_URL,
    rest_user: RestUser = REST_USER,
    rest_token_file: RestTokenFile = None,
    rest_version: RestVersionChoice = "auto",
    every: Every = 5.0,
    once: Once = False,
) -> None:
    """Publish jobs, ask for advice on failures, and act on it where that is allowed."""
    try:
        rules = opt_in(mode, partition or [], jobs_choose=jobs_choose)
        settings = ControllerSettings(
            cluster=ClusterId(cluster), controller_id=name, opt_in=rules,
            settle_s=settle_s, verify_after_s=verify_after_s, max_delay_s=max_delay_s,
        )  # fmt: skip
    except ValueError as why:
        raise stop(str(why), ExitCode.USAGE) from why
    reach = SlurmReach(
        state=state, ssh=ssh, key=ssh_key, known_hosts=known_hosts, zone=zone, marks_in=marks_in, backend=backend,
        rest_url=rest_url, rest_user=rest_user, rest_token_file=rest_token_file, rest_version=rest_version,
    )  # fmt: skip
    slurm = reached(reach, tuple(RestVerb) if settings.opt_in.may_act else ())
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


app.command("doctor")(slurm_doctor)


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
    backend: BackendChoice = Backend.COMMANDS,
    rest_url: RestUrl = REST_URL,
    rest_user: RestUser = REST_USER,
    rest_token_file: RestTokenFile = None,
    rest_version: RestVersionChoice = "auto",
    every: Every = 5.0,
    once: Once = False,
) -> None:
    """Release holds of ours at their deadline, whatever became of advisor and controller."""
    reach = SlurmReach(
        state=state, ssh=ssh, key=ssh_key, known_hosts=known_hosts, zone=zone, marks_in=marks_in, backend=backend,
        rest_url=rest_url, rest_user=rest_user, rest_token_file=rest_token_file, rest_version=rest_version,
    )  # fmt: skip
    slurm = reached(reach, WATCHDOG_VERBS)
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


def _write_metrics(file: Path, store: Store, done: Round) -> None:
    entries = [entry(body, body.get("gpus")) for _, body in store.all("outcome")]
    text = exposition(entries, is_blind=done.is_blind, is_advised=done.is_advised, holds=done.recoveries)
    part = file.with_suffix(".part")
    part.write_text(text, "utf-8")
    part.replace(file)
