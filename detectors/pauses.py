# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How long a training job usually pauses, learned for each kind of pause, and when a pause is too long."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

WINDOW = 200
MIN_ORDINARY = 10
MAX_WEIGHT = 60.0
KEPT_SHAPE = 30.0
CARRIED_WEIGHT = 10.0
UNSEEN_STALL_S = 300.0
UNMARKED_STALL_S = 540.0
SHORTEST_PHASE_S = 360.0
STALL = "stall"
STEP = "step"
PERIODIC = "periodic"
_UNMARKED = frozenset({STALL, STEP, PERIODIC, "start"})
_PERIOD_MEMORY = 12
_MIN_PERIOD = 10
_MIN_MEMBERS = 3


def student_quantile(p: float, df: float) -> float:
    """The p-quantile of Student's t, for p > 0.5 and df >= 3.

    Source: G. W. Hill, Algorithm 396, CACM 13 (1970); the normal quantile by Acklam's rational fit is
            replaced by a few Newton steps on `math.erfc`, which are exact to rounding.
    """
    tail = 2.0 * (1.0 - p)
    a = 1.0 / (df - 0.5)
    b = 48.0 / (a * a)
    c = ((20700.0 * a / b - 98.0) * a - 16.0) * a + 96.36
    d = ((94.5 / (b + c) - 3.0) / b + 1.0) * math.sqrt(a * math.pi / 2.0) * df
    y = (d * tail) ** (2.0 / df)
    if y > 0.05 + a:
        x = _normal_quantile(1.0 - tail / 2.0)
        y = x * x
        if df < 5.0:
            c += 0.3 * (df - 4.5) * (x + 0.6)
        c += (((0.05 * d * x - 5.0) * x - 7.0) * x - 2.0) * x + b
        y = (((((0.4 * y + 6.3) * y + 36.0) * y + 94.5) / c - y - 3.0) / b + 1.0) * x
        y = math.expm1(min(a * y * y, 700.0))
    else:
        y = ((1.0 / (((df + 6.0) / (df * y) - 0.089 * d - 0.822) * (df + 2.0) * 3.0) + 0.5 / (df + 4.0)) * y - 1.0) * (
            df + 1.0
        ) / (df + 2.0) + 1.0 / y
    return math.sqrt(df * y)


def _normal_quantile(p: float) -> float:
    x = math.sqrt(max(0.0, -2.0 * math.log(min(p, 1.0 - p)))) * 0.8
    for _ in range(30):
        error = 0.5 * math.erfc(-x / math.sqrt(2.0)) - p
        step = error * math.sqrt(2.0 * math.pi) * math.exp(x * x / 2.0)
        x -= max(-1.0, min(1.0, step))
        if abs(step) < 1e-12:
            break
    return x


@dataclass(slots=True)
class LogNormal:
    """Normal-inverse-gamma belief over the logarithm of a duration.

    Units:  seconds in, seconds out; the state is five numbers whatever the stream's length.
    Errors: none; durations below a millisecond count as one.
    Source: conjugate update; the weight is capped, so that old pauses are forgotten.
    """

    mean: float
    weight: float
    shape: float
    spread: float
    longest_s: float = 0.0

    def learn(self, seconds: float) -> None:
        off = math.log(max(seconds, 1e-3)) - self.mean
        self.spread += self.weight * off * off / (2.0 * (self.weight + 1.0))
        self.mean += off / (self.weight + 1.0)
        self.weight += 1.0
        self.shape += 0.5
        self.longest_s = max(self.longest_s, seconds)
        if self.weight > MAX_WEIGHT:
            self.weight = MAX_WEIGHT
        if self.shape > 2.0 * KEPT_SHAPE:
            self.spread *= KEPT_SHAPE / self.shape
            self.shape = KEPT_SHAPE

    def quantile(self, p: float) -> float:
        """The duration that the next one stays under with probability p."""
        scale = math.sqrt(self.spread * (self.weight + 1.0) / (self.shape * self.weight))
        return math.exp(min(40.0, self.mean + student_quantile(p, 2.0 * self.shape) * scale))

    def weakened(self) -> LogNormal:
        """The same belief for the next attempt, held less firmly."""
        weight = min(self.weight, CARRIED_WEIGHT)
        shape = min(self.shape, 2.0 + CARRIED_WEIGHT / 2.0)
        return LogNormal(self.mean, weight, shape, self.spread * shape / self.shape, self.longest_s)


def _prior(kind: str) -> LogNormal:
    if kind in (STALL, STEP):
        return LogNormal(math.log(20.0), 2.0, 4.0, 2.4)
    return LogNormal(math.log(90.0), 0.5, 2.0, 1.0)


class Pauses:
    """Learned pauses of one job: ordinary gaps, stalls, pauses in a marked phase, and those with a period.

    Shapes: one gap at a time, in the order in which they ended; the state is bounded.
    Units:  seconds.
    Errors: `restored` raises ValueError for a state of another version.
    Source: a predictive quantile per class (PauseBayes); classes are phase markers, a learned checkpoint
            period in steps, and everything else.
    """

    VERSION = 2

    def __init__(self) -> None:
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._sorted: list[float] = []
        self._classes: dict[str, LogNormal] = {}
        self._long: deque[tuple[int, float]] = deque(maxlen=_PERIOD_MEMORY)
        self.ordinary = 0
        self.longest_s = 0.0
        self.warm_up_s = 0.0
        self.period: int | None = None
        self.anchor = 0

    # -------------------------------------------------------------- learning

    @property
    def median_s(self) -> float | None:
        n = len(self._sorted)
        return None if n == 0 else 0.5 * (self._sorted[(n - 1) // 2] + self._sorted[n // 2])

    def is_long(self, gap_s: float) -> bool:
        median = self.median_s
        return median is not None and gap_s > max(2.5 * median, median + 6.0)

    def class_of(self, marks: frozenset[str], step: int | None) -> str:
        """The class of a gap that ends with `step` or, while it runs, would end with it."""
        if marks:
            return "+".join(sorted(marks))
        if self.period is not None and step is not None and (step - self.anchor) % self.period == 0:
            return PERIODIC
        return STEP

    def learn(self, gap_s: float, marks: frozenset[str], step: int | None) -> None:
        """Take in a gap that has ended; a long one never moves the ordinary median."""
        kind = self.class_of(marks, step)
        if kind == STEP and not self.is_long(gap_s):
            self._ordinary_gap(gap_s)
        elif kind == STEP:
            self._belief(STALL).learn(gap_s)
            if step is not None:
                self._long.append((step, gap_s))
                self._find_period()
        elif not marks and not self.is_long(gap_s):
            self._ordinary_gap(gap_s)
        else:
            self._belief(kind).learn(gap_s)

    def _ordinary_gap(self, gap_s: float) -> None:
        if len(self._recent) == WINDOW:
            del self._sorted[bisect_left(self._sorted, self._recent[0])]
        self._recent.append(gap_s)
        insort(self._sorted, gap_s)
        self.ordinary += 1
        self.longest_s = max(self.longest_s, gap_s)

    def warmed_up(self, longest_s: float) -> None:
        """The first steps of an attempt are over: the longest took so long, which the next attempt may expect."""
        self.warm_up_s = max(longest_s, 0.5 * (self.warm_up_s + longest_s))

    def _belief(self, kind: str) -> LogNormal:
        return self._classes.setdefault(kind, _prior(kind))

    def knows(self, kind: str) -> bool:
        return kind in self._classes

    @property
    def _is_marked(self) -> bool:
        return any(kind not in _UNMARKED for kind in self._classes)

    def _find_period(self) -> None:
        """The smallest difference in steps that most of the recent long gaps agree on."""
        last, _ = self._long[-1]
        steps = [s for s, _ in self._long]
        for period in sorted({last - s for s in steps if last - s >= _MIN_PERIOD}):
            members = [s for s in steps if (last - s) % period == 0]
            expected = (last - min(members)) // period + 1
            if len(members) < _MIN_MEMBERS or len(members) < 0.55 * len(steps):
                continue
            if len(members) < 0.6 * expected:
                continue
            self.period, self.anchor = period, last
            for step, gap_s in [pair for pair in self._long if (last - pair[0]) % period == 0]:
                self._belief(PERIODIC).learn(gap_s)
                self._long.remove((step, gap_s))
            self._relearn_stalls()
            return

    def _relearn_stalls(self) -> None:
        self._classes[STALL] = _prior(STALL)
        for _, gap_s in self._long:
            self._classes[STALL].learn(gap_s)

    # -------------------------------------------------------------- limits

    def suspect_after_s(self, kind: str) -> float:
        """When a running gap of this class deserves a closer look."""
        median = self.median_s or 0.0
        if kind == STEP:
            return max(30.0, 5.0 * median, self._belief(STALL).quantile(0.65))
        return max(45.0, 5.0 * median, self._belief(kind).quantile(0.97))

    def confirm_after_s(self, kind: str) -> float:
        """When a running gap of this class is a hang though no probe agrees.

        After few stalls the quantile is far above anything seen, so that it is held near the longest of them;
        a phase, whose length depends on load elsewhere, is given more than it ever took. Where the log never
        marked a phase, a plain pause may be one.
        """
        median = self.median_s or 0.0
        if kind == STEP:
            belief = self._belief(STALL)
            likely = min(belief.quantile(0.99), max(UNSEEN_STALL_S, 2.5 * belief.longest_s))
            least = 60.0 if self._is_marked else UNMARKED_STALL_S
            return min(max(10.0 * median, likely, least), max(900.0, 10.0 * median))
        belief = self._belief(kind)
        wanted = max(10.0 * median, belief.quantile(0.998), 2.0 * belief.longest_s, SHORTEST_PHASE_S)
        return min(wanted, max(1800.0, 10.0 * median, 1.5 * belief.longest_s))

    # -------------------------------------------------------------- carrying over

    def carried(self, *, keeps_pace: bool = True) -> Pauses:
        """What the next attempt of the same shape starts from: beliefs and period, weakened, no clock.

        Without its pace, it is what holds for another shape too: how long a start, a checkpoint or a stall takes.
        """
        after = Pauses()
        for gap_s in list(self._recent)[-int(CARRIED_WEIGHT) :] if keeps_pace else ():
            after._ordinary_gap(gap_s)
        after.ordinary = 0
        after.longest_s = self.longest_s if keeps_pace else 0.0
        after.warm_up_s = self.warm_up_s if keeps_pace else 0.0
        after._classes = {kind: belief.weakened() for kind, belief in self._classes.items()}
        after.period, after.anchor = self.period, self.anchor
        return after

    def as_json(self) -> dict[str, Any]:
        return {
            "version": self.VERSION,
            "recent": list(self._recent),
            "classes": {kind: [b.mean, b.weight, b.shape, b.spread, b.longest_s] for kind, b in self._classes.items()},
            "long": [list(pair) for pair in self._long],
            "ordinary": self.ordinary,
            "longest_s": self.longest_s,
            "warm_up_s": self.warm_up_s,
            "period": self.period,
            "anchor": self.anchor,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> Pauses:
        if state.get("version") != cls.VERSION:
            raise ValueError(f"pauses of version {state.get('version')!r}; this code reads {cls.VERSION}")
        out = cls()
        out._recent.extend(float(g) for g in state["recent"])
        out._sorted = sorted(out._recent)
        out._classes = {kind: LogNormal(*map(float, belief)) for kind, belief in state["classes"].items()}
        out._long.extend((int(s), float(g)) for s, g in state["long"])
        out.ordinary, out.longest_s = int(state["ordinary"]), float(state["longest_s"])
        out.warm_up_s = float(state["warm_up_s"])
        out.period, out.anchor = state["period"], int(state["anchor"])
        return out
