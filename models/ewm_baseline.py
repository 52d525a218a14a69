# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The usual level and spread of a stream, by exponentially weighted means that outliers hardly move."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from river import stats

from models.codec import is_number, pack, unpack

_FIELDS = ("seen", "mean", "square")


class EwmBaseline:
    """How many standard deviations a value lies above the usual.

    Shapes: scalars in, scalar out; the state is three numbers.
    Units:  those of the input; scores are in standard deviations.
    Errors: ValueError unless half_life > 0 and warmup > 1.
    Source: river.stats.EWMean, of the values and of their squared distances. Values are learnt only up to
            `clip` deviations from the mean, so that one long step doesn't move the baseline.
    """

    name = "ewm_baseline"
    version = 1

    def __init__(self, half_life: float = 60.0, warmup: int = 10, clip: float = 4.0) -> None:
        if half_life <= 0 or warmup < 2:
            raise ValueError(f"need half_life > 0 and warmup > 1, got half_life={half_life} warmup={warmup}")
        self._rate = 1 - 0.5 ** (1 / half_life)
        self._warmup, self._clip = warmup, clip
        self._start(0, None, None)

    def _start(self, seen: int, mean: float | None, square: float | None) -> None:
        self._seen = seen
        self._mean, self._square = (stats.EWMean(fading_factor=self._rate) for _ in range(2))
        if mean is not None:
            self._mean.update(mean)
        if square is not None:
            self._square.update(square)

    @property
    def mean(self) -> float | None:
        return float(self._mean.get()) if self._seen else None

    @property
    def deviation(self) -> float | None:
        return math.sqrt(max(float(self._square.get()), 0.0)) if self._seen > 1 else None

    def learn_one(self, value: float) -> None:
        if not is_number(value):
            return
        mean, deviation = self.mean, self.deviation
        if mean is None:
            self._mean.update(value)
            self._seen = 1
            return
        if deviation is not None and self._seen >= self._warmup:
            reach = self._clip * max(deviation, 1e-9 * max(abs(mean), 1e-300))
            value = min(max(value, mean - reach), mean + reach)
        self._square.update((value - mean) ** 2)
        self._mean.update(value)
        self._seen = min(self._seen + 1, self._warmup)

    def score_one(self, value: float) -> float | None:
        mean, deviation = self.mean, self.deviation
        if not is_number(value) or mean is None or deviation is None or self._seen < self._warmup:
            return None
        return (value - mean) / max(deviation, 1e-9 * max(abs(mean), 1e-300))

    def snapshot(self) -> dict[str, Any]:
        square = float(self._square.get()) if self._seen > 1 else None
        return pack(self.name, self.version, {"seen": self._seen, "mean": self.mean, "square": square})

    def restore(self, state: Mapping[str, Any]) -> None:
        self._start(*unpack(state, self.name, self.version, _FIELDS))
