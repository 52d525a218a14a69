# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Lines of one attempt with what they state, each line encoded once and matched with its neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from relight.shape import StatedShape
from relight.types import AttemptId, LogLine, StepProgress

Said = StepProgress | StatedShape


class Reader(Protocol):
    """What the service needs to read progress out of lines."""

    def read_batch(
        self, lines: Sequence[LogLine], raw: Sequence[bytes], received_at: datetime
    ) -> dict[int, tuple[Said, ...]]: ...
    def use_rules(self, progress: Any) -> None: ...
    def forget(self, attempt: AttemptId) -> None: ...


@dataclass(frozen=True, slots=True)
class ReadLines:
    """Lines in order, the same as bytes, and the progress and shape that they state by their places, in order too.

    `marks` are the places of lines that a signature matches, true where it claims a failure; None if not known yet.
    """

    lines: Sequence[LogLine]
    raw: Sequence[bytes]
    progress: Mapping[int, tuple[Said, ...]]
    marks: Mapping[int, bool] | None = None

    @property
    def stated(self) -> Iterator[Said]:
        """What the lines state."""
        return (seen for all_seen in self.progress.values() for seen in all_seen)


def read_lines(reader: Reader | None, lines: Sequence[LogLine], received_at: datetime) -> ReadLines:
    """Errors: none: any bytes may be a log line."""
    raw = [line.text.encode("utf-8", "surrogateescape") for line in lines]
    said = reader.read_batch(lines, raw, received_at) if reader is not None else {}
    return ReadLines(lines, raw, _without_repeats(said))


def _without_repeats(said: Mapping[int, tuple[Said, ...]]) -> dict[int, tuple[Said, ...]]:
    """A shape that is stated over and over in the same words, as in every step line, is told once a batch.

    It stands before the progress of its line.
    """
    found: dict[int, tuple[Said, ...]] = {}
    last: Said | None = None
    for place in sorted(said):
        seen = said[place]
        if isinstance(seen[0], StatedShape):
            if seen[0] is last:
                seen = seen[1:]
            else:
                last = seen[0]
        if seen:
            found[place] = seen
    return found
