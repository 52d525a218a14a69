# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""When a job's throughput counts as dropped, and what only looks like it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from detectors.slowdown import SlowdownDetector
from relight.testing.detector import NOON, ONE, OTHER, run
from relight.types import Phase, StepProgress
from tests.unit.detection_streams import STEP_S, batches, lines, shape


@pytest.mark.parametrize(("factor", "most_s"), [(1.05, 900), (1.1, 300), (1.2, 150)])
def test_a_sustained_drop_is_reported_once_for_the_job(factor: float, most_s: float) -> None:
    (said,) = run(SlowdownDetector(), lines(ONE, 500, factor=factor, onset=250))
    assert (said.scope, said.rank, said.node) == ("job", None, None)
    assert said.detected_at - said.onset_at <= timedelta(seconds=most_s)
    assert abs(said.onset_at - NOON - timedelta(seconds=250 * STEP_S)) < timedelta(seconds=15 * STEP_S)
    assert said.detail["ratio"] == pytest.approx(factor, rel=0.02)
    assert said.baseline == pytest.approx(STEP_S / 1e6, rel=0.02)


def test_a_ramp_of_the_batch_is_no_drop_if_tokens_are_known() -> None:
    ramp = lines(ONE, 600, tokens=lambda step: 1_000_000 + 4_000 * max(0, step - 200))
    assert run(SlowdownDetector(), ramp) == []


def test_without_tokens_a_drop_is_said_not_to_be_normalised() -> None:
    (said,) = run(SlowdownDetector(), lines(ONE, 500, factor=1.2, onset=250, tokens=lambda step: None))
    assert said.detail["is_normalised"] is False
    assert said.detail["unit"] == "steps"


def test_a_logged_throughput_is_used_where_there_is_one() -> None:
    stream = [
        StepProgress(attempt=ONE, at=NOON + timedelta(seconds=i), step=i, throughput=(400 if i < 250 else 340) * (1 + 0.01 * (i % 3)))
        for i in range(400)
    ]  # fmt: skip
    (said,) = run(SlowdownDetector(), stream)
    assert said.detail["unit"] == "throughput"


def test_checkpoints_and_stalls_are_no_drop() -> None:
    pauses = lines(ONE, 800, gap_s=lambda step: 60.0 if step % 50 == 49 else 0.0)
    assert run(SlowdownDetector(), pauses) == []


def test_short_saves_between_markers_do_not_count() -> None:
    stream: list[StepProgress] = []
    for line in lines(ONE, 800, gap_s=lambda step: 8.0 if step % 4 == 3 and step > 300 else 0.0):
        if line.step is not None and line.step % 4 == 3:
            stream.append(replace(line, phase=Phase.CHECKPOINT, at=line.at - timedelta(seconds=1)))
        stream.append(line)
    assert run(SlowdownDetector(), stream) == []


def test_a_drop_that_stays_is_not_repeated_and_a_further_one_is() -> None:
    stream = lines(ONE, 3000, factor=1.2, onset=250)
    assert len(run(SlowdownDetector(), stream)) == 1
    later = [replace(s, at=s.at + timedelta(seconds=2.4 * max(0, i - 1500))) for i, s in enumerate(stream)]
    first, second = run(SlowdownDetector(), later)
    assert second.detail["ratio_to_best"] == pytest.approx(first.detail["ratio_to_best"] * 1.2, rel=0.05)


def test_after_a_recovery_the_next_drop_is_reported_again() -> None:
    spells = lines(ONE, 1500)
    extra, at = [], timedelta()
    for i, line in enumerate(spells):
        at += timedelta(seconds=2.0 if 300 <= i < 500 or 900 <= i < 1100 else 0.0)
        extra.append(replace(line, at=line.at + at))
    assert [a.detail["step"] // 300 for a in run(SlowdownDetector(), extra)] == [1, 3]


def test_threefold_slowness_that_stays_is_a_drop_and_not_a_pause() -> None:
    assert len(run(SlowdownDetector(), lines(ONE, 400, factor=3.0, onset=250))) >= 1


def test_lines_of_every_tenth_step_will_do() -> None:
    stream = [s for s in lines(ONE, 4000, factor=1.2, onset=2500) if s.step is not None and s.step % 10 == 0]
    (said,) = run(SlowdownDetector(), stream)
    assert said.detail["ratio"] == pytest.approx(1.2, rel=0.03)


def test_lines_of_several_ranks_count_once() -> None:
    stream = lines(ONE, 500, factor=1.2, onset=250)
    many = [replace(s, at=s.at + timedelta(milliseconds=10 * rank)) for s in stream for rank in range(4)]
    assert [a.detail["step"] for a in run(SlowdownDetector(), many)] == [
        a.detail["step"] for a in run(SlowdownDetector(), stream)
    ]


def test_step_timings_of_ranks_tell_it_too() -> None:
    said = run(SlowdownDetector(), batches(ONE, 500, lambda step, rank: 1.3 if step >= 250 else 1.0))
    assert [a.scope for a in said] == ["job"]


def test_slow_steps_never_teach_the_baseline() -> None:
    detector = SlowdownDetector()
    run(detector, lines(ONE, 270, factor=1.04, onset=250))
    before = detector.snapshot()["tracks"][ONE]["model"]
    run(
        detector,
        [
            replace(s, step=(s.step or 0) + 270, at=s.at + timedelta(seconds=2750))
            for s in lines(ONE, 100, factor=2.2, onset=0)
        ][:3],
    )
    assert detector.snapshot()["tracks"][ONE]["model"]["level"] == pytest.approx(before["level"], abs=0.002)


def test_nothing_is_learnt_or_charged_while_an_incident_is_open() -> None:
    detector, stream = SlowdownDetector(), lines(ONE, 500, factor=1.3, onset=250)
    run(detector, stream[:250])
    detector.freeze(ONE, True)
    before = detector.snapshot()["tracks"][ONE]["model"]
    assert run(detector, stream[250:]) == []
    after = detector.snapshot()["tracks"][ONE]["model"]
    assert {k: v for k, v in after.items() if k != "interval_s"} == {
        k: v for k, v in before.items() if k != "interval_s"
    }


def test_another_sequence_length_begins_a_new_baseline() -> None:
    first, second = lines(ONE, 300), lines(ONE, 300, factor=1.5, onset=0, seed=101)
    later = [replace(s, step=(s.step or 0) + 300, at=s.at + timedelta(seconds=3000)) for s in second]
    changed = replace(shape(ONE), sequence_length=8192)
    assert run(SlowdownDetector(), [shape(ONE), *first, changed, *later]) == []
    assert run(SlowdownDetector(), [shape(ONE), *first, *later]) != []


def test_an_attempt_slower_than_the_last_of_the_same_shape_is_reported() -> None:
    detector = SlowdownDetector()
    run(detector, [shape(ONE, workload="job"), *lines(ONE, 300)])
    detector.forget(ONE)
    (said,) = run(detector, [shape(OTHER, workload="job"), *lines(OTHER, 300, factor=1.25, onset=0)])
    assert said.detail["is_slower_than_before"] is True
    assert said.detail["ratio"] == pytest.approx(1.25, rel=0.03)
