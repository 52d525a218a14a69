# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the audit log has mended or doubts since this start: its own record, told where people look."""

from __future__ import annotations

import threading
from datetime import datetime

from relight.events import AuditRepaired, Repair
from relight.ports import AuditFilter, AuditLog

SERIOUS = frozenset(
    {Repair.WAL_QUARANTINED, Repair.SPILL_QUARANTINED, Repair.TAIL_MISSING, Repair.CHAIN_BROKEN}
)  # fmt: skip
_MAX = 100


class Repairs:
    """Reads on from where it was, as the log also mends itself while it is open; thread-safe."""

    def __init__(self, audit: AuditLog, opened_at: datetime) -> None:
        self._audit, self._lock = audit, threading.Lock()
        self._read = audit.head().position
        self._found = self._after(0, AuditFilter(kinds=(AuditRepaired.kind,), since=opened_at))

    def all(self) -> tuple[AuditRepaired, ...]:
        """The newest of this start, in order. Errors: AuditUnavailable."""
        head = self._audit.head().position
        with self._lock:
            if head > self._read:
                fresh = self._after(self._read, AuditFilter(kinds=(AuditRepaired.kind,)))
                self._found, self._read = (*self._found, *fresh)[-_MAX:], head
            return self._found

    def serious(self) -> tuple[AuditRepaired, ...]:
        """Those after which something recorded may be missing or changed: a person should know."""
        return tuple(one for one in self.all() if one.repair in SERIOUS)

    def _after(self, position: int, where: AuditFilter) -> tuple[AuditRepaired, ...]:
        events = (stored.event for stored in self._audit.read(position, _MAX, where))
        return tuple(one for one in events if isinstance(one, AuditRepaired))
