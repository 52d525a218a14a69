# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whether a job's step time has risen for good: CUSUM on its logarithm, with correlated noise allowed for."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping
from typing import Any

from models.codec import is_number, pack, unpack

_NUMBERS = ("level", "best", "sigma", "rho", "last", "charge", "count", "long", "interval_s", "taught")
_FIELDS = (*_NUMBERS, "first", "recent")
LONG = math.log(2.5)
SIGMA_FLOOR = 0.002
RECENT = 60
MOST_TAUGHT = 440
CLEAR = 0.7  # of the effect: what the median excess must reach besides the charge


class ArCusum:
    """How much slower than usual, once the sum of it says that it is no accident.

    Shapes: scalars in, scalar out; the state is 10 numbers and at most 60 values.
    Units:  values are logarithms of seconds per unit of work; `interval_s` is the time between values.
    Errors: ValueError unless effect > 0.
    Source: Page's CUSUM; sigma is inflated by (1 + rho) / (1 - rho) for lag-1 correlation, and all estimates
            are frozen while a charge builds up. Values above 2.5 times the usual are pauses and cut, unless
            five come in a row. After an alarm the level is learnt anew, the best one is remembered.
    """

    name = "ar_cusum"
    version = 1

    def __init__(self, effect: float = 0.05, false_per_day: float = 0.05, warmup: int = 60) -> None:
        if effect <= 0:
            raise ValueError(f"need effect > 0, got effect={effect}")
        self._effect, self._false_per_day, self._warmup = effect, false_per_day, warmup
        self.level: float | None = None
        self.best: float | None = None
        self.sigma = SIGMA_FLOOR
        self.rho = self.last = self.charge = self.interval_s = 0.0
        self.count = self.long = self.taught = 0
        self._first: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._low, self._lows = -0.6 * effect, 0

    def _accident(self) -> float:
        """What noise alone may charge, by the false alarms allowed a day."""
        interval = max(self.interval_s, 1e-3)
        logs = math.log(max(86400 / interval, 1) / self._false_per_day)
        noise = 1.6 * self.sigma**2 / self._effect * (1 + self.rho) / (1 - self.rho) * logs
        return max(noise, 7.5 * self._effect)

    @property
    def threshold(self) -> float:
        """The charge that alarms: beyond noise, and at least some minutes' worth."""
        return self._beyond(self._accident())

    def _beyond(self, accident: float) -> float:
        return max(accident, 0.75 * self._effect * 180 / max(self.interval_s, 1e-3))

    @property
    def is_degraded(self) -> bool:
        """True while the level is above the best one by more than half of the effect."""
        return self.level is not None and self.best is not None and self.level - self.best > 0.6 * self._effect

    def score_one(self, value: float) -> float | None:
        """How far above the level, as a logarithm; None while there is no level."""
        return None if self.level is None or not is_number(value) else value - self.level

    def learn_one(self, value: float) -> None:
        if not is_number(value):
            return
        if self.level is None:
            self._begin(value)
            return
        r = value - self.level
        if r > LONG:
            self.long += 1
            if self.long < 5:
                return
            r = LONG
        else:
            self.long = 0
        accident = self._accident()
        threshold = self._beyond(accident)
        reach = max(4 * self.sigma, 4 * self._effect, threshold / 20)
        r = min(max(r, -reach), reach)
        self.charge = min(max(0.0, self.charge + r - self._effect / 2), 2 * threshold)
        self.count = self.count + 1 if self.charge > 0 else 0
        self._remember(r)
        if self.charge < accident / 4:
            self._learn(r)
        self.last = r

    def _begin(self, value: float) -> None:
        self._first.append(value)
        usual = statistics.median(self._first)
        if len(self._first) >= 2 * self._warmup or sum(v - usual <= LONG for v in self._first) >= self._warmup:
            clean = [v for v in self._first if v - usual <= LONG]
            self.level = statistics.median(clean)
            self.sigma = max(SIGMA_FLOOR, 1.4826 * statistics.median(abs(v - self.level) for v in clean))
            self.best = self.level if self.best is None else min(self.best, self.level)
            self._first = []

    def _learn(self, r: float) -> None:
        most = 3 * self.sigma
        near, before = _held(r, most), _held(self.last, most)
        product = _held(near * before / self.sigma**2, 1.5)  # else the first steps of a drop raise rho
        self.rho = min(max(0.98 * self.rho + 0.02 * product, 0.0), 0.8)
        self.sigma = max(SIGMA_FLOOR, self.sigma + 0.01 * (1.2533 * abs(near) - self.sigma))
        assert self.level is not None
        self.taught = min(self.taught + 1, MOST_TAUGHT)
        self.level += near / (self._warmup + self.taught)
        if not self.is_degraded:
            self.best = self.level

    def rise(self) -> float | None:
        """The median excess since the charge began, if it has reached its threshold; else None."""
        if not self.count or self.charge <= self.threshold:
            return None
        excess = statistics.median(list(self._recent)[-min(self.count, RECENT) :])
        return excess if excess > CLEAR * self._effect else None

    def has_fallen(self) -> bool:
        """True if the last 40 values lie clearly below the level: the job became faster."""
        if self._lows < 20 or len(self._recent) < 40:  # the median of 40 is below only if 20 of them are
            return False
        return statistics.median(list(self._recent)[-40:]) < self._low

    def _remember(self, r: float) -> None:
        recent, low = self._recent, self._low
        if len(recent) == RECENT:
            self._lows -= recent[0] < low
        recent.append(r)
        self._lows += r < low

    def relearn(self, by: float) -> None:
        """Move the level: what happened since has been reported, or the job has recovered."""
        if self.level is not None:
            self.level, self.taught = self.level + by, 0
            self.best = self.level if self.best is None else min(self.best, self.level)
        self.charge = self.last = 0.0
        self.count = 0
        self._recent.clear()
        self._lows = 0

    def recovered_by(self) -> float:
        return statistics.median(list(self._recent)[-40:])

    def snapshot(self) -> dict[str, Any]:
        numbers = {name: getattr(self, name) for name in _NUMBERS}
        return pack(self.name, self.version, {**numbers, "first": self._first[:], "recent": list(self._recent)})

    def restore(self, state: Mapping[str, Any]) -> None:
        *numbers, first, recent = unpack(state, self.name, self.version, _FIELDS)
        for name, value in zip(_NUMBERS, numbers, strict=True):
            setattr(self, name, value)
        self._first, self._recent = list(first), deque(recent, maxlen=RECENT)
        self._lows = sum(r < self._low for r in self._recent)


def _held(value: float, most: float) -> float:
    """The value, kept within `most` of 0."""
    if value > most:
        return most
    if value < -most:
        return -most
    return value
