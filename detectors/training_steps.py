# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Training events near evidence: whether training went on after a line, and how far it had come."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from detectors.log_text import LogText
from detectors.stated_shapes import SHAPE
from relight.types import Evidence, FailureName
from rules.match import Hit, RuleSet

_AFTER_LINES = 400
_BEFORE_LINES = 200
_TAIL_LINES = 300
_SURVIVED_STEPS = 3
_SURVIVED_EVENTS = 6
_NAN = FailureName("nan_gradient")


@dataclass(frozen=True, slots=True)
class Step:
    """A line that a progress signature explains; `step` is None where it names no number."""

    index: int
    step: int | None
    event: str


def training_steps(log: LogText, progress: RuleSet, at: Sequence[int], first: int) -> list[Step]:
    """Training events near evidence, at the head and at the tail: the rest of a long log is not looked at."""
    total = len(log.lines)
    windows = [(first, first + _BEFORE_LINES), (max(first, total - _TAIL_LINES), total)]
    windows += [(max(first, i - _BEFORE_LINES), i + _AFTER_LINES) for i in at]
    out: list[Step] = []
    for low, high in _merged(windows, total):
        for offset, indexes in progress.scan(log.lines[low:high]):
            hits = progress.hits(log.lines[low + offset], indexes, log.stream)
            for hit in [one for one in hits if one.signature.event != SHAPE][:1]:
                step = hit.captures.get("step")
                out.append(Step(low + offset, step if isinstance(step, int) else None, hit.signature.event))
    return out


def _merged(windows: Iterable[tuple[int, int]], total: int) -> Iterator[tuple[int, int]]:
    low, high = 0, 0
    for start, end in sorted(windows):
        if start > high:
            if high > low:
                yield low, min(high, total)
            low = start
        high = max(high, end)
    if high > low:
        yield low, min(high, total)


def with_progress(
    index: int, evidence: Evidence, steps: Sequence[Step], at_line: Mapping[int, tuple[Hit, ...]]
) -> Evidence:
    """Mark whether training went on after a line, and how far it had come."""
    positions = [s.index for s in steps]
    before = [s.step for s in steps[: bisect_left(positions, index)] if s.event == "step"]
    done = [s for s in before if s is not None]
    after = [
        s
        for s in steps[bisect_right(positions, index) :]
        if s.event == "step" and not any(h.failure == evidence.failure for h in at_line.get(s.index, ()))
    ]
    numbered = {s.step for s in after if s.step is not None}
    # A finite loss after a NaN settles it; other claims need more than the one step that peers still finish.
    enough = 1 if evidence.failure == _NAN else _SURVIVED_STEPS
    survived = len(numbered) >= enough or (len(after) >= _SURVIVED_EVENTS and not numbered)
    return replace(
        evidence,
        is_survived=survived,
        is_after_completion=any(s.event == "completed" for s in steps[: bisect_left(positions, index)]),
        steps_before=max(max(done, default=0), len(before) - len(done)),
    )
