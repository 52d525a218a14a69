# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Every online model of ours keeps the contract."""

from __future__ import annotations

from collections.abc import Sequence

from models.adwin_residual import AdwinResidual
from models.ar_cusum import ArCusum
from models.clipped_trend import ClippedTrend
from models.ewm_baseline import EwmBaseline
from models.page_hinkley import PageHinkleyResidual
from models.rolling_quantile import RollingQuantileBaseline
from relight.ports import OnlineModel
from relight.testing.model import OnlineModelContract


class TestEwmBaseline(OnlineModelContract):
    def make(self) -> OnlineModel:
        return EwmBaseline()


class TestRollingQuantile(OnlineModelContract):
    def make(self) -> OnlineModel:
        return RollingQuantileBaseline()


class TestAdwinResidual(OnlineModelContract):
    def make(self) -> OnlineModel:
        return AdwinResidual(keep=512)


class TestPageHinkley(OnlineModelContract):
    def make(self) -> OnlineModel:
        return PageHinkleyResidual(keep=512)


class TestClippedTrend(OnlineModelContract):
    def make(self) -> OnlineModel:
        return ClippedTrend()


class TestArCusum(OnlineModelContract):
    def make(self) -> OnlineModel:
        model = ArCusum()
        model.interval_s = 10.0
        return model

    def usual(self, count: int) -> Sequence[float]:
        return [value - 1 for value in super().usual(count)]

    ordinary, unusual = 0.0, 0.3
