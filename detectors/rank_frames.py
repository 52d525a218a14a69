# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Gathers the timings that ranks send one by one into steps that hold all of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from relight.types import StepTiming

MOST_OPEN = 8
VANISHED_AFTER = 16
REWIND_AFTER = 3


@dataclass(slots=True)
class StepFrame:
    """One step's timings by rank: seconds of the step, and of own work or NaN."""

    step: int
    at_s: float = 0.0
    timings: dict[int, tuple[float, float]] = field(default_factory=dict)


class RankFrames:
    """Timings in, complete steps out, in order.

    Shapes: at most 8 steps are open; a step is complete when every rank heard from lately has reported, or
            when 8 newer ones are open. Later reports of it are dropped, the first of doubled ones counts.
    Errors: none. If half of the ranks send three rising steps below the last, training went back.
    """

    def __init__(self) -> None:
        self._open: dict[int, StepFrame] = {}
        self._heard: dict[int, int] = {}
        self._done: int | None = None
        self._done_s = 0.0
        self._back: dict[int, tuple[int, int]] = {}

    def add(self, seen: StepTiming, at_s: float) -> list[StepFrame]:
        is_late = self._done is not None and seen.step <= self._done
        if is_late and (at_s <= self._done_s or not self._went_back(seen.rank, seen.step)):
            return []
        self._heard[seen.rank] = seen.step
        frame = self._open.setdefault(seen.step, StepFrame(seen.step))
        own = math.nan if seen.compute_s is None else seen.compute_s
        frame.timings.setdefault(seen.rank, (seen.step_s, own))
        frame.at_s = max(frame.at_s, at_s)
        return self._complete()

    def _went_back(self, rank: int, step: int) -> bool:
        last, streak = self._back.get(rank, (step, 0))
        self._back[rank] = (step, streak + 1 if step > last else 1)
        rewound = sum(1 for _, rising in self._back.values() if rising >= REWIND_AFTER)
        if 2 * rewound < len(self._heard):
            return False
        self._done, self._open, self._back, self._heard = step - 1, {}, {}, {}
        return True

    def _complete(self) -> list[StepFrame]:
        newest = max(self._open)
        steps = sorted(self._open)
        if self._done is None and len(steps) < MOST_OPEN // 2:
            return []
        for rank in [r for r, s in self._heard.items() if s < newest - VANISHED_AFTER]:
            del self._heard[rank]
        full = [s for s in steps if len(self._open[s].timings) >= len(self._heard)]
        until = max(
            full[-1] if full else steps[0] - 1, steps[-MOST_OPEN - 1] if len(steps) > MOST_OPEN else steps[0] - 1
        )
        ready = [self._open.pop(s) for s in steps if s <= until]
        if ready:
            self._done, self._done_s = ready[-1].step, ready[-1].at_s
            self._back = {}
        return ready

    def snapshot(self) -> dict[str, Any]:
        return {
            "open": [[f.step, f.at_s, [[r, *_plain(t)] for r, t in f.timings.items()]] for f in self._open.values()],
            "heard": [[r, s] for r, s in self._heard.items()],
            "done": self._done,
            "done_s": self._done_s,
            "back": [[r, *b] for r, b in self._back.items()],
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self._open = {
            step: StepFrame(step, at_s, {r: (_number(a), _number(b)) for r, a, b in timings})
            for step, at_s, timings in state["open"]
        }
        self._heard = dict(state["heard"])
        self._done, self._done_s = state["done"], state["done_s"]
        self._back = {rank: (step, streak) for rank, step, streak in state["back"]}


def _plain(timing: tuple[float, float]) -> list[float | None]:
    return [value if math.isfinite(value) else None for value in timing]


def _number(value: float | None) -> float:
    return math.nan if value is None else value
