# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which lines of a batch are new: told by their number, else by their time, else by their batch alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from struct import Struct

from relight.types import AttemptId, LogLine
from service.dedup import SeenLately
from service.drafts import renumbered

_Place = tuple[AttemptId, str]
_MOMENT = Struct("<d")


class FreshLines:
    """The lines of a batch that were not seen before; what it learns counts only once it is on record.

    A program may print the same words twice at one time, to the resolution of its clock, and a sender may send
    a batch twice. So equal lines are counted within a batch, and what counts as seen is the most that any one
    batch held: the second of two is new the first time, and neither is when they come again, in whatever batch.
    Lines without number and time are new unless the whole batch came before, to the same attempt.
    `told` carries the count on over batches that are known to be different, such as those that were held.
    Lines get their number where they stay: not if `is_final` is False, as for those that are held.
    """

    def __init__(
        self,
        seen: SeenLately,
        numbers: Mapping[AttemptId, Mapping[str, int]],
        told: dict[bytes, int] | None = None,
        *,
        is_final: bool = True,
    ) -> None:
        self._seen = seen
        self._known = numbers
        self._told = {} if told is None else told
        self._is_final = is_final
        self._origins: dict[tuple[object, ...], bytes] = {}
        self._numbers: dict[_Place, int] = {}
        self.keys_of: dict[AttemptId, set[bytes]] = {}
        self.by_attempt: dict[AttemptId, list[LogLine]] = {}
        self.count = 0

    @property
    def keys(self) -> Iterator[bytes]:
        """What is to be remembered of the lines once they are on record."""
        return (key for own in self.keys_of.values() for key in own)

    def take(self, lines: Sequence[LogLine], batch: bytes) -> None:
        """Sort the lines of a batch by attempts, without those that were seen before."""
        for attempt, own in _by_attempt(lines):
            if fresh := self.taken(own, batch):
                self.by_attempt.setdefault(attempt, []).extend(fresh)

    def taken(self, lines: Sequence[LogLine], batch: bytes) -> list[LogLine]:
        """The new ones among lines of one attempt."""
        if not lines:
            return []
        attempt = lines[0].attempt
        whole = whole_key(batch, attempt)
        if whole in self._seen:
            return []
        keys = self.keys_of.setdefault(attempt, set())
        keys.add(whole)
        fresh: list[LogLine] = []
        self._take(lines, fresh, keys)
        self.count += len(fresh)
        return fresh

    def _take(self, lines: Sequence[LogLine], fresh: list[LogLine], keys: set[bytes]) -> None:
        file, highest, place = None, 0, None
        for line in lines:
            if line.file != file:
                if place is not None:
                    self._numbers[place] = highest
                file, place = line.file, (line.attempt, line.file)
                highest = self._highest(place)
            if line.number > 0:
                if line.number > highest:
                    highest = line.number
                    fresh.append(line)
            elif line.at is None or self._is_new(line, line.at, keys):
                highest += self._is_final  # lines that come without a number are counted as they arrive
                fresh.append(renumbered(line, highest) if self._is_final else line)
        if place is not None:
            self._numbers[place] = highest

    def _is_new(self, line: LogLine, at: datetime, keys: set[bytes]) -> bool:
        origin = (line.attempt, line.file, line.node, line.rank)
        words = self._origins.get(origin)
        if words is None:
            words = self._origins[origin] = "\0".join(map(str, origin)).encode("utf-8", "surrogatepass")
        text = line.text.encode("utf-8", "surrogatepass")
        key = hashlib.blake2b(words + _MOMENT.pack(at.timestamp()) + text, digest_size=16).digest()
        nth = self._told[key] = self._told.get(key, 0) + 1
        if nth > 1:
            key += nth.to_bytes(4, "little")
        if key in self._seen:
            return False
        keys.add(key)
        return True

    def _highest(self, place: _Place) -> int:
        found = self._numbers.get(place)
        return self._known.get(place[0], {}).get(place[1], 0) if found is None else found


def _by_attempt(lines: Sequence[LogLine]) -> list[tuple[AttemptId, Sequence[LogLine]]]:
    """The lines of each attempt in order; most often a batch is of one."""
    first = lines[0].attempt if lines else None
    if all(line.attempt == first for line in lines):
        return [(first, lines)] if first is not None else []
    groups: dict[AttemptId, list[LogLine]] = {}
    for line in lines:
        groups.setdefault(line.attempt, []).append(line)
    return list(groups.items())


def whole_key(batch: bytes, attempt: AttemptId) -> bytes:
    """What is remembered of a batch as a whole: that an attempt has had its lines."""
    return key_of("batch", batch.hex(), attempt)


def key_of(*parts: str) -> bytes:
    """One key for several words, so that no two lists of words share one."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()
