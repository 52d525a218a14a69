# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The timesheet of all workloads, brought up to date from the audit log when somebody looks."""

from __future__ import annotations

import threading

from relight.ports import AuditFilter, AuditLog
from relight.timesheet import KINDS, Timesheet

_BATCH = 5_000


class TimeUsed:
    """Reads only what was recorded since the last look; the first look after a start reads everything."""

    def __init__(self, audit: AuditLog) -> None:
        self._audit = audit
        self._lock = threading.Lock()
        self._sheet = Timesheet()
        self._position = 0

    def sheet(self) -> Timesheet:
        with self._lock:
            where = AuditFilter(kinds=KINDS)
            while batch := self._audit.read(after=self._position, limit=_BATCH, where=where):
                for stored in batch:
                    self._sheet.apply(stored.event)
                self._position = batch[-1].position
            return self._sheet
