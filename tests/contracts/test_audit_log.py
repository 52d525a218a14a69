# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Every audit log of ours keeps the contract."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from relight.ports import AuditLog
from relight.testing.audit import AuditLogContract, MemoryAuditLog
from service.adapters.clock import SystemClock
from service.adapters.duckdb_audit import DuckDBAuditLog


class TestMemoryAuditLog(AuditLogContract):
    def make(self) -> AuditLog:
        return MemoryAuditLog()


class TestDuckDBAuditLog(AuditLogContract):
    @pytest.fixture(autouse=True)
    def folder(self, tmp_path: Path) -> None:
        self._folder, self._numbers = tmp_path, count(1)

    def make(self) -> AuditLog:
        return DuckDBAuditLog(self._folder / f"{next(self._numbers)}.duckdb", SystemClock())

    def reopen(self, log: AuditLog) -> AuditLog:
        assert isinstance(log, DuckDBAuditLog)
        log.close()
        return DuckDBAuditLog(log.path, SystemClock())

    def export_folder(self) -> str:
        return str(self._folder / "export")
