# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The last step times of every rank, in bounded memory: what the heat map is drawn from."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from relight.types import AttemptId, Observation, StepBatch, StepTiming

DEPTH: Final = 96
MAX_CELLS: Final = 4_000_000
MAX_RANKS: Final = 131_072


@dataclass(frozen=True, slots=True)
class Timings:
    """Shapes: (ranks, kept reports) each; `steps` is -1 where nothing was reported.

    Units: seconds; `compute_s` is NaN for a rank that does not tell its own work from waiting.
    """

    steps: NDArray[np.int64]
    step_s: NDArray[np.float32]
    compute_s: NDArray[np.float32]

    @property
    def ranks(self) -> int:
        return int(self.steps.shape[0])


class _Ring:
    """The reports of one attempt; a rank's oldest gives way to its newest."""

    def __init__(self) -> None:
        self.steps = np.full((0, DEPTH), -1, dtype=np.int64)
        self.step_s = np.zeros((0, DEPTH), dtype=np.float32)
        self.compute_s = np.zeros((0, DEPTH), dtype=np.float32)
        self.next = np.zeros(0, dtype=np.int64)

    @property
    def cells(self) -> int:
        return int(self.steps.size)

    def put(
        self, ranks: NDArray[np.int64], step: int, step_s: NDArray[np.float32], compute_s: NDArray[np.float32]
    ) -> None:
        self._grow(int(ranks.max()) + 1)
        slots = self.next[ranks] % DEPTH
        self.steps[ranks, slots] = step
        self.step_s[ranks, slots] = step_s
        self.compute_s[ranks, slots] = compute_s
        self.next[ranks] += 1

    def _grow(self, wanted: int) -> None:
        have = self.steps.shape[0]
        if wanted <= have:
            return
        more = max(wanted, min(2 * have, MAX_RANKS)) - have
        self.steps = np.vstack([self.steps, np.full((more, DEPTH), -1, dtype=np.int64)])
        self.step_s = np.vstack([self.step_s, np.zeros((more, DEPTH), dtype=np.float32)])
        self.compute_s = np.vstack([self.compute_s, np.full((more, DEPTH), np.nan, dtype=np.float32)])
        self.next = np.concatenate([self.next, np.zeros(more, dtype=np.int64)])


class StepBoard:
    """Listens to step timings; the attempt that was quiet longest is dropped when room runs out.

    It is a view of the present and no record: after a restart it fills again as ranks report.
    """

    def __init__(self, max_cells: int = MAX_CELLS) -> None:
        self._max_cells = max_cells
        self._lock = threading.Lock()
        self._rings: OrderedDict[AttemptId, _Ring] = OrderedDict()

    def take(self, seen: Observation) -> None:
        """Keep a timing; anything else, and ranks beyond `MAX_RANKS`, are none of its business."""
        match seen:
            case StepTiming():
                compute = [np.nan if seen.compute_s is None else seen.compute_s]
                self._put(seen.attempt, [seen.rank], seen.step, [seen.step_s], compute)
            case StepBatch() if len(seen.ranks):
                compute_s = seen.compute_s if seen.compute_s is not None else np.full(len(seen.ranks), np.nan)
                self._put(seen.attempt, seen.ranks, seen.step, seen.step_s, compute_s)
            case _:
                pass

    def attempts(self) -> tuple[AttemptId, ...]:
        """Those with timings, the latest to report first."""
        with self._lock:
            return tuple(reversed(self._rings))

    def timings(self, attempt: AttemptId) -> Timings | None:
        """A copy of what is kept, or None if the attempt never reported or had to give way."""
        with self._lock:
            ring = self._rings.get(attempt)
            if ring is None:
                return None
            known = int(np.flatnonzero(ring.next)[-1]) + 1
            return Timings(ring.steps[:known].copy(), ring.step_s[:known].copy(), ring.compute_s[:known].copy())

    def _put(self, attempt: AttemptId, ranks: object, step: int, step_s: object, compute_s: object) -> None:
        who = np.asarray(ranks, dtype=np.int64)
        fits = (who >= 0) & (who < MAX_RANKS)
        if not fits.any():
            return
        with self._lock:
            ring = self._rings.setdefault(attempt, _Ring())
            ring.put(
                who[fits], step, np.asarray(step_s, dtype=np.float32)[fits],
                np.asarray(compute_s, dtype=np.float32)[fits],
            )  # fmt: skip
            self._rings.move_to_end(attempt)
            while len(self._rings) > 1 and sum(one.cells for one in self._rings.values()) > self._max_cells:
                self._rings.popitem(last=False)
