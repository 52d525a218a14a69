# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Lines on which a verdict may rest, kept on record: nobody sends a pushed line twice because we were restarted."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from relight.types import AttemptId, LogLine, NodeName, Rank, Stream

TOLD, OWED = "told", "told_owed"
MAX_IN_BATCH = 120
MAX_OF_ATTEMPT = 600
MAX_ATTEMPTS = 2_000
MAX_TEXT = 1_000
# What follows a claim may be its message: the exception below the frames, the second line of an error.
_AFTER = 3
# As many lines of progress behind a claim as show that training went on.
_PROGRESS = 6

_STREAMS = frozenset(one.value for one in Stream)

Row = list[Any]


def worth_telling(
    lines: Sequence[LogLine], marks: Mapping[int, bool], progress: Iterable[int], room: int, owed: int
) -> tuple[list[Row], int]:
    """The lines of a batch on which a verdict may rest, as JSON, and how many lines of progress are owed after it.

    Shapes: `marks` are the places of lines that a signature matches, true where it claims a failure; `progress` are
            those that state progress; `owed` is what an earlier batch left open. At most 120 rows, and no more than
            there is `room` for: the earliest, since a cause stands before its echoes.
    """
    claims = sorted(place for place, claims in marks.items() if claims)
    steps = sorted(progress)
    wanted = dict.fromkeys(steps[:owed])
    owed -= len(wanted)
    for place in claims:
        near = range(place, min(len(lines), place + 1 + _AFTER))
        wanted.update((n, None) for n in near if lines[n].file == lines[place].file)
        before = bisect_left(steps, place)
        wanted.update((n, None) for n in steps[max(before - 1, 0) : before])
    if claims:
        behind = steps[bisect_right(steps, claims[-1]) :][:_PROGRESS]
        wanted.update(dict.fromkeys(behind))
        owed = _PROGRESS - len(behind)
    return [_row(lines[n]) for n in sorted(wanted)[: max(0, min(room, MAX_IN_BATCH))]], owed


def _row(line: LogLine) -> Row:
    at = line.at.isoformat() if line.at is not None else None
    return [line.file, line.number, line.stream.value, line.text[:MAX_TEXT], at, line.node, line.rank]


class ToldLines:
    """The rows on record, of the attempts that claimed something last; bounded for each and in all.

    Errors: none; a row that this version can't read is left out.
    """

    def __init__(self) -> None:
        self._rows: OrderedDict[AttemptId, list[Row]] = OrderedDict()
        self._owed: dict[AttemptId, int] = {}

    def add(self, attempt: AttemptId, said: Sequence[Row], owed: int) -> None:
        kept = self._rows.setdefault(attempt, [])
        kept += said[: MAX_OF_ATTEMPT - len(kept)]
        self._owed[attempt] = owed
        self._rows.move_to_end(attempt)
        while len(self._rows) > MAX_ATTEMPTS:
            oldest, _ = self._rows.popitem(last=False)
            self._owed.pop(oldest, None)

    def owed(self, attempt: AttemptId) -> int:
        return self._owed.get(attempt, 0)

    def room(self, attempt: AttemptId) -> int:
        return MAX_OF_ATTEMPT - len(self._rows.get(attempt, ()))

    def lines(self, attempt: AttemptId) -> list[LogLine]:
        """In order of their numbers, file by file."""
        read = [line for row in self._rows.get(attempt, ()) if (line := _line(attempt, row)) is not None]
        return sorted(read, key=lambda line: (line.file, line.number))


def _line(attempt: AttemptId, row: Row) -> LogLine | None:
    match row:
        case [str(file), int(number), str(stream), str(text), at, node, rank] if stream in _STREAMS:
            return LogLine(
                attempt=attempt,
                file=file,
                number=number,
                stream=Stream(stream),
                text=text,
                at=datetime.fromisoformat(at) if isinstance(at, str) else None,
                node=NodeName(node) if isinstance(node, str) else None,
                rank=Rank(rank) if isinstance(rank, int) else None,
            )
        case _:
            return None
