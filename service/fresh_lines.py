# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which lines of a batch are new: told by their number, else by their time, else by their batch alone."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from relight.types import AttemptId, LogLine
from service.dedup import SeenLately

_Place = tuple[AttemptId, str]


class FreshLines:
    """The lines of a batch that were not seen before; what it learns counts only once it is on record."""

    def __init__(self, seen: SeenLately, numbers: Mapping[AttemptId, Mapping[str, int]]) -> None:
        self._seen = seen
        self._known = numbers
        self.numbers: dict[_Place, int] = {}
        self.keys: set[bytes] = set()
        self.by_attempt: dict[AttemptId, list[LogLine]] = {}
        self.count = 0

    def take(self, lines: Sequence[LogLine], batch: bytes) -> None:
        whole = b"batch" + batch
        is_repeated = whole in self._seen
        self.keys.add(whole)
        for line in lines:
            if line.number > 0:
                self._take_numbered(line)
            elif line.at is not None:
                self._take_timed(line)
            elif not is_repeated:
                self._keep(line)

    def _take_numbered(self, line: LogLine) -> None:
        place = (line.attempt, line.file)
        if line.number > self._highest(place):
            self.numbers[place] = line.number
            self._add(line)

    def _take_timed(self, line: LogLine) -> None:
        who = (str(line.node), str(line.rank))
        at = line.at.isoformat() if line.at is not None else ""
        key = key_of(line.attempt, line.file, *who, at, line.text)
        if key not in self._seen and key not in self.keys:
            self.keys.add(key)
            self._keep(line)

    def _keep(self, line: LogLine) -> None:
        """Lines that come without a number are counted as they arrive."""
        place = (line.attempt, line.file)
        self.numbers[place] = self._highest(place) + 1
        self._add(replace(line, number=self.numbers[place]))

    def _highest(self, place: _Place) -> int:
        found = self.numbers.get(place)
        return self._known.get(place[0], {}).get(place[1], 0) if found is None else found

    def _add(self, line: LogLine) -> None:
        self.by_attempt.setdefault(line.attempt, []).append(line)
        self.count += 1


def key_of(*parts: str) -> bytes:
    """One key for several words, so that no two lists of words share one."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
