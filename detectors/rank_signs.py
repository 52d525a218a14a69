# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks gave their last sign of life before the others: behind in steps, or without a heartbeat."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

MAX_RANKS = 200_000
MAX_ACCUSED_RATIO = 0.25
_ACTIVE_FLOOR_S = 60.0
_MISSED_BEATS = 3.0
_SILENT_FLOOR_S = 15.0
_JITTER = 1.5


@dataclass(frozen=True, slots=True)
class Lagging:
    """The ranks accused, and by which sign; `is_firm` if a heartbeat stopped while others went on."""

    ranks: tuple[int, ...]
    reason: str
    is_firm: bool = False


class RankSigns:
    """Last step and last heartbeat of each rank, in flat arrays.

    Shapes: ranks from 0 to 199,999 in any order; one that appears or vanishes is no news by itself.
    Units:  seconds on the job's own clock; 36 B a rank.
    Errors: none; ranks beyond the limit are ignored.
    """

    def __init__(self) -> None:
        self._step = array("q")
        self._step_at = array("d")
        self._beat_at = array("d")
        self._usual_lag = array("i")
        self._beat_gap = array("d")
        self._top = -1

    @property
    def reporting(self) -> int:
        """How many ranks ever reported a step of their own."""
        return sum(1 for at in self._step_at if not math.isnan(at))

    def _holds(self, rank: int) -> bool:
        if not 0 <= rank < MAX_RANKS:
            return False
        missing = rank + 1 - len(self._step)
        if missing > 0:
            self._step.extend([-1] * missing)
            self._step_at.extend([math.nan] * missing)
            self._beat_at.extend([math.nan] * missing)
            self._usual_lag.extend([0] * missing)
            self._beat_gap.extend([math.nan] * missing)
        return True

    def stepped(self, rank: int, step: int, at_s: float) -> None:
        if not self._holds(rank):
            return
        self._top = max(self._top, step)
        if step < self._step[rank]:
            return
        self._step[rank], self._step_at[rank] = step, at_s
        self._usual_lag[rank] = max(self._usual_lag[rank], min(self._top - step, 1 << 30))

    def rewound(self, step: int) -> None:
        """Steps go on from an earlier one: what was reached before says nothing any more."""
        self._top = step
        for rank in range(len(self._step)):
            self._step[rank], self._step_at[rank], self._usual_lag[rank] = -1, math.nan, 0

    def beat(self, rank: int, at_s: float) -> None:
        if not self._holds(rank):
            return
        last = self._beat_at[rank]
        if not math.isnan(last) and at_s > last:
            known = self._beat_gap[rank]
            gap = at_s - last
            self._beat_gap[rank] = gap if math.isnan(known) else known + 0.2 * (min(gap, 4 * known) - known)
        self._beat_at[rank] = at_s if math.isnan(last) else max(last, at_s)

    def lagging(self, onset_s: float, now_s: float, usual_gap_s: float) -> Lagging | None:
        """Who went missing around the onset of a pause, or None where the signs name nobody.

        Whoever was quiet long before the onset has left, whoever shares the fate of many has a common
        cause: neither is accused.
        """
        silent = self._silent(onset_s, now_s)
        if silent is not None:
            return silent
        return self._behind(onset_s, usual_gap_s)

    def _silent(self, onset_s: float, now_s: float) -> Lagging | None:
        alive, silent = 0, list[int]()
        for rank, last, gap in self._beats():
            allowed = max(_SILENT_FLOOR_S, _MISSED_BEATS * gap)
            if now_s - last <= allowed:
                alive += 1
            elif last >= onset_s - _JITTER * allowed:
                silent.append(rank)
        if not _is_minority(len(silent), alive):
            return None
        return Lagging(tuple(silent), "heartbeats stopped", is_firm=True)

    def _beats(self) -> Iterator[tuple[int, float, float]]:
        for rank, last in enumerate(self._beat_at):
            gap = self._beat_gap[rank]
            if not math.isnan(last) and not math.isnan(gap):
                yield rank, last, gap

    def _behind(self, onset_s: float, usual_gap_s: float) -> Lagging | None:
        since = onset_s - max(_ACTIVE_FLOOR_S, 10.0 * usual_gap_s)
        active = [r for r, at in enumerate(self._step_at) if not math.isnan(at) and at >= since]
        behind = [r for r in active if self._top - self._step[r] > self._usual_lag[r]]
        if not _is_minority(len(behind), len(active) - len(behind)):
            return None
        return Lagging(tuple(behind), "fewer steps than the others")

    def as_json(self) -> dict[str, Any]:
        return {
            "step": self._step.tolist(),
            "step_at": [None if math.isnan(x) else x for x in self._step_at],
            "beat_at": [None if math.isnan(x) else x for x in self._beat_at],
            "beat_gap": [None if math.isnan(x) else x for x in self._beat_gap],
            "usual_lag": self._usual_lag.tolist(),
            "top": self._top,
        }

    @classmethod
    def restored(cls, state: Mapping[str, Any]) -> RankSigns:
        out = cls()
        out._step, out._usual_lag = array("q", state["step"]), array("i", state["usual_lag"])
        out._step_at, out._beat_at, out._beat_gap = (
            array("d", [math.nan if x is None else x for x in state[key]])
            for key in ("step_at", "beat_at", "beat_gap")
        )
        out._top = int(state["top"])
        return out


def _is_minority(accused: int, others: int) -> bool:
    return 0 < accused and others > 0 and accused <= max(1, MAX_ACCUSED_RATIO * (accused + others))
