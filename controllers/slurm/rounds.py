# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Runs rounds for ever: one process for each store, and no failure of a round ends the next."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol, TypeVar

from controllers.slurm.store import StoreUnusable


class Taken(RuntimeError):
    """Another process works with this folder."""


class Said(Protocol):
    """What a round tells."""

    @property
    def why(self) -> str: ...


R = TypeVar("R", bound=Said)


class Lock:
    """One controller a cluster: held as long as the process lives, whatever ends it."""

    def __init__(self, path: Path) -> None:
        self._handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as why:
            os.close(self._handle)
            raise Taken(f"{path}: another process holds it; stop that one first") from why

    def release(self) -> None:
        with suppress(OSError):
            os.close(self._handle)


def run_rounds(
    tick: Callable[[], R], pause: Callable[[float], bool], every_s: float, tell: Callable[[str], None]
) -> R | None:
    """Tick until `pause`, which waits that many seconds, says to stop; what goes wrong is told when it changes."""
    last: R | None = None
    before = ""
    while True:
        try:
            last = tick()
            why = last.why
        except (StoreUnusable, OSError) as failed:
            why = f"{type(failed).__name__}: {failed}"
        if why != before:
            tell(why or "well again")
            before = why
        if pause(every_s):
            return last
