# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Faults from within: a rank does what its control file says, so that it fails as real programs do."""

from __future__ import annotations

import json
import math
import os
import random
import time
from pathlib import Path
from typing import Any

_FULL = Path("/dev/full")
_FINAL = frozenset({"exception", "exit", "loop"})


class Faults:
    """What a rank's control file orders; looked at once a step, and gone when the file is.

    Orders: slow {delay_s, share}, exception {text}, exit {code}, loop, nan, full_disk; each may have
    `from_step`. An order that ends the rank is taken off first unless it says `keep`, so that the next
    attempt is spared. Errors: ValueError for an order that nobody knows.
    """

    def __init__(self, control: Path, rank: int) -> None:
        self._control = control
        self._rank = rank
        self._seen: tuple[int, int] | None = None
        self._order: dict[str, Any] = {}
        self._dice = random.Random(rank)

    def before_collective(self, step: int) -> float:
        """Do what is ordered within the local work of a step; returns what to multiply the loss with."""
        order = self._current(step)
        if order.get("fault") in _FINAL and not order.get("keep"):
            self._control.unlink(missing_ok=True)
        match order.get("fault"):
            case None | "full_disk":
                return 1.0
            case "slow":
                if self._dice.random() < float(order.get("share", 1.0)):
                    time.sleep(float(order.get("delay_s", 0.1)))
                return 1.0
            case "nan":
                return math.nan
            case "exception":
                text = f"data shard {self._rank}: token id 65021 is out of range for vocabulary size 512"
                raise ValueError(str(order.get("text") or text))
            case "exit":
                os._exit(int(order.get("code", 7)))
            case "loop":
                _refill_shuffle_buffer()
            case unknown:
                raise ValueError(f"{self._control}: no fault {unknown!r}")
        return 1.0

    def disk(self, path: Path, step: int) -> Path:
        """Where to write instead of `path`: on a full disk, the device whose every write fails with ENOSPC."""
        return _FULL if self._current(step).get("fault") == "full_disk" else path

    def _current(self, step: int) -> dict[str, Any]:
        try:
            found = self._control.stat()
        except FileNotFoundError:
            self._seen, self._order = None, {}
            return self._order
        version = (found.st_mtime_ns, found.st_ino)
        if version != self._seen:
            self._order = json.loads(self._control.read_text())
            self._seen = version
        return self._order if step >= int(self._order.get("from_step", 0)) else {}


def _refill_shuffle_buffer() -> None:
    """Never comes back: the bug of a data loader that waits for a sample it has already dropped."""
    while True:
        pass
