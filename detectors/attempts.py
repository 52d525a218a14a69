# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Where the last attempt begins in a log that holds several: restart markers and appended runs.

A launcher's restart of its workers inside one attempt is none: what made it restart is the cause.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from detectors.log_text import LogText

_MARKERS: tuple[re.Pattern[bytes], ...] = tuple(
    re.compile(p)
    for p in (
        rb"^\W{0,4}={2,}\s*(?:restart|attempt|cycle|requeue|retry|new run)\b",
        rb"^\[job\] .*\brestart=[1-9]\d*\b",
        rb"\bSLURM_RESTART_COUNT[=:]\s*[1-9]\d*\b",
    )
)
_HINT = re.compile(rb"==|restart|RESTART")
_MARKS = (b"==", b"restart", b"RESTART", b"Starting elastic_operator")
_RUN_HEADER = b"Starting elastic_operator with launch configs"
_HEADER_GAP = 200


def attempt_starts(log: LogText) -> list[int]:
    """Indexes at which a later attempt begins; empty if the log holds one attempt only."""
    if log.absent.issuperset(_MARKS):
        return []
    starts = [
        i for i, line in enumerate(log.lines)
        if _HINT.search(line) and any(m.search(line[:400]) for m in _MARKERS)
    ]  # fmt: skip
    return sorted({*starts, *_appended_runs(log)})


def last_attempt_start(log: LogText) -> int:
    """Index of the first line of the last attempt."""
    starts = [s for s in attempt_starts(log) if any(line.strip() for line in log.lines[s + 1 : s + 50])]
    return starts[-1] if starts else 0


def _appended_runs(log: LogText) -> Iterator[int]:
    """A launcher's header far behind the first one: agents of one run print theirs close together."""
    last: int | None = None
    for index, line in enumerate(log.lines):
        if _RUN_HEADER in line:
            if last is not None and index - last > _HEADER_GAP:
                yield index
            last = index
