# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Sustained throughput drops of a whole job, seen from rank 0's lines or from step timings alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from detectors.attempt_tracks import AttemptTracks
from detectors.step_order import StepOrder
from models.ar_cusum import ArCusum
from relight.jsonform import decode, encode
from relight.types import (
    Anomaly,
    AnomalyKind,
    AttemptId,
    JobShape,
    LogRef,
    Observation,
    Phase,
    StepBatch,
    StepProgress,
    StepTiming,
)

WARMUP_STEPS = 20
CARRIED_WEIGHT = 60
MOST_WEIGHT = 600
SLOWER_THAN_BEFORE = 0.1
IN_WORDS = {
    "tokens": "seconds per token",
    "throughput": "the inverse of the logged throughput",
    "steps": "seconds per step",
}


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds per unit of work at one step, and what the unit is."""

    step: int
    at_s: float
    seconds: float
    unit: str
    where: LogRef | None = None


@dataclass(slots=True)
class _Track:
    model: ArCusum = field(default_factory=ArCusum)
    order: StepOrder = field(default_factory=StepOrder)
    shape: JobShape | None = None
    source: str | None = None
    unit: str | None = None
    strangers: int = 0
    seen: int = 0
    last_step: int | None = None
    last_s: float = 0.0
    is_broken: bool = False
    onset_s: float | None = None
    before: float | None = None
    weight: int = 0  # steps that `before` stands for
    own: float | None = None
    taught: int = 0


class SlowdownDetector(AttemptTracks[_Track]):
    """AR-CUSUM on the logarithm of seconds per token of each attempt.

    Shapes: one pace a step, from whichever of `StepProgress` (a log's lines) and `StepBatch` or `StepTiming`
            came first. The scope is always the job: with synchronous collectives a pace accuses nobody.
    Units:  seconds per token if the lines say so, else the inverse of the logged throughput, else seconds
            per step, which a change of batch also changes: then `detail.is_normalised` is false.
    Errors: ValueError from `restore` for another version's state; none for any observation.
    """

    name = "slowdown"
    VERSION = 2

    def __init__(self, effect: float = 0.05) -> None:
        self._effect = effect
        super().__init__(lambda: _Track(model=ArCusum(effect)))

    def observe(self, seen: Observation) -> tuple[Anomaly, ...]:
        match seen:
            case StepProgress():
                return self._see_progress(seen)
            case StepTiming():
                return self._see_timing(seen.attempt, seen.step, seen.at, [seen.step_s])
            case StepBatch():
                some = seen.step_s[:: max(1, len(seen.step_s) // 64)]
                return self._see_timing(seen.attempt, seen.step, seen.at, some)
            case JobShape():
                self._see_shape(seen)
        return ()

    # -------------------------------------------------------------- observations

    def _see_progress(self, seen: StepProgress) -> tuple[Anomaly, ...]:
        track = self._track(seen.attempt)
        if seen.phase is not Phase.STEP or not seen.is_completed or seen.step is None:
            track.is_broken = track.is_broken or seen.phase is not Phase.STEP
            return ()
        if track.source not in (None, "lines") or not track.order.admits(seen.step, seen.at.timestamp()):
            return ()
        track.source = "lines"
        pace = _pace_of(seen, track)
        track.last_step, track.last_s = seen.step, seen.at.timestamp()
        was_broken, track.is_broken = track.is_broken, False
        return () if pace is None or was_broken else self._judge(seen.attempt, track, pace)

    def _see_timing(self, attempt: AttemptId, step: int, at: datetime, step_s: Sequence[float]) -> tuple[Anomaly, ...]:
        track = self._track(attempt)
        sound = [float(s) for s in step_s if math.isfinite(s) and s > 0]
        if track.source not in (None, "timings") or not sound or not track.order.admits(step, at.timestamp()):
            return ()
        track.source, track.last_step = "timings", step
        took = statistics.median(sound)
        _see_interval(track.model, took)
        return self._judge(attempt, track, Pace(step, at.timestamp(), took, "steps"))

    # -------------------------------------------------------------- judging

    def _judge(self, attempt: AttemptId, track: _Track, pace: Pace) -> tuple[Anomaly, ...]:
        if track.unit != pace.unit:
            track.strangers += track.unit is not None
            if track.unit is not None and track.strangers < WARMUP_STEPS:
                return ()
            self._start_over(track)
            track.unit = pace.unit
        track.strangers = 0
        track.seen = min(track.seen + 1, WARMUP_STEPS + 1)
        if track.seen <= WARMUP_STEPS or not self._learns(attempt):
            return ()
        model, had_level = track.model, track.model.level is not None
        model.learn_one(math.log(pace.seconds))
        track.taught = min(track.taught + 1, MOST_WEIGHT)
        if model.level is not None:
            track.own = model.level if track.own is None else min(track.own, model.level)
        if not had_level and model.level is not None and track.before is not None:
            return self._compare(attempt, track, pace)
        if model.count == 1 or track.onset_s is None:
            track.onset_s = pace.at_s
        if (rise := model.rise()) is not None:
            return (self._alarm(attempt, track, pace, rise),)
        if model.has_fallen():
            model.relearn(model.recovered_by())
        return ()

    def _alarm(self, attempt: AttemptId, track: _Track, pace: Pace, rise: float) -> Anomaly:
        model = track.model
        assert model.level is not None
        onset = track.onset_s if track.onset_s is not None else pace.at_s
        usual, charge, threshold, steps = math.exp(model.level), model.charge, model.threshold, model.count
        best = model.best if model.best is not None else model.level
        total = math.exp(model.level + rise - best)
        model.relearn(rise)
        text = (
            f"{IN_WORDS[pace.unit]} rose by {100 * math.expm1(rise):.0f} % for {steps} steps up to step "
            f"{pace.step}, {100 * (total - 1):.0f} % above the best seen; which rank is slow can't be told from this"
        )
        return _anomaly(
            attempt,
            pace,
            onset,
            text,
            charge,
            threshold,
            usual,
            {"steps": steps, "ratio": math.exp(rise), "ratio_to_best": total},
        )

    def _compare(self, attempt: AttemptId, track: _Track, pace: Pace) -> tuple[Anomaly, ...]:
        """This attempt's level against the best that attempts of the same shape had."""
        assert track.before is not None and track.model.level is not None
        rise = track.model.level - track.before
        track.model.best = min(track.before, track.model.level)
        if rise < SLOWER_THAN_BEFORE:
            return ()
        text = (
            f"{IN_WORDS[pace.unit]} are {100 * math.expm1(rise):.0f} % above those of the last attempt "
            "of the same shape"
        )
        detail = {"ratio": math.exp(rise), "ratio_to_best": math.exp(rise), "is_slower_than_before": True}
        return (_anomaly(attempt, pace, pace.at_s, text, rise, SLOWER_THAN_BEFORE, math.exp(track.before), detail),)

    # -------------------------------------------------------------- tracks

    def _start_over(self, track: _Track) -> None:
        track.model, track.seen, track.before, track.unit = ArCusum(self._effect), 0, None, None
        track.last_step, track.weight, track.taught, track.own = None, 0, 0, None

    def _is_untaught(self, track: _Track) -> bool:
        return track.model.level is None

    def _carry_over(self, track: _Track, past: Mapping[str, Any]) -> None:
        if track.unit in (None, past["unit"]):
            track.before, track.unit, track.weight = past["best"], past["unit"], past["weight"]

    def _lesson(self, track: _Track) -> Mapping[str, Any] | None:
        """The best level of this attempt and of those before, weighed by their steps.

        What came before never counts for more than `CARRIED_WEIGHT` steps, so that one fast attempt is not held
        against all that follow; a level that was reported as slower teaches nothing.
        """
        own, before = track.own, track.before
        if track.unit is None or (own is None and before is None):
            return None
        if own is None or (before is not None and own - before >= SLOWER_THAN_BEFORE):
            return {"best": before, "unit": track.unit, "weight": track.weight}
        total = track.weight + track.taught
        handed = own if before is None else (track.weight * before + track.taught * own) / total
        return {"best": handed, "unit": track.unit, "weight": min(total, CARRIED_WEIGHT)}

    def _written(self, track: _Track) -> dict[str, Any]:
        return {
            "model": track.model.snapshot(),
            "order": track.order.snapshot(),
            "shape": None if track.shape is None else encode(track.shape),
            **{name: getattr(track, name) for name in _PLAIN},
        }

    def _read(self, kept: Mapping[str, Any]) -> _Track:
        model = ArCusum(self._effect)
        model.restore(kept["model"])
        shape = None if kept["shape"] is None else decode(JobShape, kept["shape"])
        plain = {name: kept[name] for name in _PLAIN}
        return _Track(model=model, order=StepOrder(*kept["order"]), shape=shape, **plain)


_PLAIN = ("source", "unit", "strangers", "seen", "last_step", "last_s", "is_broken", "onset_s", "before", "weight",
          "own", "taught")  # fmt: skip


def _pace_of(seen: StepProgress, track: _Track) -> Pace | None:
    """Seconds per unit of work, by the best that a line says; the time between lines if it says nothing."""
    assert seen.step is not None
    at_s = seen.at.timestamp()
    took = seen.step_s
    if took is None and track.last_step is not None and seen.step > track.last_step:
        took = (at_s - track.last_s) / (seen.step - track.last_step)
    if took is not None and seen.tokens is not None and seen.tokens > 0:
        seconds, unit = took / seen.tokens, "tokens"
    elif seen.throughput is not None:
        seconds, unit = 1 / seen.throughput if seen.throughput > 0 else math.nan, "throughput"
    else:
        seconds, unit = (math.nan if took is None else took), "steps"
    if not (math.isfinite(seconds) and seconds > 0):
        return None
    if track.last_step is not None and seen.step > track.last_step:
        _see_interval(track.model, at_s - track.last_s)
    return Pace(seen.step, at_s, seconds, unit, seen.where)


def _see_interval(model: ArCusum, interval_s: float) -> None:
    if interval_s > 0 and (not model.interval_s or interval_s < 2.5 * model.interval_s):
        model.interval_s = interval_s if not model.interval_s else 0.95 * model.interval_s + 0.05 * interval_s


def _anomaly(
    attempt: AttemptId, pace: Pace, onset_s: float, text: str, score: float, threshold: float, baseline: float,
    detail: Mapping[str, Any],
) -> Anomaly:  # fmt: skip
    plain = {k: round(v, 4) if isinstance(v, float) else v for k, v in detail.items()}
    return Anomaly(
        attempt=attempt, kind=AnomalyKind.SLOWDOWN, detector="slowdown", scope="job",
        onset_at=datetime.fromtimestamp(min(onset_s, pace.at_s), tz=UTC),
        detected_at=datetime.fromtimestamp(pace.at_s, tz=UTC), score=score, threshold=threshold, baseline=baseline,
        evidence=() if pace.where is None else (pace.where,), summary=text,
        detail={**plain, "unit": pace.unit, "is_normalised": pace.unit != "steps", "step": pace.step},
    )  # fmt: skip
