# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Step times as a grid of ranks by steps: coarse first, and no straggler lost in a group."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from service.web.step_board import Timings

MAX_ROWS: Final = 256
MAX_COLUMNS: Final = 60
OUTLINED_FROM: Final = 1.15
_SEEN_AT_LEAST: Final = 3
_RECENT: Final = 20

Measure = Literal["compute_s", "step_s"]
Cells = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A rank, or a group of neighbours told by their slowest: `values` are ratios to the median rank."""

    first: int
    last: int
    slowdown: float | None
    median_s: float | None
    stragglers: int
    values: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Columns stand for `steps_a_column` steps each, beginning at `columns`."""

    measure: Measure
    ranks: int
    first: int
    last: int
    columns: tuple[int, ...]
    steps_a_column: int
    rows: tuple[Row, ...]
    slowest: tuple[tuple[int, float], ...]
    stragglers: int


def grid(timings: Timings, *, first: int = 0, last: int | None = None, measure: Measure | None = None) -> Grid | None:
    """The ranks from `first` to `last`, each compared with the median of *all* ranks in the same steps.

    `measure` defaults to a rank's own work where most ranks report it: the step time of synchronous
    training is the same for everybody, so that only own work tells the slow one from those who wait.
    None if nothing was reported.
    """
    if not (timings.steps >= 0).any():
        return None
    chosen: Measure = measure or _best_measure(timings)
    cells, columns, width = _cells(timings, timings.compute_s if chosen == "compute_s" else timings.step_s)
    ratios = cells / _median(cells, axis=0)
    slowdown = _median(ratios[:, -_RECENT:], axis=1)
    enough = np.isfinite(ratios[:, -_RECENT:]).sum(axis=1) >= min(_SEEN_AT_LEAST, len(columns))
    is_straggler = enough & (np.nan_to_num(slowdown) >= OUTLINED_FROM)
    end = timings.ranks - 1 if last is None else min(last, timings.ranks - 1)
    begin = min(first, end)
    order = np.argsort(-np.nan_to_num(slowdown), kind="stable")[:50]
    return Grid(
        measure=chosen,
        ranks=timings.ranks,
        first=begin,
        last=end,
        columns=tuple(int(one) for one in columns),
        steps_a_column=width,
        rows=tuple(_rows(begin, end, ratios, slowdown, _median(cells, axis=1), is_straggler)),
        slowest=tuple((int(rank), round(float(slowdown[rank]), 3)) for rank in order if np.isfinite(slowdown[rank])),
        stragglers=int(is_straggler.sum()),
    )


def placed(found: Grid, nodes: Mapping[str, str]) -> dict[str, Any]:
    """The grid as JSON values, with the node of each rank where somebody told us."""
    return {
        "measure": found.measure,
        "ranks": found.ranks,
        "first": found.first,
        "last": found.last,
        "columns": list(found.columns),
        "steps_a_column": found.steps_a_column,
        "stragglers": found.stragglers,
        "outlined_from": OUTLINED_FROM,
        "slowest": [
            {"rank": rank, "slowdown": slowdown, "node": nodes.get(str(rank))} for rank, slowdown in found.slowest
        ],
        "rows": [
            {
                "first": row.first,
                "last": row.last,
                "node": nodes.get(str(row.first)) if row.first == row.last else None,
                "slowdown": row.slowdown,
                "median_s": row.median_s,
                "stragglers": row.stragglers,
                "values": list(row.values),
            }
            for row in found.rows
        ],
    }


def _best_measure(timings: Timings) -> Measure:
    reported = timings.steps >= 0
    return "compute_s" if np.isfinite(timings.compute_s[reported]).mean() >= 0.5 else "step_s"


def _cells(timings: Timings, values: NDArray[np.float32]) -> tuple[Cells, NDArray[np.int64], int]:
    """Mean time by rank and column. Ranks report every so many steps and not the same ones, so a column is
    at least as wide as the usual distance between two reports of a rank."""
    known = (timings.steps >= 0) & np.isfinite(values)
    low, high = int(timings.steps[timings.steps >= 0].min()), int(timings.steps.max())
    width = max(_stride(timings.steps), -(-(high - low + 1) // MAX_COLUMNS))
    count = (high - low) // width + 1
    rank, slot = np.nonzero(known)
    place = rank * count + (timings.steps[rank, slot] - low) // width
    size = timings.ranks * count
    total = np.bincount(place, weights=values[rank, slot], minlength=size)
    seen = np.bincount(place, minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        cells = (total / seen).reshape(timings.ranks, count)
    return cells, low + np.arange(count) * width, width


def _stride(steps: NDArray[np.int64]) -> int:
    """The usual number of steps from one report of a rank to its next."""
    ordered = np.sort(steps, axis=1)
    gaps = np.diff(ordered, axis=1)[ordered[:, :-1] >= 0]
    gaps = gaps[gaps > 0]
    return int(np.median(gaps)) if gaps.size else 1


def _rows(
    begin: int, end: int, ratios: Cells, slowdown: Cells, median_s: Cells, is_straggler: NDArray[np.bool_]
) -> list[Row]:
    size = -(-(end - begin + 1) // MAX_ROWS)
    found = list[Row]()
    for first in range(begin, end + 1, size):
        last = min(first + size - 1, end)
        part = slice(first, last + 1)
        found.append(
            Row(
                first=first,
                last=last,
                slowdown=_number(_highest(slowdown[part])),
                median_s=_number(_median(median_s[part], axis=0)),
                stragglers=int(is_straggler[part].sum()),
                values=tuple(_number(one) for one in _highest(ratios[part])),
            )
        )
    return found


def _highest(values: Cells) -> Cells:
    """The largest along the first axis, NaN where there is nothing."""
    highest: Cells = np.where(np.isfinite(values), values, -np.inf).max(axis=0)
    return np.where(np.isfinite(highest), highest, np.nan)


def _median(values: Cells, *, axis: int) -> Cells:
    """The median of what is known, NaN where nothing is; NumPy's own warns about that."""
    ordered = np.sort(values, axis=axis)
    known = np.isfinite(ordered).sum(axis=axis)
    low, high = np.maximum((known - 1) // 2, 0), np.minimum(known // 2, max(values.shape[axis] - 1, 0))
    pick = [np.take_along_axis(ordered, np.expand_dims(at, axis), axis).squeeze(axis) for at in (low, high)]
    return np.where(known > 0, (pick[0] + pick[1]) / 2, np.nan)


def _number(value: Any) -> float | None:
    return round(float(value), 3) if np.isfinite(value) else None
