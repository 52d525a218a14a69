# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks gave their last sign of life before the others: behind in steps, or without a heartbeat."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_RANKS = 200_000
MAX_ACCUSED_RATIO = 0.25
_ACTIVE_FLOOR_S = 60.0
_MISSED_BEATS = 3.0
_SILENT_FLOOR_S = 15.0
_ALL_SILENT_FLOOR_S = 60.0
_JITTER = 1.5
_GROWTH = 64


@dataclass(frozen=True, slots=True)
class Lagging:
    """The ranks accused, and by which sign; `is_firm` if a heartbeat stopped while others went on."""

    ranks: tuple[int, ...]
    reason: str
    is_firm: bool = False


class RankSigns:
    """Last step and last heartbeat of each rank, in flat arrays.

    Shapes: ranks from 0 to 199,999 in any order; one that appears or vanishes is no news by itself.
    Units:  seconds on the job's own clock, NaN for never; 36 B a rank.
    Errors: none; ranks beyond the limit are ignored.
    """

    def __init__(self) -> None:
        self._step = np.empty(0, np.int64)
        self._step_at = np.empty(0, np.float64)
        self._beat_at = np.empty(0, np.float64)
        self._beat_gap = np.empty(0, np.float64)
        self._usual_lag = np.empty(0, np.int32)
        self._top = -1

    @property
    def nbytes(self) -> int:
        arrays = (self._step, self._step_at, self._beat_at, self._beat_gap, self._usual_lag)
        return sum(a.nbytes for a in arrays)

    def _holds(self, highest: int) -> None:
        missing = highest + 1 - len(self._step)
        if missing <= 0:
            return
        more = max(missing, _GROWTH)
        nan = np.full(more, np.nan)
        self._step = np.concatenate([self._step, np.full(more, -1, np.int64)])
        self._usual_lag = np.concatenate([self._usual_lag, np.zeros(more, np.int32)])
        self._step_at = np.concatenate([self._step_at, nan])
        self._beat_at = np.concatenate([self._beat_at, nan])
        self._beat_gap = np.concatenate([self._beat_gap, nan])

    def last_step(self, rank: int) -> int | None:
        known = 0 <= rank < len(self._step) and self._step[rank] >= 0
        return int(self._step[rank]) if known else None

    def stepped(self, ranks: NDArray[np.int64], step: int, at_s: float) -> None:
        """One step of one or many ranks; a step lower than a rank's last one is late and changes nothing."""
        index = ranks[(ranks >= 0) & (ranks < MAX_RANKS)]
        if index.size == 0:
            return
        self._holds(int(index.max()))
        self._top = max(self._top, step)
        index = index[self._step[index] <= step]
        self._step[index] = step
        self._step_at[index] = at_s
        lag = min(self._top - step, 1 << 30)
        self._usual_lag[index] = np.maximum(self._usual_lag[index], lag)

    def stepped_alone(self, rank: int, step: int, at_s: float) -> None:
        """What `stepped` does for one rank, without the arrays, which would cost ten times as much."""
        if not 0 <= rank < MAX_RANKS:
            return
        self._holds(rank)
        self._top = max(self._top, step)
        if self._step[rank] > step:
            return
        self._step[rank] = step
        self._step_at[rank] = at_s
        lag = min(self._top - step, 1 << 30)
        if lag > self._usual_lag[rank]:
            self._usual_lag[rank] = lag

    def rewound(self, step: int) -> None:
        """Steps go on from an earlier one: what was reached before says nothing any more."""
        self._top = step
        self._step[:] = -1
        self._step_at[:] = np.nan
        self._usual_lag[:] = 0

    def beat(self, rank: int, at_s: float) -> None:
        if not 0 <= rank < MAX_RANKS:
            return
        self._holds(rank)
        last, known = float(self._beat_at[rank]), float(self._beat_gap[rank])
        if at_s > last:
            gap = at_s - last
            self._beat_gap[rank] = known + 0.2 * (min(gap, 4.0 * known) - known) if known == known else gap
        self._beat_at[rank] = at_s if last != last else max(last, at_s)

    def lagging(self, onset_s: float, now_s: float, usual_gap_s: float) -> Lagging | None:
        """Who went missing around the onset of a pause, or None where the signs name nobody.

        Whoever was quiet long before the onset has left, whoever shares the fate of many has a common
        cause: neither is accused.
        """
        return self._silent(onset_s, now_s) or self._behind(onset_s, usual_gap_s)

    def _silent(self, onset_s: float, now_s: float) -> Lagging | None:
        allowed = np.maximum(_SILENT_FLOOR_S, _MISSED_BEATS * self._beat_gap)  # NaN without two beats
        is_alive = now_s - self._beat_at <= allowed
        is_silent = (now_s - self._beat_at > allowed) & (self._beat_at >= onset_s - _JITTER * allowed)
        return _accused(is_silent, is_alive, "heartbeats stopped", is_firm=True)

    def all_silent(self, onset_s: float, now_s: float) -> bool:
        """True if heartbeats of every rank that gave some stopped around the onset of a pause."""
        allowed = np.maximum(_ALL_SILENT_FLOOR_S, 2.0 * _MISSED_BEATS * self._beat_gap)
        beats = self._beat_at[~np.isnan(self._beat_gap)]
        if beats.size == 0:
            return False
        allowed = allowed[~np.isnan(self._beat_gap)]
        newest = int(np.argmax(beats))
        is_silent = bool((now_s - beats > allowed).all())
        return is_silent and bool(beats[newest] >= onset_s - _JITTER * allowed[newest])

    def _behind(self, onset_s: float, usual_gap_s: float) -> Lagging | None:
        is_active = self._step_at >= onset_s - max(_ACTIVE_FLOOR_S, 10.0 * usual_gap_s)
        is_behind = is_active & (self._top - self._step > self._usual_lag)
        return _accused(is_behind, is_active & ~is_behind, "fewer steps than the others")

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self._step.tolist(),
            "usual_lag": self._usual_lag.tolist(),
            "top": self._top,
            **{key: _listed(getattr(self, f"_{key}")) for key in ("step_at", "beat_at", "beat_gap")},
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> RankSigns:
        out = cls()
        out._step = np.array(state["step"], np.int64)
        out._usual_lag = np.array(state["usual_lag"], np.int32)
        for key in ("step_at", "beat_at", "beat_gap"):
            setattr(out, f"_{key}", np.array([np.nan if x is None else x for x in state[key]], np.float64))
        out._top = int(state["top"])
        return out


def _listed(values: NDArray[np.float64]) -> list[float | None]:
    return [None if x != x else x for x in values.tolist()]


def _accused(
    accused: NDArray[np.bool_], others: NDArray[np.bool_], reason: str, *, is_firm: bool = False
) -> Lagging | None:
    """The accused, if they are few among many: a common cause is nobody's fault."""
    few, many = int(accused.sum()), int(others.sum())
    if few == 0 or many == 0 or few > max(1.0, MAX_ACCUSED_RATIO * (few + many)):
        return None
    return Lagging(tuple(int(r) for r in np.flatnonzero(accused)), reason, is_firm)
