# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""An independent second vote on a residual: River's ADWIN, which asks whether its recent mean has moved."""

from __future__ import annotations

from typing import Any

from river import drift

from models.drift_vote import DriftVote


class AdwinResidual(DriftVote):
    """ADWIN on a residual that is zero when all is well; never feed it a series that has a trend.

    Units:  delta is ADWIN's confidence, floor the least rise that counts, as a logarithm.
    Source: river.drift.ADWIN with delta = 0.002.
    """

    name = "adwin_residual"

    def __init__(self, *, delta: float = 0.002, keep: int = 2048, floor: float = 0.03) -> None:
        self._delta = delta
        super().__init__(keep=keep, floor=floor)

    def make(self) -> Any:
        adwin: Any = drift.ADWIN
        return adwin(delta=self._delta, clock=4, grace_period=8)
