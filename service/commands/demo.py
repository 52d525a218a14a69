# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight demo`: a running service and real failures, from the log line to the audited recommendation."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import httpx
import typer
from rich.console import Console
from rich.table import Table

from detectors.log_text import LogText
from service.bootstrap import Running, clock, demo_cases, running
from service.config import Settings, is_ci
from service.demo import STORY, DemoFailed, Told, play
from service.live_job import ATTEMPT, HUNG_RANK, Reporting, Watched, hang_of, live_job
from service.terminal import ExitCode, message, stop


def demo(
    wait: Annotated[
        bool | None, typer.Option(help="Keep the service up until Ctrl-C; the default except with CI=true.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on; 0 takes a free one.")] = 0,
    live: Annotated[bool, typer.Option(help="Also run a small training job and stop one of its ranks.")] = True,
) -> None:
    """Real failures through a running service, what it advises on each, and a live job that hangs."""
    try:
        cases = demo_cases([expected.case for expected in STORY])
    except OSError as missing:
        raise stop(f"the demo needs the data sets of the source tree: {missing}", ExitCode.USAGE) from missing
    with (
        tempfile.TemporaryDirectory(prefix="relight-demo-") as folder,
        running(_settings(Path(folder), port)) as service,
    ):
        message(f"relight: a service of your own at {service.url}, its audit log in {folder}")
        told = _played(service, cases)
        _show(told)
        _audited(service)
        wrong = [t for t in told if not t.is_as_expected]
        for one in wrong:
            message(
                f"relight: {one.expected.case} expected {one.expected.failure}, {one.expected.action}, "
                f"{one.expected.nodes}; got {one.failure}, {one.action}, {one.nodes}"
            )
        if wrong:
            raise stop(f"{len(wrong)} of {len(told)} verdicts are not the expected ones", ExitCode.FINDINGS)
        message(f"relight: all {len(told)} verdicts are as expected")
        if live:
            _hung_live(service, Path(folder))
        if wait if wait is not None else not is_ci():
            _linger(service)


def _settings(folder: Path, port: int) -> Settings:
    """A service that watches a job of its own folder, with a tenth of the usual patience: a demo is short."""
    run = folder / "run"
    run.mkdir()
    said: dict[str, Any] = {
        "audit": {"path": folder / "audit.duckdb"},
        "server": {"port": port},
        "recommend": {"sweep_every_s": 0.2},
        "follow": {"roots": [run], "poll_every_s": 0.2},
        "plugins": {"options": {"hang": {"patience": 0.1}}},
    }
    return Settings.model_validate(said)


def _hung_live(service: Running, folder: Path) -> None:
    """A job of three real processes; one is stopped, and the service must say which within seconds."""
    token = folder / "token"
    token.write_text(service.token)
    token.chmod(0o600)
    headers = {"Authorization": f"Bearer {service.token}"}
    message("relight: now a live training job of three ranks; rank 1 will be stopped (SIGSTOP)")
    with httpx.Client(base_url=service.url, headers=headers, timeout=30) as client:
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


def _played(service: Running, cases: dict[str, tuple[LogText, ...]]) -> list[Told]:
    headers = {"Authorization": f"Bearer {service.token}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=30) as client:
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


def _audited(service: Running) -> None:
    headers = {"Authorization": f"Bearer {service.token}"}
    with httpx.Client(base_url=service.url, headers=headers, timeout=30) as client:
        answer = client.post("/v1/audit/verify", json={})
    if answer.is_error or not answer.json()["is_sound"]:
        raise stop(f"the audit log does not verify: {answer.text}", ExitCode.INTEGRITY)
    message(
        f"relight: the audit log verifies: {answer.json()['events']} events, head {answer.json()['head']['hash'][:16]}"
    )


def _linger(service: Running) -> None:
    message(
        f"relight: look around, then Ctrl-C:\n"
        f"  curl -s -H 'Authorization: Bearer {service.token}' {service.url}/v1/recommendations\n"
        f"  curl -s -H 'Authorization: Bearer {service.token}' {service.url}/v1/incidents"
    )
    service.wait()
