# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Where a job's output goes: Slurm's file name patterns, filled in."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass

_PATTERN = re.compile(r"%(\d{0,2})([%AaJjNnstuxb])")
MAX_PADDING = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOwner:
    """What the patterns stand for; the batch script writes as task 0 of node 0."""

    job_id: str
    name: str = ""
    user: str = ""
    node: str = ""
    work_dir: str = ""
    array_job: str | None = None
    array_task: int | None = None


def log_path(pattern: str, owner: LogOwner) -> str | None:
    """The path of a batch script's output; None for /dev/null and for no path at all."""
    if pattern.strip() in {"", "(null)", "none", "/dev/null"}:
        return None
    filled = pattern if "\\" in pattern else _PATTERN.sub(lambda found: _filled(found, owner), pattern)
    return posixpath.normpath(posixpath.join(owner.work_dir or "/", filled.replace("\\", "")))


def _filled(found: re.Match[str], owner: LogOwner) -> str:
    width, letter = found.groups()
    task = "" if owner.array_task is None else str(owner.array_task)
    values = {
        "%": "%",
        "A": owner.array_job or owner.job_id,
        "a": task or "4294967294",
        "b": str(owner.array_task % 10) if owner.array_task is not None else "4294967294",
        "j": owner.job_id,
        "J": owner.job_id,
        "N": owner.node,
        "n": "0",
        "s": "batch",
        "t": "0",
        "u": owner.user,
        "x": owner.name,
    }
    value = values[letter]
    if width and letter in "AajJnt" and value.isdigit():
        return value.zfill(min(int(width), MAX_PADDING))
    return value
