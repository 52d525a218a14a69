# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What River's drift detectors share here: a bounded past that rebuilds them, and a vote with a floor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from models.codec import is_number, pack, unpack

_FIELDS = ("past", "seen", "reference", "level")
_RATE = 1 / 16


class DriftVote:
    """A drift detector of River's that votes "higher than before" when the rise is worth it.

    Shapes: scalars in, scalar out. The detector is rebuilt from the last quarter of its past whenever that
            grows beyond `keep` values, at the same values in every run: so a snapshot is that past.
    Units:  those of the input; a score is the confirmed rise, 0.0 while there is none.
    Errors: ValueError unless keep >= 64.
    """

    name = "drift_vote"
    version = 1

    def __init__(self, *, keep: int = 2048, warmup: int = 32, floor: float = 0.03) -> None:
        if keep < 64:
            raise ValueError(f"need keep >= 64 values of the past, got keep={keep}")
        self._keep, self._warmup, self._floor = keep, warmup, floor
        self._seen = 0
        self._reference: float | None = None
        self._level: float | None = None
        self._rebuild([])

    def make(self) -> Any:
        """A fresh detector of River's with `update` and `drift_detected`."""
        raise NotImplementedError

    def _rebuild(self, past: list[float]) -> None:
        self._past = list(past)
        self._river = self.make()
        for value in self._past:
            self._river.update(value)

    def learn_one(self, value: float) -> None:
        if not is_number(value):
            return
        value = float(value)
        before = self._level
        self._level = value if before is None else before + _RATE * (value - before)
        self._past.append(value)
        self._seen += 1
        self._river.update(value)
        if self._river.drift_detected and self._reference is None and self._seen >= self._warmup:
            self._reference = self._mean_before()
        if len(self._past) > self._keep:
            self._rebuild(self._past[-self._keep // 4 :])
        if self._reference is not None and self._level < self._reference + self._floor / 2:
            self._reference = None

    def _mean_before(self) -> float:
        """The mean of the older half of the past: what the recent values are higher than."""
        older = self._past[: max(len(self._past) // 2, 1)]
        return sum(older) / len(older)

    def score_one(self, value: float) -> float | None:
        if self._seen < self._warmup or self._level is None or not is_number(value):
            return None
        rise = 0.0 if self._reference is None else self._level - self._reference
        return rise if rise >= self._floor else 0.0

    def snapshot(self) -> dict[str, Any]:
        values = (list(self._past), self._seen, self._reference, self._level)
        return pack(self.name, self.version, dict(zip(_FIELDS, values, strict=True)))

    def restore(self, state: Mapping[str, Any]) -> None:
        past, self._seen, self._reference, self._level = unpack(state, self.name, self.version, _FIELDS)
        self._rebuild(past)
