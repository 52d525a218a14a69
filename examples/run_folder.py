# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The folder of one run: its logs, pid files, checkpoints, and the files that inject faults."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`relight inject` knows this layout too: `pids/rankN.json` and `control/rankN.json`."""

    path: Path

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    def control(self, rank: int) -> Path:
        return self.path / "control" / f"rank{rank}.json"

    def pid_file(self, rank: int) -> Path:
        return self.path / "pids" / f"rank{rank}.json"

    def announce(self, rank: int) -> None:
        """Write who this rank is; the start time tells the process from a later one with the same pid."""
        said = {"pid": os.getpid(), "started": started_at(os.getpid()), "host": socket.gethostname()}
        replace_text(self.pid_file(rank), json.dumps(said))


def started_at(pid: int) -> int:
    """When a process began, in clock ticks since the boot (proc_pid_stat(5), field 22)."""
    stat = Path(f"/proc/{pid}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[19])


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old text or the new one, never half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    fresh.write_text(text)
    fresh.replace(path)
