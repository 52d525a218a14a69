# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Hangs in the first steps of a run: which second signs confirm them, and which pauses are none."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

import pytest

from detectors.hang import HangDetector
from detectors.rank_signs import RankSigns
from relight.testing.detector import NOON, ONE
from relight.types import (
    Anomaly,
    AttemptId,
    Heartbeat,
    JobShape,
    NodeEvent,
    NodeName,
    Phase,
    Rank,
    StepProgress,
    Tier,
    WorkloadId,
)

RANKS = range(4)


class Run:
    """One attempt whose ranks beat every 5 s unless said otherwise; time passes in the same steps."""

    def __init__(self, detector: HangDetector | None = None, attempt: AttemptId = ONE, at_s: int = 0) -> None:
        self.detector = detector if detector is not None else HangDetector()
        self.attempt, self.at_s, self.number = attempt, at_s, 0
        self.found: list[Anomaly] = []

    def wait(self, seconds: int, beating: Iterable[int] = RANKS) -> Run:
        for _ in range(seconds // 5):
            self.at_s += 5
            at = NOON + timedelta(seconds=self.at_s)
            for rank in beating:
                self.detector.observe(Heartbeat(attempt=self.attempt, at=at, rank=Rank(rank)))
            self.found += self.detector.overdue(at)
        return self

    def step(self, gaps_s: Sequence[int] = (10,)) -> Run:
        """Steps that each took so long."""
        for gap_s in gaps_s:
            self.wait(gap_s)
            self.number += 1
            at = NOON + timedelta(seconds=self.at_s)
            self.detector.observe(StepProgress(attempt=self.attempt, at=at, step=self.number))
        return self

    def confirmed_after(
        self, most_s: int = 4_000, beating: Sequence[int] = tuple(RANKS)
    ) -> tuple[int, list[int]] | None:
        """Seconds until a hang is confirmed, and whom it names."""
        for waited in range(5, most_s, 5):
            self.wait(5, beating)
            said = [one for one in self.found if one.tier is Tier.CONFIRMED]
            if said:
                return waited, said[0].detail["ranks"]
        return None


def early() -> Run:
    """Five steps: the first three compile."""
    return Run().step((60, 90, 20, 10, 10))


def test_a_rank_that_falls_silent_among_the_first_steps_is_named_within_minutes() -> None:
    assert early().confirmed_after(beating=(0, 1, 3)) == (185, [2])


def test_in_the_steps_that_compile_it_is_given_longer() -> None:
    assert Run().step((60, 30)).confirmed_after(beating=(0, 1, 3)) == (305, [2])


def test_a_rank_that_compiles_alone_and_misses_heartbeats_is_no_hang() -> None:
    run = early().wait(150, beating=(0, 1, 3)).step((10,) * 20)
    assert [one.tier for one in run.found] == []


def test_a_slow_first_step_makes_the_watch_more_patient() -> None:
    slow = Run().step((60, 400)).confirmed_after(beating=(0, 1, 3))
    assert slow is not None and slow[0] > 1_200


def test_where_all_fall_silent_nobody_is_named() -> None:
    assert early().confirmed_after(beating=()) == (605, [])


def test_where_all_beat_on_time_alone_decides_and_sooner_once_the_compiling_is_over() -> None:
    assert early().confirmed_after() == (905, [])
    assert Run().step((60, 90)).confirmed_after() == (1_805, [])


def test_an_earlier_attempts_first_steps_shorten_the_patience_with_these() -> None:
    before, after = AttemptId("before"), AttemptId("after")
    detector = HangDetector()
    detector.observe(JobShape(attempt=before, at=NOON, workload=WorkloadId("job"), world_size=4))
    first = Run(detector, before).step((60, 90, 20, *(10,) * 30))
    detector.observe(JobShape(attempt=after, at=NOON, workload=WorkloadId("job"), world_size=4))
    detector.forget(before)
    again = Run(detector, after, first.at_s).step((60, 90))
    assert again.confirmed_after() == (605, [])


def test_a_dead_node_confirms_at_once_among_the_first_steps_and_later_in_the_set_up() -> None:
    for run, least_s, most_s in ((early(), 30, 60), (Run().wait(60), 200, 320)):
        run.detector.place_ranks(ONE, {Rank(rank): NodeName(f"n{rank}") for rank in RANKS})
        run.detector.observe(
            NodeEvent(at=NOON + timedelta(seconds=run.at_s), node=NodeName("n1"), code="79", is_fatal=True)
        )
        found = run.confirmed_after(900)
        assert found is not None and least_s <= found[0] <= most_s
        assert run.found[-1].node == "n1"


def test_a_rank_that_builds_an_index_in_the_set_up_is_given_a_quarter_of_an_hour() -> None:
    assert Run().wait(60).confirmed_after(800, beating=(1, 2, 3)) is None
    found = Run().wait(60).confirmed_after(beating=(1, 2, 3))
    assert found is not None and found[1] == [0]


def test_an_open_checkpoint_is_no_plain_step() -> None:
    run = early()
    at = NOON + timedelta(seconds=run.at_s)
    run.detector.observe(StepProgress(attempt=ONE, at=at, phase=Phase.CHECKPOINT, is_completed=False))
    assert run.confirmed_after(600, beating=(0, 1, 3)) is None


@pytest.mark.parametrize(
    ("beats", "at_s", "is_silent"),
    [
        ({0: (0, 5, 10), 1: (0, 5, 10)}, 100, True),
        ({0: (0, 5, 10), 1: (0, 5, 95)}, 100, False),
        ({0: (0, 5, 10), 1: (0, 5, 10)}, 40, False),
        ({0: (10,), 1: (10,)}, 100, False),
        ({}, 100, False),
    ],
)
def test_all_are_silent_only_if_all_had_beaten(beats: dict[int, Sequence[int]], at_s: int, is_silent: bool) -> None:
    signs = RankSigns()
    for rank, times in beats.items():
        for at in times:
            signs.beat(rank, float(at))
    assert signs.all_silent(10.0, float(at_s)) is is_silent


def test_heartbeats_that_ended_long_before_the_pause_say_nothing() -> None:
    signs = RankSigns()
    for at in (0, 5, 10):
        signs.beat(0, float(at))
    assert not signs.all_silent(1_000.0, 1_100.0)
