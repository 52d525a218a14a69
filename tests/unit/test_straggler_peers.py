# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Peer medians, the order of steps and the frames that timings are gathered into."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detectors.peer_groups import MANY, PeerGroups
from detectors.rank_frames import RankFrames
from detectors.step_order import StepOrder
from relight.testing.detector import NOON, ONE
from relight.types import Rank, StepTiming

VALUES = st.one_of(st.floats(0.5, 100, width=32), st.just(math.nan))


@given(st.lists(st.tuples(st.integers(0, 3), VALUES), min_size=1, max_size=40))
def test_a_rank_s_peers_are_the_others_of_its_stage_that_reported(some: list[tuple[int, float]]) -> None:
    stages = np.array([stage for stage, _ in some])
    values = np.array([value for _, value in some], dtype=np.float32)
    found, _ = PeerGroups(stages).medians(values)
    for rank, own in enumerate(values):
        if math.isnan(own):
            continue
        here = stages == stages[rank]
        others = values[here & (np.arange(len(values)) != rank) & np.isfinite(values)]
        if not len(others) or 2 * (len(others) + 1) < here.sum():
            assert math.isnan(found[rank])
        else:
            assert np.isclose(found[rank], np.median(others), rtol=1e-5)


def test_in_a_large_group_everyone_is_compared_with_the_whole() -> None:
    values = np.random.default_rng(0).random(MANY + 1).astype(np.float32)
    found, whole = PeerGroups(np.zeros(MANY + 1, dtype=int)).medians(values)
    assert np.allclose(found, np.median(values))
    assert np.allclose(whole, np.median(values))


def test_late_and_doubled_steps_are_dropped_and_a_return_is_followed() -> None:
    order = StepOrder()
    assert [order.admits(step, float(at)) for at, step in enumerate((1, 2, 2, 1, 3, 5))] == [
        True,
        True,
        False,
        False,
        True,
        True,
    ]
    assert [order.admits(step, 10.0 + step) for step in (2, 3, 4, 5)] == [False, False, True, True]


def timing(rank: int, step: int) -> StepTiming:
    return StepTiming(attempt=ONE, at=NOON, rank=Rank(rank), step=step, step_s=1.0, compute_s=0.5)


def test_a_step_is_complete_when_all_ranks_have_reported() -> None:
    frames, done = RankFrames(), []
    for step in range(20):
        for rank in (2, 0, 1):
            done += frames.add(timing(rank, step), float(step))
    assert [frame.step for frame in done] == list(range(20))
    assert all(len(frame.timings) == 3 for frame in done)


def test_a_rank_that_vanishes_holds_up_eight_steps_and_no_more() -> None:
    frames, done = RankFrames(), []
    for step in range(60):
        for rank in (0, 1, 2) if step < 20 else (0, 1):
            done += frames.add(timing(rank, step), float(step))
    assert [frame.step for frame in done] == list(range(60))
    assert len(frames.snapshot()["open"]) <= 8
