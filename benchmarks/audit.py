# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Durable audit events a second: group commit against one commit a row, in the same run on the same disk."""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import duckdb

from relight.chain import GENESIS, draft
from relight.events import Event
from relight.testing.audit import failure
from service.adapters.audit_migrations import apply, shipped
from service.adapters.audit_store import connect
from service.adapters.clock import SystemClock
from service.adapters.duckdb_audit import AuditOptions, DuckDBAuditLog

BATCH = 500


@dataclass(frozen=True, kw_only=True)
class Rate:
    """Events a second, and how long a caller waited for an acknowledgement."""

    events: int
    events_per_s: float
    ack_p50_ms: float
    ack_p99_ms: float


def rate(record: Callable[[Sequence[Event]], object], events: int, *, callers: int, batch: int) -> Rate:
    """Let `callers` threads record `events` events, `batch` at a time, each waiting for its answer."""
    batches = [[failure(number) for number in range(start, start + batch)] for start in range(0, events, batch)]
    waits: list[float] = []

    def timed(some: Sequence[Event]) -> None:
        began = time.perf_counter()
        record(some)
        waits.append(time.perf_counter() - began)

    with ThreadPoolExecutor(callers) as pool:
        list(pool.map(timed, batches[:callers]))
        waits.clear()
        began = time.perf_counter()
        list(pool.map(timed, batches))
        took = time.perf_counter() - began
    cuts = statistics.quantiles(waits, n=100)
    return Rate(
        events=events,
        events_per_s=round(events / took, 1),
        ack_p50_ms=round(cuts[49] * 1e3, 2),
        ack_p99_ms=round(cuts[98] * 1e3, 2),
    )


def one_commit_a_row(folder: Path, events: int) -> Rate:
    """The peer: DuckDB as one would use it at first, an INSERT with autocommit for every event."""
    connection = connect(folder / "peer.duckdb")
    for migration in shipped():
        apply(connection, migration)
    sql = "INSERT INTO event VALUES (?, make_timestamp(?), ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    head = GENESIS

    def record(some: Sequence[Event]) -> None:
        nonlocal head
        for event in some:
            row = draft(event).seal(head)
            connection.execute(sql, list(row))
            head = row.head

    measured = rate(record, events, callers=1, batch=1)
    connection.close()
    return measured


def group_commit(folder: Path, events: int, *, callers: int, batch: int) -> Rate:
    log = DuckDBAuditLog(folder / f"{callers}-{batch}.duckdb", SystemClock(), AuditOptions())
    measured = rate(log.append, events, callers=callers, batch=batch)
    assert log.verify().is_sound
    log.close()
    return measured


def verification(folder: Path, events: int) -> float:
    """Events a second that `verify` walks."""
    log = DuckDBAuditLog(folder / "verify.duckdb", SystemClock())
    for start in range(0, events, 5_000):
        log.append([failure(number) for number in range(start, start + 5_000)])
    began = time.perf_counter()
    found = log.verify()
    took = time.perf_counter() - began
    assert found.is_sound
    log.close()
    return round(found.events / took, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of events")
    scale = parser.parse_args().scale
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        rates = {
            "one_commit_a_row": one_commit_a_row(folder, int(300 * scale)),
            "one_caller": group_commit(folder, int(300 * scale), callers=1, batch=1),
            "64_callers": group_commit(folder, int(10_000 * scale), callers=64, batch=1),
            "8_callers_of_500": group_commit(folder, int(50_000 * scale), callers=8, batch=BATCH),
        }
        walked = verification(folder, int(50_000 * scale))
    base = rates["one_commit_a_row"].events_per_s
    for label, one in rates.items():
        print(
            f"{label:18} {one.events_per_s:>10,.0f} events/s  {one.events_per_s / base:>7.1f} x  "
            f"acknowledged in p50 {one.ack_p50_ms:.1f} ms, p99 {one.ack_p99_ms:.1f} ms"
        )
    print(f"{'verify':18} {walked:>10,.0f} events/s")
    said = {
        "benchmark": "audit",
        "duckdb": duckdb.__version__,
        "rates": {label: asdict(one) for label, one in rates.items()},
        "verify_events_per_s": walked,
        "ratio_64_callers": round(rates["64_callers"].events_per_s / base, 1),
        "ratio": round(rates["8_callers_of_500"].events_per_s / base, 1),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main()
