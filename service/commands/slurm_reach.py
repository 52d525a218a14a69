# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How a Slurm cluster is reached, by the options that controller, watchdog and doctor share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import typer

from controllers.slurm.command_line import SlurmCommandLine
from controllers.slurm.rest import SlurmRest, spoken_version
from controllers.slurm.rest_versions import RestVerb, RestVersion
from controllers.slurm.rest_wire import HttpRestWire
from controllers.slurm.runners import LocalRunner, Runner, SshRunner
from controllers.slurm.scontrol_text import Garbled
from relight.jobs import BatchScheduler, SchedulerUnreachable
from service import bootstrap
from service.config import slurm_environment
from service.terminal import ExitCode, message, stop


class Backend(StrEnum):
    """What is spoken with Slurm."""

    COMMANDS = "commands"
    SLURMRESTD = "slurmrestd"


Ssh = Annotated[str | None, typer.Option(help="USER@HOST[:PORT] of a login node, instead of commands on this host.")]
SshKey = Annotated[Path | None, typer.Option(help="Private key for --ssh.")]
KnownHosts = Annotated[Path | None, typer.Option(help="File with the pinned host key for --ssh.")]
Zone = Annotated[str, typer.Option(help="Time zone in which the login node prints times, with --ssh.")]
MarksIn = Annotated[str, typer.Option(help="Job field for our marks: AdminComment (operators only) or Comment.")]
BackendChoice = Annotated[
    Backend, typer.Option("--backend", help="Slurm's commands (here or by --ssh), or slurmrestd.")
]
RestUrl = Annotated[str, typer.Option(help="slurmrestd: http://HOST:PORT, https://..., or unix:/PATH.")]
RestUser = Annotated[str, typer.Option(help="User whom the token for slurmrestd is for.")]
RestTokenFile = Annotated[
    Path | None, typer.Option(help="File with a token for slurmrestd, read at every call; unix: goes without.")
]
RestVersionChoice = Annotated[
    str, typer.Option("--rest-version", help="auto, or the version of slurmrestd's API to speak, such as v0.0.38.")
]

REST_URL = "http://127.0.0.1:6820"
REST_USER = "relight"
# A watchdog ends holds; it begins none and excludes nothing.
WATCHDOG_VERBS = (RestVerb.MARK, RestVerb.RELEASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmReach:
    """The options as given. `state` is where an SSH connection keeps its socket."""

    state: Path
    ssh: str | None = None
    key: Path | None = None
    known_hosts: Path | None = None
    zone: str = "UTC"
    marks_in: str = "AdminComment"
    backend: Backend = Backend.COMMANDS
    rest_url: str = REST_URL
    rest_user: str = REST_USER
    rest_token_file: Path | None = None
    rest_version: str = "auto"

    def scheduler(self, needed: Collection[RestVerb] = ()) -> tuple[BatchScheduler, str]:
        """The backend, and a remark if it is made of two.

        `needed` are the verbs that must be possible: what slurmrestd's version lacks goes by the commands.
        Errors: ValueError if options contradict each other or a needed verb is possible by neither;
        SchedulerUnreachable, Garbled if slurmrestd has to be asked for its version and does not tell.
        """
        commands = self._commands()
        if self.backend is Backend.COMMANDS:
            return commands, ""
        wire = HttpRestWire(self.rest_url, self.rest_user, self.rest_token_file)
        version = _version(self.rest_version) or spoken_version(wire)
        has_commands = bool(commands.clocks().version)
        rest = SlurmRest(
            wire=wire, version=version, clock=bootstrap.clock(), marks_in=self.marks_in,
            commands=commands if has_commands else None,
        )  # fmt: skip
        missing = ", ".join(rest.missing(needed))
        if missing and not has_commands:
            raise ValueError(
                f"slurmrestd {version} has no request for {missing}, and Slurm's commands do not answer here: "
                "install them, name a login node with --ssh, or act on nothing (--mode monitor --no-jobs-choose)"
            )
        return rest, f"slurmrestd {version} has no request for {missing}: these go by scontrol" if missing else ""

    def _commands(self) -> SlurmCommandLine:
        if self.marks_in not in {"AdminComment", "Comment"}:
            raise ValueError(f"--marks-in must be AdminComment or Comment, got {self.marks_in!r}")
        try:
            zone = ZoneInfo(self.zone)
        except (ZoneInfoNotFoundError, ValueError) as why:
            raise ValueError(f"--zone {self.zone!r}: no such time zone") from why
        runner: Runner = LocalRunner(environment=slurm_environment())
        if self.ssh is not None:
            runner = self._ssh_runner(self.ssh)
        return SlurmCommandLine(runner=runner, zone=zone, marks_in=self.marks_in)

    def _ssh_runner(self, ssh: str) -> SshRunner:
        user, at, place = ssh.partition("@")
        host, _, port = place.partition(":")
        if not at or not user or not host or (port and not port.isdigit()) or place.startswith("-"):
            raise ValueError(f"--ssh must be USER@HOST or USER@HOST:PORT, got {ssh!r}")
        if self.key is None or self.known_hosts is None:
            raise ValueError("--ssh needs --ssh-key and --known-hosts: the host key is pinned, never learnt")
        return SshRunner(
            host=host, user=user, port=int(port or 22), key_file=str(self.key), known_hosts=str(self.known_hosts),
            control_path=str(self.state / "ssh-%C"),
        )  # fmt: skip


def _version(said: str) -> RestVersion | None:
    """None for auto. Errors: ValueError."""
    if said == "auto":
        return None
    number = said.removeprefix("v0.0.")
    if not number.isdigit():
        raise ValueError(f"--rest-version must be auto or such as v0.0.38, got {said!r}")
    return RestVersion(int(number))


def reached(reach: SlurmReach, needed: Collection[RestVerb]) -> BatchScheduler:
    """The scheduler, or the end of the command with what stands in the way."""
    try:
        slurm, remark = reach.scheduler(needed)
    except (SchedulerUnreachable, Garbled) as why:
        raise stop(str(why), ExitCode.CANNOT_REACH) from why
    except ValueError as why:
        raise stop(str(why), ExitCode.USAGE) from why
    if remark:
        message(f"relight: {remark}")
    return slurm
