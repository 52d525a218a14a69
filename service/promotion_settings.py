# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`[promotion]`: where classes of failures begin, and what each rung of the ladder asks of their record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from relight.promotion import BARS, Bar, Stage


class BarSettings(BaseModel):
    """`share` is what the interval's lower end must reach; without `false_stops` these are not counted."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cases: int = Field(ge=1, le=100_000)
    share: float = Field(gt=0, lt=1)
    workloads: int = Field(default=1, ge=1)
    false_stops: int | None = Field(default=None, ge=0)

    @property
    def bar(self) -> Bar:
        return Bar(cases=self.cases, share=self.share, workloads=self.workloads, false_stops=self.false_stops)


def _shipped(stage: Stage) -> BarSettings:
    bar = BARS[stage]
    return BarSettings(cases=bar.cases, share=bar.share, workloads=bar.workloads, false_stops=bar.false_stops)


class Promotion(BaseModel):
    """`start` is the stage of a class that nobody set one for; with `act` the modes alone bound it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    start: Stage = Stage.ACT
    window_days: int = Field(default=90, ge=1, le=3_650)
    every_s: Annotated[float, Field(gt=0)] = 10
    notify: BarSettings = _shipped(Stage.NOTIFY)
    approve: BarSettings = _shipped(Stage.APPROVE)
    act: BarSettings = _shipped(Stage.ACT)

    @property
    def bars(self) -> Mapping[Stage, Bar]:
        return {Stage.NOTIFY: self.notify.bar, Stage.APPROVE: self.approve.bar, Stage.ACT: self.act.bar}
