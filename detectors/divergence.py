# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Training that goes wrong without stopping: values that are no numbers, spikes, and a loss that climbs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from detectors.attempt_tracks import AttemptTracks
from detectors.step_order import StepOrder
from models.clipped_trend import ClippedTrend
from models.rolling_quantile import RollingQuantileBaseline
from relight.jsonform import decode, encode
from relight.types import (
    Anomaly,
    AnomalyKind,
    JobShape,
    Observation,
    Phase,
    StepProgress,
)

SPIKE_SPREADS, SPIKE_SHARE = 8.0, 0.04
SPIKES_IN_4 = 3
DIVERGED = 28.0
LASTING_STEPS = 200
CALM_STEPS = 20
SKIPPED_IN_A_ROW = 3
JUMP = math.log(5)
FIRST = 20


@dataclass(slots=True)
class _Track:
    loss: ClippedTrend = field(default_factory=ClippedTrend)
    grad: RollingQuantileBaseline = field(default_factory=RollingQuantileBaseline)
    order: StepOrder = field(default_factory=StepOrder)
    shape: JobShape | None = None
    open: dict[str, int] = field(default_factory=dict)  # kind of trouble -> step at which it was reported
    began: dict[str, float] = field(default_factory=dict)  # kind of trouble -> time at which it set in
    calm: int = 0
    spikes: list[bool] = field(default_factory=list)
    jumps: int = 0
    odd: int = 0
    first: list[float] = field(default_factory=list)
    before: dict[str, float] | None = None
    has_compared: bool = False
    last_step: int | None = None


class DivergenceDetector(AttemptTracks[_Track]):
    """Judges loss and gradient norm of each attempt against their own trend.

    Shapes: `StepProgress` with `loss` or `grad_norm`; of several ranks' lines of one step the first counts, but
            a loss that is no number counts on any.
    Units:  the loss's own; spikes are measured in usual distances from the trend.
    Errors: ValueError from `restore` for another version's state; none for any observation.
    Source: NaN and infinity at once; gradients that are no numbers only if the step wasn't skipped by a loss
            scaler, or three in a row; a spike if 3 of 4 steps are 8 spreads above the trend; divergence by
            CUSUM, `lasting` after 200 steps; gradient norm 5 times its median twice. Only loss that is no
            number and lasting divergence can speak for an earlier checkpoint; spikes pass by themselves.
    """

    name = "divergence"
    VERSION = 1

    def __init__(self) -> None:
        super().__init__(_Track)

    def observe(self, seen: Observation) -> tuple[Anomaly, ...]:
        if isinstance(seen, JobShape):
            self._see_shape(seen)
        is_step = isinstance(seen, StepProgress) and seen.phase is Phase.STEP and seen.step is not None
        if not isinstance(seen, StepProgress) or not is_step or (seen.loss is None and seen.grad_norm is None):
            return ()
        track = self._track(seen.attempt)
        said = self._no_numbers(track, seen)
        assert seen.step is not None
        if track.order.admits(seen.step, seen.at.timestamp()):
            learns = self._learns(seen.attempt)
            track.last_step = seen.step
            if seen.loss is not None and math.isfinite(seen.loss):
                said += self._see_loss(track, seen, seen.loss, learns)
            if seen.grad_norm is not None and math.isfinite(seen.grad_norm):
                said += self._see_grad(track, seen, seen.grad_norm, learns)
        return tuple(said)

    # -------------------------------------------------------------- what is no number

    def _no_numbers(self, track: _Track, seen: StepProgress) -> list[Anomaly]:
        if seen.loss is not None and not math.isfinite(seen.loss) and not seen.is_skipped:
            text = f"the loss is {seen.loss} at step {seen.step}"
            return self._report(track, seen, "not_a_number", text, 1.0, 0.0, None)
        if seen.grad_norm is None and seen.loss is None:
            return []
        is_odd = bool(seen.is_skipped) or (seen.grad_norm is not None and not math.isfinite(seen.grad_norm))
        if track.order.last is None or seen.step is None or seen.step > track.order.last:
            track.odd = track.odd + 1 if is_odd else 0
        enough = SKIPPED_IN_A_ROW if seen.is_skipped is not False else 1
        if not is_odd or track.odd < enough:
            return []
        what = "was skipped" if seen.is_skipped else f"has the gradient norm {seen.grad_norm}"
        text = f"step {seen.step} {what}, {track.odd} such steps in a row"
        return self._report(track, seen, "gradient_not_a_number", text, float(track.odd), float(enough), None)

    # -------------------------------------------------------------- loss

    def _see_loss(self, track: _Track, seen: StepProgress, value: float, learns: bool) -> list[Anomaly]:
        said = self._compare(track, seen, value)
        model = track.loss
        score = model.score_one(value)
        floor = SPIKE_SHARE * abs(model.trend)
        is_spike = score is not None and score > SPIKE_SPREADS and model.distance(value) > floor
        trend = model.trend
        if learns:
            was_charged = model.charge > 0
            model.learn_one(value)
            if not was_charged and model.charge > 0 and "divergence" not in track.open:
                track.began["divergence"] = seen.at.timestamp()
        if score is None:
            return said
        if is_spike and not any(track.spikes):
            track.began["spike"] = seen.at.timestamp()
        track.spikes = [*track.spikes[-3:], is_spike]
        if sum(track.spikes) >= SPIKES_IN_4:
            text = (
                f"the loss {value:.4g} is {score:.0f} usual distances above its trend {trend:.4g} at step {seen.step}"
            )
            said += self._report(track, seen, "spike", text, score, SPIKE_SPREADS, trend)
        if model.charge > DIVERGED and model.distance(value) > floor:
            text = f"the loss climbs: {value:.4g} at step {seen.step} where its trend was {trend:.4g}"
            said += self._report(track, seen, "divergence", text, model.charge, DIVERGED, trend)
        said += self._lasting(track, seen, value, trend)
        self._settle(track, is_calm=score < 3)
        return said

    def _lasting(self, track: _Track, seen: StepProgress, value: float, trend: float) -> list[Anomaly]:
        since = track.open.get("divergence")
        if since is None or seen.step is None or seen.step - since < LASTING_STEPS:
            return []
        steps = seen.step - since
        text = f"the loss has stayed high for {steps} steps: {value:.4g} at step {seen.step}, trend {trend:.4g}"
        return self._report(track, seen, "lasting", text, float(steps), float(LASTING_STEPS), trend)

    def _settle(self, track: _Track, *, is_calm: bool) -> None:
        track.calm = track.calm + 1 if is_calm else 0
        if track.calm >= CALM_STEPS and track.open:
            track.open, track.began = {}, {}
            track.loss.settle()

    def _compare(self, track: _Track, seen: StepProgress, value: float) -> list[Anomaly]:
        """The first losses after a restart against the trend before it: a level jump is a bad resume."""
        past = track.before
        if past is None or track.has_compared:
            return []
        track.first.append(value)
        if len(track.first) < FIRST:
            return []
        track.has_compared = True
        is_continued = seen.step is not None and seen.step > 0.5 * past["step"]
        level, floor = (
            sorted(track.first)[FIRST // 2],
            max(SPIKE_SPREADS * past["spread"] / 2, 2 * SPIKE_SHARE * abs(past["trend"])),
        )
        track.first = []
        if not is_continued or level - past["trend"] <= floor:
            return []
        text = f"the loss resumed at {level:.4g} where it was {past['trend']:.4g} before the restart"
        return self._report(track, seen, "bad_resume", text, level - past["trend"], floor, past["trend"])

    # -------------------------------------------------------------- gradients

    def _see_grad(self, track: _Track, seen: StepProgress, value: float, learns: bool) -> list[Anomaly]:
        score, usual = track.grad.score_one(value), track.grad.baseline
        is_jump = score is not None and score > JUMP
        if is_jump and not track.jumps:
            track.began["gradient"] = seen.at.timestamp()
        track.jumps = track.jumps + 1 if is_jump else 0
        if learns and not is_jump:
            track.grad.learn_one(value)
        if track.jumps == 0 and seen.loss is None:
            self._settle(track, is_calm=True)
        if track.jumps < 2 or score is None:
            return []
        text = (
            f"the gradient norm {value:.4g} is {math.exp(score):.1f} times its median {usual:.4g} at step {seen.step}"
        )
        return self._report(track, seen, "gradient", text, math.exp(score), math.exp(JUMP), usual)

    # -------------------------------------------------------------- saying it

    def _report(
        self,
        track: _Track,
        seen: StepProgress,
        trouble: str,
        text: str,
        score: float,
        threshold: float,
        baseline: float | None,
    ) -> list[Anomaly]:
        """An anomaly, unless this trouble has been reported and has not passed since."""
        track.calm = 0
        if trouble in track.open:
            return []
        assert seen.step is not None
        track.open[trouble] = seen.step
        at_s = seen.at.timestamp()
        onset = min(track.began.get("divergence" if trouble == "lasting" else trouble, at_s), at_s)
        is_grave = trouble in ("not_a_number", "lasting")
        detail = {
            "trouble": trouble, "step": seen.step, "severity": "critical" if is_grave else "notice",
            "seen_on_rank": seen.rank, "may_restart": is_grave,
        }  # fmt: skip
        return [
            Anomaly(
                attempt=seen.attempt, kind=AnomalyKind.DIVERGENCE, detector=self.name, scope="job", score=score,
                threshold=threshold, baseline=baseline, onset_at=datetime.fromtimestamp(onset, tz=UTC),
                detected_at=datetime.fromtimestamp(at_s, tz=UTC), summary=text, detail=detail,
                evidence=() if seen.where is None else (seen.where,),
            )
        ]  # fmt: skip

    # -------------------------------------------------------------- tracks

    def _start_over(self, track: _Track) -> None:
        track.loss, track.grad = ClippedTrend(), RollingQuantileBaseline()
        track.spikes, track.jumps = [], 0

    def _is_untaught(self, track: _Track) -> bool:
        return track.last_step is None

    def _carry_over(self, track: _Track, past: Mapping[str, Any]) -> None:
        track.before = dict(past)

    def _lesson(self, track: _Track) -> Mapping[str, Any] | None:
        if not track.loss.is_ready or track.open or track.last_step is None:
            return None
        return {"trend": track.loss.trend, "spread": track.loss.spread, "step": float(track.last_step)}

    def _written(self, track: _Track) -> dict[str, Any]:
        return {
            "loss": track.loss.snapshot(),
            "grad": track.grad.snapshot(),
            "order": track.order.snapshot(),
            "shape": None if track.shape is None else encode(track.shape),
            **{name: _copied(getattr(track, name)) for name in _PLAIN},
        }

    def _read(self, kept: Mapping[str, Any]) -> _Track:
        track = _Track(order=StepOrder(*kept["order"]), **{name: _copied(kept[name]) for name in _PLAIN})
        track.loss.restore(kept["loss"])
        track.grad.restore(kept["grad"])
        track.shape = None if kept["shape"] is None else decode(JobShape, kept["shape"])
        return track


_PLAIN = ("open", "began", "calm", "spikes", "jumps", "odd", "first", "before", "has_compared", "last_step")


def _copied(value: Any) -> Any:
    return value.copy() if isinstance(value, dict | list) else value
