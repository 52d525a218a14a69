# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What must hold for the hang detector whatever arrives, in whatever order."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.hang import HangDetector
from detectors.pauses import Pauses
from relight.types import (
    Anomaly,
    AttemptId,
    AttemptState,
    Heartbeat,
    LogLine,
    Observation,
    Phase,
    Rank,
    SchedulerState,
    StepProgress,
    Stream,
    Tier,
)

T0 = datetime(2026, 1, 2, tzinfo=UTC)
ATTEMPTS = st.sampled_from([AttemptId("a"), AttemptId("b")])
WHEN = st.integers(-4000, 90_000).map(lambda s: T0 + timedelta(seconds=s))
RANKS = st.one_of(st.none(), st.integers(-1, 12).map(Rank))
STEPS = st.builds(
    StepProgress, attempt=ATTEMPTS, at=WHEN, step=st.one_of(st.none(), st.integers(0, 200)), rank=RANKS,
    phase=st.sampled_from(Phase), is_completed=st.booleans(),
    checkpoint_step=st.one_of(st.none(), st.none(), st.integers(0, 200)),
    step_s=st.one_of(st.none(), st.floats(0.0, 1e5)),
)  # fmt: skip
OTHERS = st.one_of(
    st.builds(Heartbeat, attempt=ATTEMPTS, at=WHEN, rank=st.integers(0, 12).map(Rank)),
    st.builds(SchedulerState, attempt=ATTEMPTS, at=WHEN, state=st.sampled_from(AttemptState)),
    st.builds(
        LogLine, attempt=ATTEMPTS, file=st.just("f"), number=st.integers(1, 9), stream=st.sampled_from(Stream),
        text=st.text(max_size=40),
    ),
)  # fmt: skip
TICKS = st.integers(1, 3000)
SCRIPT = st.lists(st.one_of(STEPS, OTHERS, TICKS), max_size=60)


def played(detector: HangDetector, script: list[Observation | int], now_s: int = 0) -> tuple[list[Anomaly], int]:
    found: list[Anomaly] = []
    for item in script:
        if isinstance(item, int):
            now_s += item
            found += detector.overdue(T0 + timedelta(seconds=now_s))
        else:
            found += detector.observe(item)
    return found, now_s


@given(SCRIPT)
@settings(max_examples=150, deadline=None)
def test_at_most_one_hang_an_attempt_is_confirmed_and_its_onset_is_not_after_it(
    script: list[Observation | int],
) -> None:
    found, _ = played(HangDetector(), script)
    confirmed = [a.attempt for a in found if a.tier is Tier.CONFIRMED]
    assert len(confirmed) == len(set(confirmed))
    assert all(a.onset_at <= a.detected_at for a in found)


@given(SCRIPT, SCRIPT)
@settings(max_examples=150, deadline=None)
def test_a_snapshot_mid_stream_equals_none(first: list[Observation | int], then: list[Observation | int]) -> None:
    going, restored = HangDetector(), HangDetector()
    _, now = played(going, first)
    restored.restore(json.loads(json.dumps(going.snapshot())))
    assert played(restored, then, now)[0] == played(going, then, now)[0]
    assert restored.snapshot() == going.snapshot()


@given(st.lists(TICKS, max_size=60))
def test_no_data_no_verdict(ticks: list[int]) -> None:
    assert played(HangDetector(), list(ticks))[0] == []


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=400))
@settings(max_examples=60, deadline=None)
def test_limits_are_finite_ordered_and_the_state_is_bounded(gaps: list[float]) -> None:
    pauses = Pauses()
    for number, gap in enumerate(gaps):
        pauses.learn(gap, frozenset({"checkpoint"}) if number % 7 == 0 else frozenset(), number)
    for kind in ("step", "checkpoint"):
        assert 30.0 <= pauses.suspect_after_s(kind) < float("inf")
        assert pauses.confirm_after_s(kind) < float("inf")
    assert len(json.dumps(pauses.as_json())) < 10_000
    assert Pauses.restored(json.loads(json.dumps(pauses.as_json()))).as_json() == pauses.as_json()
