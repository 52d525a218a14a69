# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Hangs in the first steps of a run, where nothing is learned yet: how soon they are found, and at what price.

Starts by seed, in virtual time: the set-up takes minutes, in one of four rank 0 builds an index meanwhile and misses
its heartbeats; the first steps compile, later ones now and then again, and a first evaluation may come unannounced.
16 ranks beat every 5 s. The job hangs after one of its first ten steps: a rank stopped, all stopped, or all wait for
each other and beat on. Healthy starts run for half an hour behind their first step.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import numpy as np

from benchmarks.detection_table import Row, Scale, on_both_cores, row
from detectors.hang import HangDetector
from relight.types import AttemptId, Heartbeat, JobShape, Observation, Rank, StepProgress, Tier, WorkloadId

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
RANKS, BEAT_S, TICK_S = 16, 5.0, 5.0
HEALTHY_S, PATIENCE_S = 1800.0, 3600.0
KINDS = ("one rank silent", "all silent", "all beat on", "all beat on, second attempt")
FIXED_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """When steps complete, and which ranks miss their heartbeats from when until when."""

    steps: tuple[float, ...]
    quiet: tuple[tuple[int, float, float], ...]


@dataclass(slots=True)
class Early:
    """Seconds from a hang to its confirmation by kind, and false alarms of healthy starts, ours and a fixed limit's."""

    found: dict[str, list[float]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    named: int = 0
    starts: int = 0
    false_alarms: int = 0
    fixed_alarms: int = 0


def start(seed: int) -> Start:
    draw = np.random.default_rng([seed, 23])
    step_s, began = float(np.exp(draw.uniform(np.log(1.0), np.log(30.0)))), float(draw.uniform(60.0, 900.0))
    quiet: list[tuple[int, float, float]] = []
    if draw.random() < 0.25:
        quiet.append((0, 0.3 * began, 0.3 * began + float(draw.uniform(0.1, 0.7)) * began))
    at, steps = began, [began]
    while at < began + HEALTHY_S:
        number = len(steps)
        gap = step_s * float(np.exp(draw.normal(0.0, 0.05)))
        if number == 1:
            gap += float(draw.uniform(5.0, 240.0))
        elif number <= 3:
            gap += float(draw.uniform(0.0, 60.0))
        elif number <= 10 and draw.random() < 0.03:
            gap += float(draw.uniform(20.0, 200.0))
        if number <= 10 and gap > 20.0 and draw.random() < 0.1:  # what compiles may not let its heartbeats through
            who = range(RANKS) if draw.random() < 0.3 else [int(draw.integers(RANKS))]
            quiet += [(rank, at, at + gap) for rank in who]
        if number <= 10 and draw.random() < 0.02:
            gap += float(draw.uniform(30.0, 400.0))  # a first evaluation
        at += gap
        steps.append(at)
    return Start(steps=tuple(steps), quiet=tuple(quiet))


def seen(one: Start, attempt: AttemptId, hang: tuple[str, float, int] | None, until_s: float) -> Iterator[Observation]:
    """What arrives, in order; `hang` is its kind, its time and the rank that stops."""
    kind, hung_at, culprit = hang or ("", float("inf"), -1)
    events: list[tuple[float, int, Observation]] = []
    for number, at in enumerate(one.steps, 1):
        if at < min(hung_at, until_s):
            step = StepProgress(attempt=attempt, at=EPOCH + timedelta(seconds=at), step=number)
            events.append((at, -1, step))
    for beat in np.arange(BEAT_S, until_s, BEAT_S):
        for rank in range(RANKS):
            is_stopped = beat >= hung_at and (kind == "all silent" or (kind == "one rank silent" and rank == culprit))
            if not is_stopped and not any(r == rank and a <= beat < b for r, a, b in one.quiet):
                at = float(beat) + 0.01 * rank
                moment = EPOCH + timedelta(seconds=at)
                events.append((at, rank, Heartbeat(attempt=attempt, at=moment, rank=Rank(rank))))
    yield from (event for _, _, event in sorted(events, key=lambda e: e[:2]))


def first_confirmed(
    detector: HangDetector, one: Start, attempt: AttemptId, hang: tuple[str, float, int] | None, until_s: float,
    offset_s: float = 0.0,
) -> tuple[float, tuple[int, ...]] | None:  # fmt: skip
    """When a hang is confirmed, and whom it names."""
    by = timedelta(seconds=offset_s)
    shape = JobShape(attempt=attempt, at=EPOCH + by, workload=WorkloadId("job"), world_size=RANKS)
    detector.observe(shape)
    arriving = seen(one, attempt, hang, until_s)
    waiting = next(arriving, None)
    for tick in np.arange(0.0, until_s, TICK_S):
        now = EPOCH + timedelta(seconds=float(tick))
        while waiting is not None and waiting.at is not None and waiting.at <= now:
            detector.observe(replace(waiting, at=waiting.at + by))
            waiting = next(arriving, None)
        for said in detector.overdue(now + by):
            if said.tier is Tier.CONFIRMED and said.attempt == attempt:
                return float(tick), tuple(said.detail["ranks"])
    return None


def one_seed(seed: int) -> Early:
    tally, one = Early(starts=1), start(seed)
    draw = np.random.default_rng([seed, 29])
    end = one.steps[0] + HEALTHY_S
    tally.false_alarms += first_confirmed(HangDetector(), one, AttemptId("a"), None, end) is not None
    gaps = np.diff(np.asarray(one.steps))
    tally.fixed_alarms += bool(gaps.max(initial=0.0) > FIXED_S)
    number, culprit = int(draw.integers(1, 10)), int(draw.integers(RANKS))
    hung_at = one.steps[number - 1] + 0.5
    for kind in KINDS:
        detector, offset_s = HangDetector(), 0.0
        if kind.endswith("second attempt"):
            before = start(seed + 100_000)
            offset_s = before.steps[0] + HEALTHY_S
            first_confirmed(detector, before, AttemptId("before"), None, offset_s)
        hang = (kind, hung_at, culprit)
        found = first_confirmed(detector, one, AttemptId("a"), hang, hung_at + PATIENCE_S, offset_s)
        tally.found[kind].append(float("inf") if found is None else found[0] - hung_at)
        tally.named += kind == "one rank silent" and found is not None and found[1] == (culprit,)
    return tally


def measured(seeds: list[int]) -> Early:
    whole = Early()
    for part in on_both_cores(one_seed, seeds):
        whole.starts, whole.named = whole.starts + part.starts, whole.named + part.named
        whole.false_alarms += part.false_alarms
        whole.fixed_alarms += part.fixed_alarms
        for kind, delays in part.found.items():
            whole.found[kind] += delays
    return whole


@row
def early_hangs(scale: Scale) -> list[Row]:
    whole = measured(list(scale.seeds(60)))
    one, silent, beat, again = (statistics.median(whole.found[kind]) for kind in KINDS)
    share, named = whole.false_alarms / whole.starts, whole.named / whole.starts
    figures = {
        "early_hang_one_rank_silent_p50_s": one, "early_hang_all_silent_p50_s": silent,
        "early_hang_all_beat_p50_s": beat, "early_hang_second_attempt_p50_s": again,
        "early_hang_false_alarms_per_start": share, "early_hang_rank_named": named,
    }  # fmt: skip
    return [
        Row(
            number="2.1", metric="hang in the first 10 steps, one rank silent: p50, named", bar="<= 300 s, >= 0.9",
            measured=f"{one:.0f} s, {named:.2f}", is_met=one <= 300 and named >= 0.9, figures=figures,
            baseline="time alone at warm-up: 1800 s",
        ),
        Row(
            number="2.2", metric="the same, all silent / all beat on / in a second attempt: p50",
            measured=f"{silent:.0f} / {beat:.0f} / {again:.0f} s", bar="<= 900 / 1800 / 900 s",
            is_met=silent <= 900 and beat <= 1800 and again <= 900, baseline="time alone at warm-up: 1800 s",
        ),
        Row(
            number="2.3", metric=f"false alarms per healthy start ({whole.starts} starts)", measured=f"{share:.3g}",
            bar="<= 0.02", is_met=share <= 0.02,
            baseline=f"fixed {FIXED_S:.0f} s: {whole.fixed_alarms / whole.starts:.3g}",
        ),
    ]  # fmt: skip
