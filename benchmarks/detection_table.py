# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rows of the detection table and where they are registered."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How much to run: `count` scales a usual number of jobs, `seeds` are theirs."""

    jobs: float = 1.0
    first_seed: int = 100

    def count(self, usual: int) -> int:
        return max(2, round(usual * self.jobs))

    def seeds(self, usual: int) -> range:
        return range(self.first_seed, self.first_seed + self.count(usual))


@dataclass(frozen=True, kw_only=True)
class Row:
    """One figure: what was measured, the bar it is held to, and what a simple way reaches in the same run."""

    number: str
    metric: str
    measured: str
    bar: str
    is_met: bool
    baseline: str = ""
    figures: Mapping[str, float | None] = field(default_factory=dict)


ROWS: list[Callable[[Scale], list[Row]]] = []


def row(make: Callable[[Scale], list[Row]]) -> Callable[[Scale], list[Row]]:
    """Register a function that measures one or more rows."""
    ROWS.append(make)
    return make


def on_both_cores(work: Callable[[A], B], tasks: Sequence[A]) -> list[B]:
    """Run independent tasks in two processes."""
    with ProcessPoolExecutor(2) as pool:
        return list(pool.map(work, tasks))


def median(values: Sequence[float]) -> float | None:
    return statistics.median(values) if values else None


def shown(value: float | None, unit: str = "") -> str:
    """A figure for the table; a missing one is a word and not a zero."""
    return "none" if value is None else f"{value:.3g}{unit}"
