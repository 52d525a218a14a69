# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The record over HTTP: read, filtered, proved, exported."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from service.adapters.duckdb_audit import DuckDBAuditLog
from tests.api.running import Service


def test_the_record_is_read_in_order_by_pages(service: Service) -> None:
    service.crash()
    service.advise()
    first = service.get("/v1/audit?limit=3").json()
    second = service.get(f"/v1/audit?limit=250&cursor={first['next_cursor']}").json()
    positions = [one["position"] for one in first["items"] + second["items"]]
    assert positions == list(range(1, len(service.audit.records) + 1))
    assert second["head"]["position"] == positions[-1]


def test_the_record_is_filtered_by_kind_entity_and_time(service: Service) -> None:
    service.crash()
    service.advise()
    only = service.get("/v1/audit?kind=recommendation.issued&attempt=a-1").json()["items"]
    assert [one["kind"] for one in only] == ["recommendation.issued"]
    assert service.get("/v1/audit?attempt=a-9").json()["items"] == []
    late = service.get("/v1/audit", params={"since": "2026-11-02T12:00:05Z"}).json()["items"]
    assert late and all(one["at"] >= "2026-11-02T12:00:05" for one in late)
    assert service.get("/v1/audit?kind=gossip").status_code == 422


def test_a_changed_record_and_a_cut_tail_are_found(service: Service) -> None:
    service.crash()
    service.advise()
    sound = service.post("/v1/audit/verify", json={}).json()
    assert (sound["is_sound"], sound["events"]) == (True, len(service.audit.records))
    service.audit.records.pop()
    cut = service.post("/v1/audit/verify", json={"anchor": sound["head"]}).json()
    assert (cut["is_sound"], service.post("/v1/audit/verify", json={}).json()["is_sound"]) == (False, True)
    del service.audit.records[2]
    broken = service.post("/v1/audit/verify", json={}).json()
    assert (broken["is_sound"], broken["broken"]["position"]) == (False, 3)


def test_the_export_is_parquet_and_leaves_nothing_behind(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.crash()
    log = DuckDBAuditLog(tmp_path / "audit.duckdb", service.clock)
    log.append(service.audit.events())
    application: Any = service.application
    monkeypatch.setattr(application.journal, "audit", log)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    answer = service.get("/v1/audit/export")
    table = pyarrow.parquet.read_table(io.BytesIO(answer.content))
    assert table.num_rows == len(service.audit.records)
    assert answer.headers["relight-audit-head"].startswith(f"{table.num_rows}:")
    assert not list(tmp_path.glob("relight-export-*"))
    log.close()
