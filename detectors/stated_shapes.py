# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the lines of an attempt state of its shape, where that is no value that varies from step to step."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from relight.shape import MOST, StatedShape
from relight.types import AttemptId, Captures, CaptureValue, LogLine, LogRef
from rules.match import Hit

SHAPE = "shape"
SETTLED_AFTER = 3
_CAPTURES = ("batch", "sequence_length", "rank_batch", "accumulation")
Number = Callable[[CaptureValue | None], float | None]


@dataclass(slots=True)
class _Attempt:
    """What is known, and values of step lines that differ from it, with how often each came in a row."""

    known: StatedShape
    waiting: dict[str, tuple[int, int]] = field(default_factory=dict)
    words: Captures | None = None
    said: StatedShape | None = None
    spelled: tuple[int, bytes] | None = None


class StatedShapes:
    """Hears hits of shape signatures, and says what counts of them; it may have been said before.

    A configuration is printed once and counts at once. A step line may state what that very step took, as the
    length of a batch that is not padded: another value than before counts only from the third step in a row.
    Errors: none: a number that nobody trains with is left out.
    """

    def __init__(self, number: Number) -> None:
        self._number = number
        self._attempts: dict[AttemptId, _Attempt] = {}

    def hear(self, line: LogLine, hit: Hit, *, is_step: bool) -> StatedShape | None:
        """What a line says of the shape; None if nothing of it counts yet.

        The same words as last time, as in every step line of a job, are the same statement: that very object.
        """
        heard = self._attempts.get(line.attempt)
        if heard is None:
            heard = self._attempts[line.attempt] = _Attempt(StatedShape(attempt=line.attempt))
        if heard.said is not None and not heard.waiting and hit.captures == heard.words:
            return heard.said
        heard.spelled = None
        heard.words, heard.said = hit.captures, self._heard(heard, line, hit, is_step=is_step)
        return heard.said

    def _heard(self, heard: _Attempt, line: LogLine, hit: Hit, *, is_step: bool) -> StatedShape | None:
        said = {name: self._measure(hit.captures.get(name)) for name in _CAPTURES}
        counts: dict[str, int] = {}
        for name, value in said.items():
            before = getattr(heard.known, name)
            if value is None:
                continue
            if before in (None, value) or not is_step or self._has_settled(heard, name, value):
                heard.waiting.pop(name, None)
                counts[name] = value
        if not counts:
            return None
        stated = StatedShape(attempt=line.attempt, where=LogRef(file=line.file, line=line.number), **counts)
        heard.known = stated.after(heard.known)
        return stated

    def spelled(self, attempt: AttemptId, pattern: int, line: bytes, span: tuple[int, int]) -> None:
        """Remember how the last statement was spelled, by the one pattern that read it, with its neighbours."""
        heard, (begin, end) = self._attempts[attempt], span
        heard.spelled = (pattern, line[begin - 1 : end + 1]) if begin > 0 and end < len(line) else None

    def again(self, attempt: AttemptId, pattern: int, line: bytes) -> StatedShape | None:
        """The last statement, if the line spells it as it was spelled then: it need not be read to be known."""
        heard = self._attempts.get(attempt)
        if heard is None or heard.waiting or heard.spelled is None or heard.spelled[0] != pattern:
            return None
        return heard.said if heard.spelled[1] in line else None

    def known(self, attempt: AttemptId) -> StatedShape | None:
        heard = self._attempts.get(attempt)
        return None if heard is None or not heard.known.says_anything else heard.known

    def forget(self, attempt: AttemptId) -> None:
        self._attempts.pop(attempt, None)

    def _has_settled(self, heard: _Attempt, name: str, value: int) -> bool:
        other, times = heard.waiting.get(name, (value, 0))
        times = times + 1 if other == value else 1
        heard.waiting[name] = (value, times)
        return times >= SETTLED_AFTER

    def _measure(self, text: CaptureValue | None) -> int | None:
        """A count of samples or tokens; one that is not whole is none."""
        value = self._number(text)
        if value is None or not math.isfinite(value) or not 0 < value <= MOST or value != int(value):
            return None
        return int(value)


def as_one(known: Hit, other: Hit) -> Hit:
    """Two signatures of one line, each with its part of the shape."""
    return replace(known, captures={**known.captures, **other.captures})
