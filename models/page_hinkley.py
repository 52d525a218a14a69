# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Page's test with Hinkley's running mean, scaled for logarithms of step times."""

from __future__ import annotations

from river import drift

from models.drift_vote import DriftVote


class PageHinkleyResidual(DriftVote):
    """PageHinkley on a residual; River's default threshold of 50 takes hours to see a 10 % drop.

    Units:  delta and threshold are those of the residual: logarithms of step times.
    Source: river.drift.PageHinkley in its upward mode.
    """

    name = "page_hinkley"

    def __init__(self, *, delta: float = 0.025, threshold: float = 1.5, keep: int = 2048) -> None:
        self._delta, self._threshold = delta, threshold
        super().__init__(keep=keep, floor=0.04)

    def make(self) -> drift.PageHinkley:
        return drift.PageHinkley(min_instances=30, delta=self._delta, threshold=self._threshold, alpha=1.0, mode="up")
