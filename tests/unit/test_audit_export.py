# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""An export is complete or absent, and carries enough to check the chain without the database."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from relight.chain import ChainWalk, Record, microseconds
from relight.events import from_json
from relight.ports import AuditFilter, AuditUnavailable
from relight.testing.audit import NOON, failure, samples
from service.adapters.clock import SystemClock
from service.adapters.duckdb_audit import DuckDBAuditLog


def test_the_chain_can_be_checked_from_the_export_alone(tmp_path: Path) -> None:
    log = DuckDBAuditLog(tmp_path / "audit.duckdb", SystemClock())
    log.append(samples())
    log.record_once("key", failure(1))
    made = log.export(str(tmp_path / "out"))
    log.close()
    table = pq.read_table(made.path)
    assert [from_json(json.loads(text)) for text in table["payload"].to_pylist()] == [*samples(), failure(1)]
    assert table.schema.metadata[b"head_position"] == b"6"
    assert table.schema.metadata[b"head_hash"].decode() == made.head.hash
    rows = table.rename_columns(Record._fields).to_pylist()
    walk = ChainWalk(anchor=made.head)
    records = [Record(**{**row, "at_us": microseconds(row["at_us"].replace(tzinfo=NOON.tzinfo))}) for row in rows]
    assert walk.see(records)
    assert walk.finish().events == 6


def test_an_export_replaces_the_last_one_and_leaves_nothing_unfinished(tmp_path: Path) -> None:
    log = DuckDBAuditLog(tmp_path / "audit.duckdb", SystemClock())
    log.append(samples())
    log.export(str(tmp_path / "out"))
    log.export(str(tmp_path / "out"), AuditFilter(since=NOON, kinds=("mode.changed", "service.started")))
    log.close()
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["events.parquet"]
    assert pq.read_table(tmp_path / "out" / "events.parquet")["position"].to_pylist() == [1, 5]


def test_an_export_while_events_arrive_holds_an_unbroken_beginning(tmp_path: Path) -> None:
    log = DuckDBAuditLog(tmp_path / "audit.duckdb", SystemClock())
    with ThreadPoolExecutor(4) as callers:
        arriving = [callers.submit(log.append, [failure(number)]) for number in range(120)]
        arriving[0].result()
        made = log.export(str(tmp_path / "out"))
    positions = pq.read_table(made.path)["position"].to_pylist()
    assert positions == list(range(1, made.head.position + 1))
    assert (made.events, made.last) == (len(positions), made.head.position)
    log.close()


def test_a_failed_export_leaves_the_last_one_and_says_so(tmp_path: Path) -> None:
    log = DuckDBAuditLog(tmp_path / "audit.duckdb", SystemClock())
    log.append(samples())
    made = log.export(str(tmp_path / "out"))
    before = Path(made.path).read_bytes()
    log.close()
    with pytest.raises(AuditUnavailable, match="closed"):
        log.export(str(tmp_path / "out"))
    assert Path(made.path).read_bytes() == before
