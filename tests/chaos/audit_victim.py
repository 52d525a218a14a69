# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A process that records as fast as it can and prints what was acknowledged, until it is killed."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from relight.testing.audit import failure
from service.adapters.clock import SystemClock
from service.adapters.duckdb_audit import AuditOptions, DuckDBAuditLog

CALLERS = 4


def main(path: Path, round_number: int, checkpoint_bytes: int) -> None:
    """Prints `head position` once, then a line `position detector` for every event acknowledged."""
    log = DuckDBAuditLog(path, SystemClock(), AuditOptions(checkpoint_bytes=checkpoint_bytes))
    head = log.head()
    tail = {one.position: one.event for one in log.read(after=max(0, head.position - 2_000), limit=2_000)}
    for line in sys.stdin:
        position, detector = line.split()
        event = tail.get(int(position))
        if getattr(event, "detector", None) != detector:
            print(f"lost {position} {detector} {event}", flush=True)
    verified = log.verify()
    print(f"head {head.position} {verified.is_sound} {verified.events} {verified.broken}", flush=True)

    def record(caller: int) -> None:
        for number in range(1_000_000):
            event = failure(round_number * 1_000_000 + number * CALLERS + caller)
            if number % 3:
                positions = log.append([event])
            else:
                positions = (log.record_once(f"{round_number}/{caller}/{number}", event).position,)
            sys.stdout.write(f"{positions[0]} {event.detector}\n")
            sys.stdout.flush()

    for caller in range(CALLERS):
        threading.Thread(target=record, args=(caller,), daemon=True).start()
    threading.Event().wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
