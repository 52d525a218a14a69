# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Hold slips: what the controller tells the watchdog of a hold before it places it.

A finished job can't be marked, and a requeued one is held a moment before its mark can be set. A slip
covers that moment: should the controller die in it, the watchdog knows whose hold it is and until when.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from relight.hold_mark import HoldMark, read_mark

_NAME = re.compile(r"(\d{1,10})\.hold")


class Slips(Protocol):
    """Slips by job id. Errors: OSError where a slip can't be made durable; then no hold is placed."""

    def put(self, job_id: str, mark: HoldMark) -> None: ...
    def drop(self, job_id: str) -> None: ...
    def all(self) -> Mapping[str, HoldMark]: ...


class FolderOfSlips:
    """One small file a job, in a folder that the controller writes and the watchdog reads."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)

    def put(self, job_id: str, mark: HoldMark) -> None:
        whole, part = self._folder / f"{job_id}.hold", self._folder / f"{job_id}.part"
        with part.open("w", encoding="ascii") as file:
            file.write(mark.text())
            file.flush()
            os.fsync(file.fileno())
        part.replace(whole)
        self._sync()

    def drop(self, job_id: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            (self._folder / f"{job_id}.hold").unlink()

    def all(self) -> Mapping[str, HoldMark]:
        found: dict[str, HoldMark] = {}
        for path in sorted(self._folder.iterdir()):
            name = _NAME.fullmatch(path.name)
            if name is None:
                continue
            with contextlib.suppress(FileNotFoundError):
                mark = read_mark(path.read_text("ascii", errors="replace")[:400])
                if mark is not None:
                    found[name[1]] = mark
        return found

    def _sync(self) -> None:
        handle = os.open(self._folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
