# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Background work, each in a thread of its own: a file system that hangs must not stop the watchdog."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import structlog

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Chore:
    """Something to do again and again; `trouble` is why it failed last, empty once it succeeded again."""

    name: str
    every_s: float
    do: Callable[[], object]
    failed: Callable[[str], object] = lambda _: None
    trouble: str = field(default="", init=False)

    def once(self) -> None:
        """Errors: none; what fails is tried again next time, and said meanwhile."""
        try:
            self.do()
        except Exception as why:  # noqa: BLE001 -- a thread that ends unseen would look like a healthy one
            self.trouble = repr(why)[:300]
            self.failed(self.name)
            log.error("chore_failed", chore=self.name, error=self.trouble)
        else:
            self.trouble = ""

    def run(self, stop: threading.Event) -> None:
        while not stop.wait(self.every_s):
            self.once()


def started(chores: Sequence[Chore], stop: threading.Event) -> list[threading.Thread]:
    threads = [threading.Thread(target=one.run, args=(stop,), name=one.name, daemon=True) for one in chores]
    for thread in threads:
        thread.start()
    return threads
