# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The trend of a falling loss and the usual distance from it, which spikes hardly teach."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.codec import is_number, pack, unpack

_FIELDS = ("seen", "trend", "distance", "change", "last", "charge")


class ClippedTrend:
    """How many spreads a value lies above the trend, and the sum of that beyond the usual.

    Shapes: scalars in, scalar out; the state is six numbers.
    Units:  those of the input; scores are in spreads, and so is `charge`, a one-sided CUSUM.
    Errors: none for any input.
    Source: an exponentially weighted trend whose every step is clipped at 4 spreads and slowed tenfold
            while the charge is high; the spread is a mean absolute distance, frozen beyond 5 spreads, but at
            most twice the mean change between values, since a trend that lags a falling loss is far off.
    """

    name = "clipped_trend"
    version = 1

    def __init__(self, half_life: float = 60.0, warmup: int = 50, allowance: float = 1.5) -> None:
        self._rate = 1 - 0.5 ** (1 / half_life)
        self._warmup, self._allowance = warmup, allowance
        self._seen = 0
        self.trend = self.charge = 0.0
        self._distance = self._change = self._last = 0.0

    @property
    def is_ready(self) -> bool:
        return self._seen >= self._warmup

    def learn_one(self, value: float) -> None:
        if not is_number(value):
            return
        if self._seen == 0:
            self.trend = self._last = float(value)
            self._seen = 1
            return
        off = value - self.trend
        rate = max(self._rate, 1 / (self._seen + 1))
        if self._seen >= self._warmup:
            spread = max(self.spread, self._least(self.trend))
            charge = self.charge + min(off, 6 * spread) / spread - self._allowance
            self.charge = charge if charge > 0 else 0.0
            if abs(off) <= 5 * spread:
                self._see_spread(off, value - self._last, self._rate)
            off = min(max(off, -4 * max(spread, self._distance)), 4 * spread)
            if self.charge > 8:
                rate *= 0.1
        else:
            self._see_spread(off, value - self._last, rate)
            self._seen += 1
        self.trend += rate * off
        self._last = float(value)

    @property
    def spread(self) -> float:
        """The usual distance from the trend, or twice the usual change where the trend itself lags far behind."""
        return min(self._distance, 2 * self._change)

    def _see_spread(self, off: float, change: float, rate: float) -> None:
        self._distance += rate * (1.2533 * abs(off) - self._distance)
        self._change += rate * (0.8862 * abs(change) - self._change)

    @staticmethod
    def _least(level: float) -> float:
        return max(1e-4 * abs(level), 1e-9)

    def distance(self, value: float) -> float:
        """How far the value is above the trend, in its own units."""
        return value - self.trend

    def score_one(self, value: float) -> float | None:
        if not self.is_ready or not is_number(value):
            return None
        return self.distance(value) / max(self.spread, self._least(self.trend))

    def settle(self) -> None:
        """Begin a new sum: what it reached has been reported."""
        self.charge = 0.0

    def snapshot(self) -> dict[str, Any]:
        values = (self._seen, self.trend, self._distance, self._change, self._last, self.charge)
        return pack(self.name, self.version, dict(zip(_FIELDS, values, strict=True)))

    def restore(self, state: Mapping[str, Any]) -> None:
        found = unpack(state, self.name, self.version, _FIELDS)
        self._seen, self.trend, self._distance, self._change, self._last, self.charge = found
