# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rows about a job as a whole: throughput drops from rank 0's lines, and losses that go wrong."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from river import drift

from benchmarks.detection_jobs import ATTEMPT, LOSS_FAULTS, NOON, LineJob, line_job, losses
from benchmarks.detection_table import Row, Scale, median, on_both_cores, row, shown
from detectors.divergence import DivergenceDetector
from detectors.slowdown import SlowdownDetector
from relight.types import StepProgress

LINE_HOURS = 12.0
ONSET = 4000


@dataclass(frozen=True)
class Drop:
    """What one job's lines led to: false alarms before the onset, and seconds from onset to alarm or None."""

    days: float
    false_alarms: int
    delay_s: float | None
    baseline_false: int
    baseline_delay_s: float | None


def judge_drop(case: tuple[int, float]) -> Drop:
    seed, factor = case
    job = line_job(seed, LINE_HOURS, factor=factor)
    detector = SlowdownDetector()
    onset_s = float(job.times_s[job.onset]) if factor > 1 else math.inf
    alarms = [(a.detected_at - NOON).total_seconds() for seen in job.observations() for a in detector.observe(seen)]
    theirs = ratio_alarms(job)
    days = min(onset_s, float(job.times_s[-1])) / 86400
    return Drop(days, *_before_and_after(alarms, onset_s), *_before_and_after(theirs, onset_s))


def _before_and_after(alarms: Sequence[float], onset_s: float) -> tuple[int, float | None]:
    after = [at - onset_s for at in alarms if at >= onset_s]
    return sum(at < onset_s for at in alarms), min(after, default=None)


def ratio_alarms(job: LineJob) -> list[float]:
    """The baseline: the mean pace of 5 minutes above 1.1 times that of the last hour, twice in a row."""
    paces = np.diff(job.times_s) / job.tokens[1:]
    alarms: list[float] = []
    window: deque[tuple[float, float]] = deque()
    next_s, hot = 3600.0, 0
    for at_s, pace in zip(job.times_s[1:].tolist(), paces.tolist(), strict=True):
        window.append((at_s, pace))
        while window[0][0] < at_s - 3600:
            window.popleft()
        if at_s < next_s:
            continue
        next_s = at_s + 300
        recent = [p for t, p in window if t > at_s - 300]
        is_hot = sum(recent) / len(recent) > 1.1 * sum(p for _, p in window) / len(window)
        hot = hot + 1 if is_hot else 0
        if hot == 2:
            alarms.append(at_s)
    return alarms


DROPS = {1.05: 600.0, 1.1: 240.0, 1.2: 150.0}


@row
def drops(scale: Scale) -> list[Row]:
    rows, everyone = [], on_both_cores(judge_drop, [(seed, 1.0) for seed in scale.seeds(80)])
    for factor, bar in DROPS.items():
        some = on_both_cores(judge_drop, [(seed, factor) for seed in scale.seeds(24)])
        everyone += some
        found = [d.delay_s for d in some if d.delay_s is not None]
        delay, theirs = median(found), [d.baseline_delay_s for d in some if d.baseline_delay_s is not None]
        percent = round(100 * (factor - 1))
        rows.append(
            Row(
                number=f"10.{percent}", metric=f"throughput drop {percent} %: recall, delay p50",
                measured=f"{len(found) / len(some):.2f}, {shown(delay, ' s')}", bar=f"<= {bar:.0f} s",
                is_met=delay is not None and delay <= bar and len(found) == len(some),
                baseline=f"5 min / 1 h > 1.1: recall {len(theirs) / len(some):.2f}, {shown(median(theirs), ' s')}",
                figures={f"throughput_drop_{percent}pct_p50_s": delay, f"throughput_drop_{percent}pct_recall": len(found) / len(some)},
            )
        )  # fmt: skip
    days = sum(d.days for d in everyone)
    rate = sum(d.false_alarms for d in everyone) / days
    rows.append(
        Row(
            number="10.30", metric=f"throughput false alarms per job-day ({days:.0f} days)", measured=shown(rate),
            bar="<= 0.05", is_met=rate <= 0.05,
            baseline=f"5 min / 1 h > 1.1: {sum(d.baseline_false for d in everyone) / days:.2f}",
            figures={"throughput_false_alarms_per_job_day": rate, "throughput_job_days": days},
        )
    )  # fmt: skip
    return rows


# ------------------------------------------------------------------ losses

BARS = {
    "nan": (0, "0"),
    "spike_1": (3, "<= 3"),
    "spike_0.3": (10, "<= 10"),
    "divergence": (80, "<= 80"),
    "level_0.3": (10, "<= 10"),
}
MUST_FIND = {"nan": 1.0, "spike_1": 1.0, "divergence": 1.0, "spike_0.3": 0.7, "level_0.3": 0.9}


@dataclass(frozen=True)
class Told:
    false_alarms: int
    delay_steps: int | None
    baseline_false: int
    baseline_delay: int | None


def judge_loss(case: tuple[int, str]) -> Told:
    seed, fault = case
    values = losses(seed, fault, onset=ONSET)
    detector = DivergenceDetector()
    alarms: list[int] = []
    make_adwin: Any = drift.ADWIN
    adwin = make_adwin()
    theirs: list[int] = []
    for step, value in enumerate(values.tolist()):
        seen = StepProgress(attempt=ATTEMPT, at=NOON, step=step, loss=value)
        alarms += [step for _ in detector.observe(seen)]
        if math.isfinite(value):
            adwin.update(value)
            theirs += [step] if adwin.drift_detected else []
    onset = ONSET if fault != "none" else len(values)
    after, theirs_after = [s - onset for s in alarms if s >= onset], [s - onset for s in theirs if s >= onset]
    return Told(
        sum(s < onset for s in alarms), min(after, default=None),
        sum(s < onset for s in theirs), min(theirs_after, default=None),
    )  # fmt: skip


@row
def losses_gone_wrong(scale: Scale) -> list[Row]:
    rows, false, theirs_false, steps = [], 0, 0, 0
    for number, fault in enumerate(LOSS_FAULTS):
        some = on_both_cores(judge_loss, [(seed, fault) for seed in scale.seeds(20)])
        false, theirs_false = (
            false + sum(t.false_alarms for t in some),
            theirs_false + sum(t.baseline_false for t in some),
        )
        steps += len(some) * (6000 if fault == "none" else ONSET)
        if fault == "none":
            continue
        found = [t.delay_steps for t in some if t.delay_steps is not None]
        delay, share = median(found), len(found) / len(some)
        theirs = median([t.baseline_delay for t in some if t.baseline_delay is not None])
        name = fault.replace(".", "_")
        rows.append(
            Row(
                number=f"11.{number}", metric=f"loss: {fault.replace('_', ' +')}: recall, steps",
                measured=f"{share:.2f}, {shown(delay)}", bar=f"{BARS[fault][1]} steps",
                is_met=delay is not None and delay <= BARS[fault][0] and share >= MUST_FIND[fault],
                baseline=f"ADWIN on the loss: {shown(theirs)} steps",
                figures={f"loss_{name}_p50_steps": delay, f"loss_{name}_recall": share},
            )
        )  # fmt: skip
    rate = 1e4 * false / steps
    rows.append(
        Row(
            number="11.9", metric="loss: false alarms per 10,000 steps", measured=shown(rate), bar="<= 0.3", is_met=rate <= 0.3,
            baseline=f"ADWIN on the loss: {1e4 * theirs_false / steps:.1f}", figures={"loss_false_alarms_per_10k_steps": rate},
        )
    )  # fmt: skip
    return rows
