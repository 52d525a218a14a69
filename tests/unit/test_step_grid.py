# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The heat map's data: bounded memory, and a slow rank that no grouping hides."""

from __future__ import annotations

import random
from datetime import UTC, datetime

from relight.types import AttemptId, Heartbeat, Rank, StepBatch, StepTiming
from service.web.step_board import DEPTH, StepBoard
from service.web.step_grid import MAX_COLUMNS, MAX_ROWS, Grid, grid

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
JOB = AttemptId("a-1")


def batches(ranks: int, steps: int, slow: int | None = None, by: float = 1.3, job: AttemptId = JOB) -> StepBoard:
    board, dice = StepBoard(), random.Random(7)
    for step in range(steps):
        own = [dice.gauss(1.0, 0.02) * (by if rank == slow else 1) for rank in range(ranks)]
        board.take(
            StepBatch(attempt=job, at=NOON, step=step, ranks=range(ranks), step_s=[max(own)] * ranks, compute_s=own)
        )
    return board


def drawn(board: StepBoard, **said: int) -> Grid:
    timings = board.timings(JOB)
    assert timings is not None
    found = grid(timings, **said)  # type: ignore[arg-type]
    assert found is not None
    return found


def test_one_slow_rank_of_ten_thousand_is_outlined_in_its_group() -> None:
    found = drawn(batches(10_000, 12, slow=7_777))
    assert (found.stragglers, found.slowest[0][0]) == (1, 7_777)
    assert len(found.rows) <= MAX_ROWS
    (row,) = [one for one in found.rows if one.stragglers]
    assert row.first <= 7_777 <= row.last
    near = drawn(batches(10_000, 12, slow=7_777), first=row.first, last=row.last)
    assert [one.first for one in near.rows if one.stragglers] == [7_777]


def test_a_rank_is_compared_with_all_ranks_and_not_with_those_in_view() -> None:
    found = drawn(batches(64, 12, slow=5), first=5, last=5)
    assert [row.stragglers for row in found.rows] == [1]


def test_healthy_ranks_are_not_outlined() -> None:
    assert drawn(batches(256, 12)).stragglers == 0


def test_whole_steps_accuse_nobody_where_own_work_is_unknown() -> None:
    board = StepBoard()
    for step in range(8):
        for rank in range(4):
            board.take(StepTiming(attempt=JOB, at=NOON, rank=Rank(rank), step=step, step_s=2.0))
    found = drawn(board)
    assert (found.measure, found.stragglers) == ("step_s", 0)


def test_ranks_that_report_at_different_steps_share_columns() -> None:
    board = StepBoard()
    for turn in range(12):
        for rank in range(8):
            step = turn * 10 + rank % 3
            board.take(StepTiming(attempt=JOB, at=NOON, rank=Rank(rank), step=step, step_s=1.0, compute_s=1.0))
    found = drawn(board)
    assert found.steps_a_column >= 9
    assert all(value is not None for row in found.rows for value in row.values[:-1])


def test_a_long_run_still_fits_its_columns() -> None:
    assert len(drawn(batches(4, 400)).columns) <= MAX_COLUMNS


def test_a_rank_that_never_reported_is_empty_and_not_healthy() -> None:
    board = StepBoard()
    for step in range(8):
        for rank in (0, 1, 3):
            board.take(StepTiming(attempt=JOB, at=NOON, rank=Rank(rank), step=step, step_s=1.0, compute_s=1.0))
    row = drawn(board).rows[2]
    assert (row.slowdown, set(row.values)) == (None, {None})


def test_the_attempt_that_was_quiet_longest_gives_way() -> None:
    board = StepBoard(max_cells=3 * DEPTH)
    for name in ("old", "new"):
        for rank in range(2):
            board.take(StepTiming(attempt=AttemptId(name), at=NOON, rank=Rank(rank), step=1, step_s=1.0))
    assert board.attempts() == ("new",)
    assert board.timings(AttemptId("old")) is None


def test_other_observations_and_absurd_ranks_are_ignored() -> None:
    board = StepBoard()
    board.take(Heartbeat(attempt=JOB, at=NOON, rank=Rank(0)))
    board.take(StepTiming(attempt=JOB, at=NOON, rank=Rank(10**9), step=1, step_s=1.0))
    assert board.timings(JOB) is None
