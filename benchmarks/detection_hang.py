# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How fast hangs are found and how often a healthy job is called hung, beside fixed and learned timeouts.

Jobs of 24 virtual hours from `benchmarks.fleet`; each ends in a hang, one in five inside a pause. Lines reach the
detector up to 3 s late and by polls of 2.5 s. A false alarm costs 1500 s (a restart); once its pause has ended by itself, a new attempt begins.
The last line of output is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Protocol

import numpy as np

from benchmarks.detection_table import on_both_cores
from benchmarks.fleet import DAY_S, FIRST_TEST_SEED, Event, Job, What, plan
from detectors.hang import HangDetector
from relight.ports import HangProbe, ProbeReading, ProbeSays
from relight.types import AttemptId, Phase, StepProgress, Tier

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
POLL_S, LATENCY_S, TICK_S = 2.5, 3.0, 5.0
FALSE_ALARM_S = 1500.0
RANKS = 16
_PATIENCE_S = 4 * 3600.0
_PHASES = {
    What.CHECKPOINT_BEGUN: (Phase.CHECKPOINT, False),
    What.CHECKPOINT_COMPLETED: (Phase.CHECKPOINT, True),
    What.EVALUATION: (Phase.EVALUATION, True),
}


class Timer(Protocol):
    """A hang detector as the benchmark drives it: seconds in, `suspect`, `hang` or nothing out."""

    def saw(self, at_s: float, event: Event) -> None: ...
    def tick(self, at_s: float) -> Sequence[str]: ...
    def restart(self) -> None: ...


class Ours:
    """`HangDetector`, with or without phase markers and probes."""

    def __init__(self, *, has_markers: bool = True, probes: Sequence[HangProbe] = ()) -> None:
        self._detector = HangDetector(probes=probes)
        self._has_markers = has_markers
        self._number = 0

    @property
    def _attempt(self) -> AttemptId:
        return AttemptId(f"job.{self._number}")

    def saw(self, at_s: float, event: Event) -> None:
        at = EPOCH + timedelta(seconds=at_s)
        if event.what is What.STEP:
            self._detector.observe(StepProgress(attempt=self._attempt, at=at, step=event.step))
        elif self._has_markers and event.what in _PHASES:
            phase, is_completed = _PHASES[event.what]
            self._detector.observe(StepProgress(attempt=self._attempt, at=at, phase=phase, is_completed=is_completed))

    def tick(self, at_s: float) -> Sequence[str]:
        found = self._detector.overdue(EPOCH + timedelta(seconds=at_s))
        return ["hang" if a.tier is Tier.CONFIRMED else "suspect" for a in found]

    def restart(self) -> None:
        before = self._attempt
        self._number += 1
        self._detector.follow(self._attempt, before)
        self._detector.forget(before)


class Fixed:
    """One timeout for everything, as watchdogs ship it."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s, self._last = timeout_s, 0.0

    def saw(self, at_s: float, event: Event) -> None:
        if event.what is What.STEP:
            self._last = at_s

    def tick(self, at_s: float) -> Sequence[str]:
        return ["hang"] if self._last > 0.0 and at_s - self._last > self._timeout_s else []

    def restart(self) -> None:
        self._last = 0.0


class LongestTimesFive(Fixed):
    """The longest gap of the first hour, times five."""

    def __init__(self) -> None:
        super().__init__(1800.0)
        self._began, self._longest = -1.0, 0.0

    def saw(self, at_s: float, event: Event) -> None:
        if event.what is not What.STEP:
            return
        if self._began < 0.0:
            self._began = at_s
        elif at_s - self._began < 3600.0:
            self._longest = max(self._longest, at_s - self._last)
        else:
            self._timeout_s = 5.0 * self._longest
        self._last = at_s


class ImperfectProbe:
    """Agrees with 95 % of hangs and 2 % of pauses, 15 s after it is first asked about one."""

    name = "simulated"

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng([seed, 13])
        self.hung_at = float("inf")
        self._asked: float | None = None
        self._last = 0.0
        self._answer = ProbeSays.UNKNOWN

    def read(self, attempt: AttemptId, now: datetime) -> ProbeReading:  # noqa: ARG002 -- one job only
        at = (now - EPOCH).total_seconds()
        if self._asked is None or at - self._last > 2 * TICK_S:
            self._asked = at
            agrees = self._draw.random() < (0.95 if at >= self.hung_at else 0.02)
            self._answer = ProbeSays.HUNG if agrees else ProbeSays.UNKNOWN
        self._last = at
        is_done = at - self._asked >= 15.0
        return ProbeReading(probe=self.name, says=self._answer if is_done else ProbeSays.UNKNOWN)


@dataclass(slots=True)
class Tally:
    days: float = 0.0
    false_alarms: int = 0
    false_suspects: int = 0
    confirm_s: list[float] = field(default_factory=list)
    suspect_s: list[float] = field(default_factory=list)
    missed: int = 0

    def add(self, other: Tally) -> None:
        self.days += other.days
        self.false_alarms += other.false_alarms
        self.false_suspects += other.false_suspects
        self.confirm_s += other.confirm_s
        self.suspect_s += other.suspect_s
        self.missed += other.missed

    def figures(self) -> dict[str, float]:
        confirm = self.confirm_s or [float("nan")]
        suspect = self.suspect_s or [float("nan")]
        false_a_day = self.false_alarms / max(self.days, 1e-9)
        return {
            "false_alarms_per_job_day": round(false_a_day, 3),
            "suspects_per_job_day": round(self.false_suspects / max(self.days, 1e-9), 2),
            "suspect_p50_s": round(statistics.median(suspect), 0),
            "confirm_p50_s": round(statistics.median(confirm), 0),
            "confirm_p90_s": round(float(np.quantile(confirm, 0.9)), 0),
            "lost_s_per_job_day": round(FALSE_ALARM_S * false_a_day + 0.5 * statistics.mean(confirm), 0),
            "missed": float(self.missed),
        }


def received(events: Iterator[Event], seed: int) -> list[tuple[float, Event]]:
    """When each event's line reaches the detector; lines of one file keep their order."""
    draw = np.random.default_rng([seed, 17])
    out: list[tuple[float, Event]] = []
    last = 0.0
    for event in events:
        last = max(last, POLL_S * float(np.ceil((event.at_s + draw.uniform(0.0, LATENCY_S)) / POLL_S)))
        out.append((last, event))
    return out


def run(timer: Timer, seed: int, tally: Tally, *, probe: ImperfectProbe | None = None) -> None:
    """One job-day and the hang that ends it."""
    draw = np.random.default_rng([seed, 19])
    hang_at = DAY_S * float(draw.uniform(0.85, 0.999))
    job = Job(plan(seed, ranks=RANKS))
    events = job.events(DAY_S, hang_at_s=hang_at, hangs_in_pause=bool(draw.random() < 0.2))
    lines = received(events, seed)
    hung_at = next((e.at_s for _, e in lines if e.what is What.HANG), float("inf"))
    if probe is not None:
        probe.hung_at = hung_at
    tally.days += min(hung_at, DAY_S) / DAY_S
    tick, index, has_suspect, is_restarting = 0.0, 0, False, False
    end = hung_at + _PATIENCE_S if hung_at < float("inf") else DAY_S
    while tick < end:
        tick += TICK_S
        while index < len(lines) and lines[index][0] <= tick:
            timer.saw(lines[index][0], lines[index][1])
            if is_restarting and lines[index][1].what is What.STEP:
                timer.restart()
                is_restarting = False
            index += 1
        for said in timer.tick(tick):
            is_true = tick >= hung_at
            if said == "suspect":
                tally.false_suspects += not is_true
                if is_true and not has_suspect:
                    has_suspect = True
                    tally.suspect_s.append(tick - hung_at)
            elif is_restarting:
                continue
            elif is_true:
                tally.confirm_s.append(tick - hung_at)
                return
            else:
                tally.false_alarms += 1
                is_restarting = True
    tally.missed += hung_at < float("inf")


MAKERS: dict[str, Callable[[], Timer]] = {
    "relight, phase markers": Ours,
    "relight, rank-0 steps only": lambda: Ours(has_markers=False),
    "relight, markers and probe": Ours,
    "fixed 600 s": lambda: Fixed(600.0),
    "fixed 1800 s": lambda: Fixed(1800.0),
    "longest of 1 h x 5": LongestTimesFive,
}


def tallied(task: tuple[str, int]) -> tuple[str, Tally]:
    """One job of one detector."""
    name, seed = task
    tally = Tally()
    if name == "relight, markers and probe":
        probe = ImperfectProbe(seed)
        run(Ours(probes=[probe]), seed, tally, probe=probe)
    else:
        run(MAKERS[name](), seed, tally)
    return name, tally


def measured(seeds: Sequence[int]) -> dict[str, dict[str, float]]:
    """All rows over the given seeds."""
    tallies = {name: Tally() for name in MAKERS}
    for name, part in on_both_cores(tallied, [(name, seed) for name in MAKERS for seed in seeds]):
        tallies[name].add(part)
    return {name: tally.figures() for name, tally in tallies.items()}


def figures(rows: dict[str, dict[str, float]]) -> dict[str, float]:
    """The rows by the names that `benchmarks.detection` prints."""
    ours, lines = rows["relight, phase markers"], rows["relight, rank-0 steps only"]
    probed = rows["relight, markers and probe"]
    return {
        "hang_false_alarms_per_job_day": ours["false_alarms_per_job_day"],
        "hang_false_alarms_per_job_day_rank0": lines["false_alarms_per_job_day"],
        "hang_suspect_p50_s": ours["suspect_p50_s"],
        "hang_suspects_per_job_day": ours["suspects_per_job_day"],
        "hang_confirm_p50_s": ours["confirm_p50_s"],
        "hang_confirm_p90_s": ours["confirm_p90_s"],
        "hang_confirm_p50_s_rank0": lines["confirm_p50_s"],
        "hang_confirm_p50_s_with_probe": probed["confirm_p50_s"],
        "hang_lost_s_per_job_day": ours["lost_s_per_job_day"],
        "hang_lost_ratio_to_fixed_600_s": round(
            ours["lost_s_per_job_day"] / max(1.0, rows["fixed 600 s"]["lost_s_per_job_day"]), 2
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=48, help="job-days a row")
    parser.add_argument("--first-seed", type=int, default=FIRST_TEST_SEED)
    asked = parser.parse_args()
    rows = measured(range(asked.first_seed, asked.first_seed + asked.jobs))
    for name, one in rows.items():
        print(f"{name:<28} " + "  ".join(f"{key} {value:g}" for key, value in one.items()))
    print(json.dumps({"benchmark": "detection_hang", "jobs": asked.jobs, **figures(rows)}))


if __name__ == "__main__":
    main()
