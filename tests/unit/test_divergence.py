# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""When training goes wrong without stopping, and what only looks like it."""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import timedelta

import pytest

from detectors.divergence import DivergenceDetector
from relight.testing.detector import NOON, ONE, OTHER, run
from relight.types import Anomaly, Rank
from tests.unit.detection_streams import STEP_S, falling_loss, losses, shape


def troubles(said: list[Anomaly]) -> list[str]:
    return [a.detail["trouble"] for a in said]


def shifted(onset: int, by: float, *, steps: int = 600, for_steps: int = 10**9) -> list[float]:
    return [v + (by if onset <= i < onset + for_steps else 0) for i, v in enumerate(falling_loss(steps))]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_reported_at_once_and_once(value: float) -> None:
    loss = falling_loss(100)
    (said,) = run(DivergenceDetector(), losses(ONE, [*loss[:60], *[value] * 40]))
    assert said.detected_at == said.onset_at == NOON + timedelta(seconds=60 * STEP_S)
    assert said.detail["trouble"] == "not_a_number"
    assert said.detail["may_restart"] is True
    assert said.scope == "job"


def test_a_loss_that_is_no_number_is_reported_in_the_first_step_too() -> None:
    assert troubles(run(DivergenceDetector(), losses(ONE, [math.nan]))) == ["not_a_number"]


def test_any_rank_s_loss_counts_but_accuses_no_rank() -> None:
    stream = losses(ONE, falling_loss(100))
    odd = replace(stream[60], loss=math.nan, rank=Rank(3))
    (said,) = run(DivergenceDetector(), [*stream[:61], odd, *stream[61:]])
    assert (said.rank, said.detail["seen_on_rank"]) == (None, 3)


def test_a_loss_scaler_that_skips_a_step_is_at_work() -> None:
    grads = [math.inf if i % 9 == 0 else 1.0 for i in range(300)]
    assert run(DivergenceDetector(), losses(ONE, falling_loss(300), grads=grads, is_skipped=lambda i: i % 9 == 0)) == []


def test_three_skipped_steps_in_a_row_are_reported() -> None:
    grads = [math.inf if 100 <= i < 103 else 1.0 for i in range(200)]
    said = run(DivergenceDetector(), losses(ONE, falling_loss(200), grads=grads, is_skipped=lambda i: 100 <= i < 103))
    assert troubles(said) == ["gradient_not_a_number"]
    assert said[0].detail["step"] == 102


def test_a_gradient_that_is_no_number_and_was_not_skipped_is_reported_at_once() -> None:
    grads = [math.nan if i == 100 else 1.0 for i in range(200)]
    said = run(DivergenceDetector(), losses(ONE, falling_loss(200), grads=grads, is_skipped=lambda i: False))
    assert said[0].detail["step"] == 100


def test_a_lasting_spike_is_a_notice_within_three_steps() -> None:
    said = run(DivergenceDetector(), losses(ONE, shifted(400, 1.0, for_steps=10)))
    assert troubles(said)[0] == "spike"
    assert said[0].detail["step"] <= 402
    assert not any(a.detail["may_restart"] for a in said)


def test_a_spike_of_one_step_is_nothing() -> None:
    assert run(DivergenceDetector(), losses(ONE, shifted(400, 3.0, for_steps=1))) == []


def test_a_spike_that_passed_may_be_reported_again() -> None:
    loss = [v + (1.0 if i in range(300, 310) or i in range(450, 460) else 0) for i, v in enumerate(falling_loss(600))]
    assert troubles(run(DivergenceDetector(), losses(ONE, loss))).count("spike") == 2


def test_a_loss_that_climbs_is_reported_and_again_when_it_lasts() -> None:
    loss = [v + 0.01 * max(0, i - 600) for i, v in enumerate(falling_loss(1000))]
    said = run(DivergenceDetector(), losses(ONE, loss))
    assert troubles(said)[-1] == "lasting"
    climb = next(a for a in said if a.detail["trouble"] == "divergence")
    assert climb.detail["step"] <= 680
    assert said[-1].detail["step"] - climb.detail["step"] == 200
    assert said[-1].detail["may_restart"] is True


@pytest.mark.parametrize("seed", range(101, 106))
def test_a_loss_that_falls_as_it_should_is_nothing(seed: int) -> None:
    assert run(DivergenceDetector(), losses(ONE, falling_loss(3000, seed))) == []


def test_a_loss_that_falls_suddenly_is_nothing() -> None:
    assert run(DivergenceDetector(), losses(ONE, shifted(400, -1.0))) == []


def test_a_gradient_norm_five_times_its_median_twice_is_a_notice() -> None:
    grads = [8.0 if i in (100, 101) else 1.0 for i in range(200)]
    said = run(DivergenceDetector(), losses(ONE, falling_loss(200), grads=grads))
    assert troubles(said) == ["gradient"]
    once = [8.0 if i == 100 else 1.0 for i in range(200)]
    assert run(DivergenceDetector(), losses(ONE, falling_loss(200), grads=once)) == []


def test_nothing_is_learnt_while_an_incident_is_open() -> None:
    detector, stream = DivergenceDetector(), losses(ONE, falling_loss(400))
    run(detector, stream[:300])
    before = detector.snapshot()["tracks"][ONE]["loss"]
    detector.freeze(ONE, True)
    run(detector, stream[300:])
    assert detector.snapshot()["tracks"][ONE]["loss"] == before


def after_restart(level: float, first: int) -> list[str]:
    detector = DivergenceDetector()
    loss = falling_loss(1000)
    run(detector, [shape(ONE, workload="job"), *losses(ONE, loss)])
    detector.forget(ONE)
    return troubles(
        run(detector, [shape(OTHER, workload="job"), *losses(OTHER, [v + level for v in loss[first:]], first=first)])
    )


def test_a_loss_that_resumes_higher_than_it_was_is_a_bad_resume() -> None:
    assert after_restart(1.0, 900) == ["bad_resume"]


def test_a_resume_where_it_was_is_nothing() -> None:
    assert after_restart(0.0, 900) == []


def test_a_start_from_scratch_is_no_bad_resume() -> None:
    assert after_restart(0.0, 0) == []
