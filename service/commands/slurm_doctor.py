# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight doctor slurm`: why does nothing happen to this job, walked from the queue to the action."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from controllers.slurm.advice import Advisor
from controllers.slurm.checkup import Checkup, Verdict
from controllers.slurm.http_transport import HttpTransport
from controllers.slurm.opt_in import opt_in
from relight.types import ClusterId
from service import bootstrap
from service.commands.slurm_reach import (
    REST_URL,
    REST_USER,
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
from service.terminal import ExitCode, escaped, result, stop


def slurm_doctor(
    job: Annotated[str | None, typer.Argument(help="Job whose way to walk; without it only the cluster.")] = None,
    url: Annotated[str, typer.Option(help="Where the advisor listens.")] = "http://127.0.0.1:8756",
    token_file: Annotated[
        Path | None, typer.Option(help="File with a token that may read; without it no advisor.")
    ] = None,
    cluster: Annotated[str, typer.Option(help="The cluster's name at the advisor.")] = "default",
    mode: Annotated[str, typer.Option(help="As the controller is started with.")] = "monitor",
    partition: Annotated[list[str] | None, typer.Option(help="As the controller is started with.")] = None,
    jobs_choose: Annotated[bool, typer.Option(help="As the controller is started with.")] = True,
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
) -> None:
    """Walk a Slurm job's way: seen, opted in, signals, advice, gates, action; say where it ends and why.

    Exit code 0 if it reaches an action, 1 if it ends before.
    """
    try:
        rules = opt_in(mode, partition or [], jobs_choose=jobs_choose)
    except ValueError as why:
        raise stop(str(why), ExitCode.USAGE) from why
    reach = SlurmReach(
        state=Path.cwd(), ssh=ssh, key=ssh_key, known_hosts=known_hosts, zone=zone, marks_in=marks_in, backend=backend,
        rest_url=rest_url, rest_user=rest_user, rest_token_file=rest_token_file, rest_version=rest_version,
    )  # fmt: skip
    advisor = Advisor(HttpTransport(url, token_file)) if token_file is not None else None
    checkup = Checkup(scheduler=reached(reach, ()), opt_in=rules, cluster=ClusterId(cluster), advisor=advisor)
    is_through = True
    for one in checkup.walk(job, bootstrap.clock().now()):
        result(f"{one.verdict:10} {one.station:18} {escaped(one.says)}")
        is_through = is_through and one.verdict is not Verdict.ENDS
    if not is_through:
        raise typer.Exit(ExitCode.FINDINGS)
