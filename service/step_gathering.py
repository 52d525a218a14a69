# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the signals of one request to the observations that detectors work fastest and best with."""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from datetime import datetime

from relight.types import AttemptId, Observation, StepBatch, StepProgress, StepTiming


class StepGathering:
    """Timings of one step that come together become one batch, and a throughput joins the next step.

    A batch stands for the whole step, so it is made only of all ranks: of a part of them, each is handed on by
    itself, and detectors wait for the others. A throughput alone is no progress: a timer may print it in a hang.
    Shapes: observations of any attempts, in order of arrival.
    Units:  a time beyond ours is taken for a wrong clock, and becomes ours.
    """

    def __init__(self) -> None:
        self._rates: dict[AttemptId, float] = {}

    def rated(self, attempt: AttemptId, per_s: float) -> None:
        self._rates[attempt] = per_s

    def gathered(
        self, seen: Iterable[Observation], now: datetime, world_size: Callable[[AttemptId], int | None]
    ) -> list[Observation]:
        found: list[Observation] = []
        steps: dict[tuple[AttemptId, int], list[StepTiming]] = {}
        for one in seen:
            ours = replace(one, at=min(one.at, now)) if one.at is not None else one
            match ours:
                case StepTiming():
                    steps.setdefault((ours.attempt, ours.step), []).append(ours)
                case StepProgress(is_completed=True, throughput=None, checkpoint_step=None):
                    found.append(replace(ours, throughput=self._rates.pop(ours.attempt, None)))
                case _:
                    found.append(ours)
        for (attempt, _), timings in steps.items():
            found += _batched(timings, world_size(attempt))
        return found


def _batched(timings: Sequence[StepTiming], world_size: int | None) -> Sequence[Observation]:
    by_rank = {int(one.rank): one for one in reversed(timings)}  # the first of doubled ones counts
    if world_size is None or world_size < 2 or by_rank.keys() != set(range(world_size)):
        return timings
    own = [by_rank[rank] for rank in range(world_size)]
    local = [math.nan if one.compute_s is None else one.compute_s for one in own]
    return [
        StepBatch(
            attempt=own[0].attempt,
            at=max(one.at for one in own),
            step=own[0].step,
            ranks=range(world_size),
            step_s=array("d", [one.step_s for one in own]),
            compute_s=array("d", local) if any(one.compute_s is not None for one in own) else None,
        )
    ]
