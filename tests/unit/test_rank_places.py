# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""When Slurm is asked where ranks run: soon after a start, ever more rarely, and all that is due at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from controllers.slurm.rank_places import RankPlaces
from relight.jobs import JobRecord
from relight.testing.fake_slurm import FakeSlurm
from relight.types import AttemptState, NodeName

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)


class _Clock:
    def now(self) -> datetime:
        return NOON


class Counted(FakeSlurm):
    def __init__(self) -> None:
        super().__init__(_Clock())
        self.asked: list[list[str]] = []

    def rank_nodes(self, jobs: Sequence[JobRecord]) -> dict[str, tuple[NodeName, ...]]:
        self.asked.append([one.job_id for one in jobs])
        return {}


def job(number: int, **fields: int) -> JobRecord:
    return replace(JobRecord(job_id=str(number), state=AttemptState.RUNNING), **fields)  # type: ignore[arg-type]


def test_one_question_for_all_that_are_due_and_none_where_nothing_is() -> None:
    slurm = Counted()
    places = RankPlaces(slurm)
    places.look([job(1), job(2)], NOON)
    places.look([job(1), job(2)], NOON + timedelta(seconds=1))
    places.look([replace(job(3), state=AttemptState.PENDING)], NOON + timedelta(seconds=2))
    assert slurm.asked == [["1", "2"]]


def test_the_questions_grow_rarer_up_to_one_a_minute() -> None:
    slurm = Counted()
    places, times = RankPlaces(slurm), list[int]()
    for second in range(300):
        before = len(slurm.asked)
        places.look([job(1)], NOON + timedelta(seconds=second))
        times += [second] if len(slurm.asked) > before else []
    assert times == [0, 5, 15, 35, 75, 135, 195, 255]


def test_a_new_run_is_asked_about_at_once() -> None:
    slurm = Counted()
    places = RankPlaces(slurm)
    places.look([job(1)], NOON)
    places.look([job(1, restart_count=1)], NOON + timedelta(seconds=1))
    assert slurm.asked == [["1"], ["1"]]
