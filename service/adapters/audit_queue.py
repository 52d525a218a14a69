# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The bounded queue in front of the audit log's writer, which hands out groups to commit together."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

from relight.chain import Draft
from relight.ports import AuditUnavailable, Recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """Drafts to be recorded all or none; `answer` resolves once they are durable."""

    drafts: Sequence[Draft]
    answer: Future[tuple[Recorded, ...]] = field(default_factory=Future)


# A group that is due takes along what waits already: larger commits cost less a row.
_FILL = 10


class GroupQueue:
    """Collects requests until `group_rows` wait or `linger_s` has passed since the first.

    It lingers only for company: if the last group held a single request, the next is handed out at
    once, and otherwise as soon as as many rows wait as the last group had. A lone caller so pays for
    one commit, while many callers share one.
    """

    def __init__(self, *, group_rows: int, linger_s: float, max_rows: int) -> None:
        if not 0 < group_rows <= max_rows or linger_s < 0:
            raise ValueError(
                f"need 0 < group_rows <= max_rows and linger_s >= 0, got {group_rows=} {max_rows=} {linger_s=}"
            )
        self._group_rows, self._linger_s, self._max_rows = group_rows, linger_s, max_rows
        self._waiting: deque[Request] = deque()
        self._rows = 0
        self._expected_rows = 1
        self._closed_because = ""
        self._changed = threading.Condition()

    def put(self, request: Request) -> None:
        """Queue the request; AuditUnavailable if the queue is full or closed."""
        rows = len(request.drafts)
        with self._changed:
            if self._closed_because:
                raise AuditUnavailable(self._closed_because)
            if self._rows and self._rows + rows > self._max_rows:
                raise AuditUnavailable(
                    f"{self._rows} events wait to be recorded and {rows} more exceed the limit of "
                    f"{self._max_rows}: retry",
                    retry_after_s=max(1.0, 10 * self._linger_s),
                )
            self._waiting.append(request)
            self._rows += rows
            self._changed.notify_all()

    def next_group(self, patience_s: float | None = None) -> list[Request] | None:
        """The next group, [] if none came within `patience_s`, None once closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._closed_because, patience_s)
            if not self._waiting:
                return None if self._closed_because else []
            self._await_company()
            return self._take()

    def close(self, because: str) -> list[Request]:
        """Refuse further requests, with this reason; returns those that still wait."""
        with self._changed:
            self._closed_because = self._closed_because or because
            self._changed.notify_all()
            return list(self._waiting)

    def _await_company(self) -> None:
        wanted = min(self._group_rows, self._expected_rows)
        until = time.monotonic() + self._linger_s
        while self._rows < wanted and not self._closed_because:
            left = until - time.monotonic()
            if left <= 0 or not self._changed.wait(left):
                return

    def _take(self) -> list[Request]:
        group: list[Request] = []
        rows = 0
        while self._waiting and rows < _FILL * self._group_rows:
            request = self._waiting.popleft()
            group.append(request)
            rows += len(request.drafts)
        self._rows -= rows
        self._expected_rows = rows if len(group) > 1 else 1
        return group
