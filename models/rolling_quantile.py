# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How far a value strays from the recent median, which one long step can't move."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from typing import Any

from river import stats

from models.codec import is_number, pack, unpack


class RollingQuantileBaseline:
    """The logarithm of a value's ratio to a rolling quantile.

    Shapes: scalars in, scalar out; the state is the window.
    Units:  those of the input, which must be positive; a score of 0.1 is about 10 % above the quantile.
    Errors: ValueError unless 0 < warmup <= window and 0 < quantile < 1.
    Source: river.stats.RollingQuantile; the window is kept beside it, since River's own state has no
            stable written form and a window refilled in order is the same state.
    """

    name = "rolling_quantile"
    version = 1

    def __init__(self, quantile: float = 0.5, window: int = 200, warmup: int = 10) -> None:
        if not (0 < warmup <= window and 0 < quantile < 1):
            raise ValueError(
                f"need 0 < warmup <= window and 0 < quantile < 1, "
                f"got warmup={warmup} window={window} quantile={quantile}"
            )
        self._quantile, self._warmup, self._size = quantile, warmup, window
        self._fill(())

    def _fill(self, values: Any) -> None:
        self._window: deque[float] = deque(maxlen=self._size)
        self._river = stats.RollingQuantile(q=self._quantile, window_size=self._size)
        for value in values:
            self.learn_one(value)

    @property
    def baseline(self) -> float | None:
        found = self._river.get()
        return float(found) if found is not None and len(self._window) >= self._warmup else None

    def learn_one(self, value: float) -> None:
        if is_number(value) and value > 0:
            self._window.append(float(value))
            self._river.update(float(value))

    def score_one(self, value: float) -> float | None:
        baseline = self.baseline
        if baseline is None or not is_number(value) or value <= 0:
            return None
        return math.log(value / baseline)

    def snapshot(self) -> dict[str, Any]:
        return pack(self.name, self.version, {"window": list(self._window)})

    def restore(self, state: Mapping[str, Any]) -> None:
        (window,) = unpack(state, self.name, self.version, ("window",))
        self._fill(window)
