# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Held lines in memory, beside an audit log that is in memory too: as durable as everything else there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from service.holding import Spot


class HeldInMemory:
    """The store of replays and tests."""

    def __init__(self) -> None:
        self._segments: dict[int, list[bytes]] = {}

    def append(self, records: Sequence[bytes]) -> list[Spot]:
        current = max(self._segments, default=0)
        kept = self._segments.setdefault(current, [])
        kept += records
        first = len(kept) - len(records)
        return [Spot(current, first + place, len(record)) for place, record in enumerate(records)]

    def read(self, spot: Spot) -> bytes:
        return self._segments[spot.segment][spot.offset]

    def begin(self) -> int:
        current = max(self._segments, default=0) + 1
        self._segments[current] = []
        return current

    def drop(self, segment: int) -> None:
        self._segments.pop(segment, None)

    def stored(self) -> Iterator[tuple[Spot, bytes]]:
        for segment, kept in sorted(self._segments.items()):
            for place, record in enumerate(kept):
                yield Spot(segment, place, len(record)), record
