# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How a Slurm command is run: here, or on a login node over one pinned SSH connection; never by a shell of ours."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from relight.jobs import SchedulerUnreachable

MAX_ANSWER_BYTES = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a command said and how it ended."""

    code: int
    out: str
    err: str = ""


class Runner(Protocol):
    """Runs one command to its end. Errors: SchedulerUnreachable if it did not start or did not end in time."""

    def run(self, argv: Sequence[str], timeout_s: float) -> Answer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRunner:
    """Runs commands on this host; times are printed in UTC."""

    environment: Mapping[str, str] = field(default_factory=dict)

    def run(self, argv: Sequence[str], timeout_s: float) -> Answer:
        return _run(argv, timeout_s, {"PATH": "/usr/bin:/bin:/usr/local/bin", **self.environment, "TZ": "UTC"})


@dataclass(frozen=True, slots=True, kw_only=True)
class SshRunner:
    """Runs commands on a login node, by the OpenSSH client.

    One connection is kept and shared (ControlMaster). The host key must be in `known_hosts`; no password, no
    agent and no other configuration is used. What goes over is one fixed argument list, quoted, which the
    key's forced command splits and checks again.
    """

    host: str
    user: str
    key_file: str
    known_hosts: str
    control_path: str
    port: int = 22
    environment: Mapping[str, str] = field(default_factory=dict)

    def argv(self, remote: Sequence[str]) -> list[str]:
        options = {
            "BatchMode": "yes",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": self.known_hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "IdentitiesOnly": "yes",
            "PasswordAuthentication": "no",
            "ConnectTimeout": "5",
            "ServerAliveInterval": "5",
            "ServerAliveCountMax": "2",
            "ControlMaster": "auto",
            "ControlPath": self.control_path,
            "ControlPersist": "300",
            "ClearAllForwardings": "yes",
            "LogLevel": "ERROR",
        }
        flat = [part for name, value in options.items() for part in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "/dev/null", "-T", *flat, "-i", self.key_file, "-p", str(self.port), "-l", self.user,
                "--", self.host, shlex.join(remote)]  # fmt: skip

    def run(self, argv: Sequence[str], timeout_s: float) -> Answer:
        answer = _run(self.argv(argv), timeout_s, {"PATH": "/usr/bin:/bin", **self.environment})
        if answer.code == 255:  # the client's own failures; Slurm's commands do not end with it
            raise SchedulerUnreachable(f"ssh {self.user}@{self.host}:{self.port}: {answer.err.strip()[:300]}")
        return answer


def _run(argv: Sequence[str], timeout_s: float, environment: Mapping[str, str]) -> Answer:
    try:
        done = subprocess.run(  # noqa: S603 -- a fixed argument list, no shell
            list(argv), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False,
            env=dict(environment),
        )  # fmt: skip
    except subprocess.TimeoutExpired as why:
        raise SchedulerUnreachable(f"{argv[0]}: no answer within {timeout_s} s") from why
    except OSError as why:
        raise SchedulerUnreachable(f"{argv[0]}: {why}") from why
    if len(done.stdout) > MAX_ANSWER_BYTES:
        raise SchedulerUnreachable(f"{argv[0]}: an answer of {len(done.stdout)} bytes")
    return Answer(
        code=done.returncode, out=done.stdout.decode("utf-8", "replace"), err=done.stderr.decode("utf-8", "replace")
    )
