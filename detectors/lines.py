# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The lines of a log as prefix and message, parsed when asked for, with the time near each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import overload

from detectors.line_prefix import Prefix, own_time, read_prefix
from detectors.log_text import LogText
from detectors.tracebacks import Message

MAX_TEXT = 600
_NEAR_LINES = 40
_YEAR = re.compile(rb"\b(20[0-4]\d)[-/]\d\d[-/]\d\d|\b\d\d:\d\d:\d\d (20[0-4]\d)\]|[-/](20[0-4]\d) \d\d:")


class Lines(Sequence[Message]):
    """The lines of a log as prefix and message, parsed when asked for."""

    def __init__(self, log: LogText) -> None:
        self._log = log
        self._year = log.year if log.year is not None else year_of(log.lines)
        self._prefixes: dict[int, tuple[Prefix, Message]] = {}

    def __len__(self) -> int:
        return len(self._log.lines)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._parsed(i)[1] for i in range(*index.indices(len(self)))]
        return self._parsed(index)[1]

    def size(self, index: int) -> int:
        """Bytes of the whole line."""
        return len(self._log.lines[index])

    def prefix(self, index: int) -> Prefix:
        return self._parsed(index)[0]

    def near_time(self, index: int) -> datetime | None:
        """The time of a line, or of the next stamped line behind it, else of the last one before it."""
        ahead = range(index, min(len(self), index + _NEAR_LINES))
        behind = range(index - 1, max(-1, index - _NEAR_LINES), -1)
        stated = own_time(self._log.lines[index][:MAX_TEXT].decode("utf-8", "replace"), self._year)
        return stated or next((at for i in (*ahead, *behind) if (at := self.prefix(i).at) is not None), None)

    def _parsed(self, index: int) -> tuple[Prefix, Message]:
        known = self._prefixes.get(index)
        if known is None:
            text = self._log.lines[index][:8_000].decode("utf-8", "replace")
            prefix = read_prefix(text, self._year)
            known = self._prefixes[index] = (prefix, Message(text[: prefix.start], text[prefix.start :]))
        return known


def year_of(lines: Sequence[bytes]) -> int | None:
    for line in [*lines[:300], *lines[-300:]]:
        found = _YEAR.search(line)
        if found is not None:
            return int(next(g for g in found.groups() if g))
    return None
