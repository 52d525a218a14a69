# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which rank a hang names: by heartbeats, by steps, and when nobody is."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from relight.types import (
    Heartbeat,
    Rank,
    Scope,
    StepBatch,
)
from tests.unit.hang_runs import JOB, Run, step


def beat(run: Run, ranks: Iterable[int]) -> None:
    run.see(*(Heartbeat(attempt=JOB, at=run.at(run.now_s), rank=Rank(r)) for r in ranks))


def test_the_rank_whose_heartbeat_stops_is_named_and_confirms_the_hang() -> None:
    run = Run()
    for number in range(1, 60):
        run.train([number], ranks=range(8))
        beat(run, range(8))
    for _ in range(60):
        run.wait(5)
        beat(run, set(range(8)) - {2})
    assert [(a.rank, a.scope) for a in run.confirmed] == [(2, Scope.RANK)]
    assert run.confirmed[0].detected_at - run.confirmed[0].onset_at < timedelta(seconds=70)


def test_the_rank_that_fell_behind_is_named_by_its_steps() -> None:
    run = Run().train(range(1, 60), ranks=range(8)).train([60], ranks=[0, 1, 2, 4, 5, 6, 7]).wait(600)
    assert [a.rank for a in run.confirmed] == [3]


def test_with_lines_of_one_writer_the_culprit_is_unknown() -> None:
    run = Run().train(range(1, 60), ranks=[0]).wait(600)
    assert [(a.rank, a.scope, a.detail["ranks"]) for a in run.confirmed] == [(None, Scope.JOB, [])]


def test_when_all_heartbeats_stop_nobody_is_named() -> None:
    run = Run()
    for number in range(1, 60):
        run.train([number], ranks=range(8))
        beat(run, range(8))
    run.wait(600)
    assert [a.scope for a in run.confirmed] == [Scope.JOB]


def test_a_rank_that_left_long_before_is_not_accused() -> None:
    run = Run().train(range(1, 30), ranks=range(8)).train(range(30, 200), ranks=range(7)).wait(600)
    assert [a.detail["ranks"] for a in run.confirmed] == [[]]


def test_a_rank_that_always_reports_late_is_not_accused() -> None:
    run = Run()
    for number in range(1, 60):
        run.train([number], ranks=range(7))
        run.see(step(max(1, number - 2), run.at(run.now_s), 7))
    assert [a.detail["ranks"] for a in run.wait(600).confirmed] == [[]]


def test_a_batch_of_ranks_counts_as_their_steps() -> None:
    run = Run()
    for number in range(1, 60):
        run.wait(5)
        times = [1.0, 1.0, float("nan") if number > 58 else 1.0, 1.0, 1.0]
        run.see(StepBatch(attempt=JOB, at=run.at(run.now_s), step=number, ranks=range(5), step_s=times))
    assert [a.rank for a in run.wait(600).confirmed] == [2]
