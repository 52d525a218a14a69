# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The runs of all workloads, brought up to date from the audit log when somebody looks."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from relight.goodput import Run
from relight.ports import AuditFilter, AuditLog
from relight.timesheet import KINDS, Timesheet
from relight.types import WorkloadId

_BATCH = 5_000


class TimeUsed:
    """Reads only what was recorded since the last look; the first look after a start reads everything."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._lock = threading.Lock()
        self._sheet = Timesheet()
        self._position = 0

    def workloads(self) -> Mapping[WorkloadId, tuple[Run, ...]]:
        with self._lock:
            self._catch_up()
            return self._sheet.workloads()

    def workload(self, name: WorkloadId) -> tuple[Run, ...]:
        with self._lock:
            self._catch_up()
            return self._sheet.workload(name)

    def _catch_up(self) -> None:
        where = AuditFilter(kinds=KINDS)
        while batch := self._audit.read(after=self._position, limit=_BATCH, where=where):
            for stored in batch:
                self._sheet.apply(stored.event)
            self._position = batch[-1].position
