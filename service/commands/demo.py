# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight demo`: a simulated cluster in fast-forward, real failures, a live job, and the console for them all."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from detectors.log_text import LogText
from service.bootstrap import Running, clock, demo_cases, running
from service.config import Settings, is_ci
from service.demo import STORY, DemoFailed, Told, play
from service.demo_clock import WoundClock
from service.live_job import ATTEMPT, HUNG_RANK, Reporting, Watched, hang_of, live_job
from service.terminal import ExitCode, message, stop

if TYPE_CHECKING:
    from service.demo_fleet import Fleet

HOURS = 3
_LOOKS_EVERY_S = 5.0


def demo(
    wait: Annotated[
        bool | None, typer.Option(help="Keep the service up until Ctrl-C; the default except with CI=true.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 0,
    live: Annotated[bool, typer.Option(help="Also run a small training job and stop one of its ranks.")] = True,
) -> None:
    """A simulated cluster with faults, real failures, a live job that hangs, and the console that shows them."""
    try:
        cases = demo_cases([expected.case for expected in STORY])
    except OSError as missing:
        raise stop(f"the demo needs the data sets of the source tree: {missing}", ExitCode.USAGE) from missing
    wound = WoundClock(clock(), timedelta(hours=HOURS))
    with (
        tempfile.TemporaryDirectory(prefix="relight-demo-") as folder,
        running(_settings(Path(folder), port), wound) as service,
        _client(service) as client,
    ):
        message(f"relight: a service of your own at {service.url}, its audit log in {folder}")
        fleet = _fleet(client, wound)
        told = _played(client, cases)
        _show(told)
        _audited(client)
        _judged(told)
        if live:
            _hung_live(service, Path(folder))
        if wait if wait is not None else not is_ci():
            _linger(service, fleet)


@contextmanager
def _client(service: Running) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {service.token}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
        yield client


def _fleet(client: httpx.Client, wound: WoundClock) -> Fleet:
    """Hours of a cluster within seconds; every fault of it must have become the incident that it is."""
    try:
        from service.demo_fleet import SPAN_S, Fleet
    except ModuleNotFoundError as missing:
        raise stop(f"the demo needs the source tree: {missing}", ExitCode.USAGE) from missing
    from service.demo_plan import WANTED, WORKLOADS
    from service.demo_site import NODES, Site

    message(f"relight: {SPAN_S / 3600:g} hours of a simulated cluster in fast-forward: {NODES} nodes of 8 GPUs, "
            f"{len(WORKLOADS)} workloads")  # fmt: skip
    began = time.monotonic()
    fleet = Fleet(Site(client), wound)
    try:
        fleet.play()
        missing_ones = fleet.missing()
    except DemoFailed as failed:
        raise stop(f"the simulated cluster: {failed}", ExitCode.FINDINGS) from failed
    for one in missing_ones:
        message(f"relight: missing: {one}")
    if missing_ones:
        raise stop(f"{len(missing_ones)} of {len(WANTED)} expected incidents are missing", ExitCode.FINDINGS)
    message(f"relight: all {len(WANTED)} expected incidents are there, after {time.monotonic() - began:.0f} s")
    return fleet


def _judged(told: list[Told]) -> None:
    wrong = [t for t in told if not t.is_as_expected]
    for one in wrong:
        message(
            f"relight: {one.expected.case} expected {one.expected.failure}, {one.expected.action}, "
            f"{one.expected.nodes}; got {one.failure}, {one.action}, {one.nodes}"
        )
    if wrong:
        raise stop(f"{len(wrong)} of {len(told)} verdicts are not the expected ones", ExitCode.FINDINGS)
    message(f"relight: all {len(told)} verdicts are as expected")


def _settings(folder: Path, port: int) -> Settings:
    """A service that watches a job of its own folder, with a tenth of the usual patience: a demo is short.

    Advice stands for hours, so that who looks at the console late still finds something to approve.
    """
    run = folder / "run"
    run.mkdir()
    said: dict[str, Any] = {
        "audit": {"path": folder / "audit.duckdb"},
        "server": {"port": port},
        "recommend": {"sweep_every_s": 0.2, "expire_after_s": 4 * 3600},
        "follow": {"roots": [run], "poll_every_s": 0.2},
        "plugins": {"options": {"hang": {"patience": 0.1}}},
    }
    return Settings.model_validate(said)


def _hung_live(service: Running, folder: Path) -> None:
    """A job of three real processes; one is stopped, and the service must say which within seconds."""
    token = folder / "token"
    token.write_text(service.token)
    token.chmod(0o600)
    message("relight: now a live training job of three ranks; rank 1 will be stopped (SIGSTOP)")
    with _client(service) as client:
        watched = Watched(client)
        flags = ("--steps", "100000", "--step-s", "0.05")
        try:
            with live_job(folder / "run", ATTEMPT, Reporting(url=service.url, token_file=token), flags) as job:
                watched.put("RUNNING", clock().now(), job.logs)
                hang = hang_of(watched, job)
            watched.put("CANCELLED_BY_USER", clock().now(), job.logs)
        except (DemoFailed, OSError) as failed:
            raise stop(f"the live job: {failed}", ExitCode.FINDINGS) from failed
    if hang.rank != HUNG_RANK:
        raise stop(f"the live job: rank {HUNG_RANK} was stopped, {hang.summary}", ExitCode.FINDINGS)
    message(f"relight: stopped at step {hang.step}, confirmed {hang.after_s:.1f} s later: {hang.summary}")


def _played(client: httpx.Client, cases: dict[str, tuple[LogText, ...]]) -> list[Told]:
    try:
        return list(play(client, cases, clock().now()))
    except DemoFailed as failed:
        raise stop(str(failed), ExitCode.FINDINGS) from failed


def _show(told: list[Told]) -> None:
    table = Table(title="What happened, what Relight makes of it, what it advises (monitor mode: nobody acts)")
    for heading in ("what happened", "failure", "root line", "advice", "keeps out"):
        table.add_column(heading, overflow="fold")
    for one in told:
        mark = "" if one.is_as_expected else " (!)"
        table.add_row(one.expected.what, one.failure + mark, one.root, one.action, ", ".join(one.nodes))
    console = Console()
    (console if console.is_terminal else Console(width=130)).print(table)


def _audited(client: httpx.Client) -> None:
    answer = client.post("/v1/audit/verify", json={})
    if answer.is_error or not answer.json()["is_sound"]:
        raise stop(f"the audit log does not verify: {answer.text}", ExitCode.INTEGRITY)
    message(
        f"relight: the audit log verifies: {answer.json()['events']} events, head {answer.json()['head']['hash'][:16]}"
    )


def _linger(service: Running, fleet: Fleet) -> None:
    """The console, and what to look at in it; healthy jobs of the cluster train on meanwhile."""
    message(f"relight: the console is at {service.url}/console; the token to paste is\n  {service.token}\nLook at")
    for path, what in fleet.sights():
        message(f"  {service.url}{path}\n    {what}")
    message("Ctrl-C ends it.")
    while service.thread.is_alive():
        service.thread.join(_LOOKS_EVERY_S)
        fleet.go_on()
