# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the online models make of shifts, outliers and trends."""

from __future__ import annotations

import math

import numpy as np
import pytest

from models.adwin_residual import AdwinResidual
from models.ar_cusum import ArCusum
from models.clipped_trend import ClippedTrend
from models.drift_vote import DriftVote
from models.ewm_baseline import EwmBaseline
from models.page_hinkley import PageHinkleyResidual
from models.rolling_quantile import RollingQuantileBaseline


def white(count: int, sigma: float, seed: int = 100) -> list[float]:
    return [float(v) for v in np.random.default_rng(seed).normal(0, sigma, count)]


@pytest.mark.parametrize("model", [AdwinResidual(), PageHinkleyResidual()])
def test_a_drift_vote_sees_a_rise_and_its_size_and_no_fall(model: DriftVote) -> None:
    for value in white(300, 0.01):
        model.learn_one(value)
    assert model.score_one(0.0) == 0.0
    for value in white(200, 0.01, seed=101):
        model.learn_one(value + 0.1)
    assert model.score_one(0.0) == pytest.approx(0.1, abs=0.03)
    for value in white(400, 0.01, seed=102):
        model.learn_one(value)
    assert model.score_one(0.0) == 0.0


def test_a_rise_below_the_floor_gets_no_vote() -> None:
    model = AdwinResidual()
    for value in [*white(400, 0.002), *(v + 0.01 for v in white(400, 0.002, seed=101))]:
        model.learn_one(value)
    assert model.score_one(0.0) == 0.0


def test_an_outlier_hardly_moves_the_ewm_baseline() -> None:
    model = EwmBaseline()
    for value in white(200, 0.01):
        model.learn_one(1 + value)
    model.learn_one(100.0)
    assert model.mean == pytest.approx(1.0, abs=0.01)
    score = model.score_one(2.0)
    assert score is not None and score > 20


def test_a_long_step_does_not_move_the_rolling_median() -> None:
    model = RollingQuantileBaseline()
    for value in [1.0] * 50 + [60.0] * 10:
        model.learn_one(value)
    assert model.score_one(1.0) == 0.0
    assert model.score_one(2.0) == pytest.approx(math.log(2))


def test_ar_cusum_is_silent_on_correlated_noise_and_sees_a_rise() -> None:
    model, last = ArCusum(), 0.0
    model.interval_s = 10.0
    for shock in white(5000, 0.02):
        last = 0.5 * last + shock
        model.learn_one(last)
        assert model.rise() is None
    rises = []
    for shock in white(60, 0.02, seed=101):
        last = 0.5 * last + shock
        model.learn_one(last + 0.15)
        rises += [rise] if (rise := model.rise()) is not None else []
    assert rises[0] == pytest.approx(0.15, abs=0.06)


def test_the_larger_a_drop_the_sooner_it_is_seen_in_rough_noise() -> None:
    took = []
    for rise in (0.1, 0.3):
        model = ArCusum()
        model.interval_s = 10.0
        for value in white(500, 0.11):
            model.learn_one(value)
        later = iter(white(500, 0.11, seed=101))
        while model.rise() is None:
            model.learn_one(next(later) + rise)
        took.append(model.count)
    assert took[1] < took[0] / 2


def test_a_falling_series_charges_nothing_on_the_clipped_trend() -> None:
    model = ClippedTrend()
    for step, value in enumerate(white(2000, 0.02)):
        model.learn_one(2 + 6 * (1 + step / 40) ** -0.6 + value)
        assert model.charge < 28
    assert model.trend == pytest.approx(2 + 6 * 51**-0.6, abs=0.05)


@pytest.mark.parametrize(
    "make",
    [lambda: EwmBaseline(half_life=0), lambda: RollingQuantileBaseline(warmup=9, window=4), lambda: ArCusum(effect=0), lambda: AdwinResidual(keep=1)],
)  # fmt: skip
def test_parameters_that_make_no_sense_are_refused(make: object) -> None:
    assert callable(make)
    with pytest.raises(ValueError, match="need"):
        make()
