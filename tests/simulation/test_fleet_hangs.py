# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Hangs in a simulated fleet, and in recorded runs of a real job under a real scheduler."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.detection_hang import Ours, Tally, run
from benchmarks.fleet import FIRST_TEST_SEED, Fault, FaultKind, Job, What, plan
from detectors.hang import HangDetector
from detectors.rank_signs import RankSigns
from relight.types import Anomaly, AttemptId, Heartbeat, Rank, Scope, StepTiming, Tier

RUNS = Path(__file__).parents[3] / "shared" / "logs"
JOB = AttemptId("job.0")
recorded = pytest.mark.skipif(
    not RUNS.is_dir(), reason=f"the recorded runs are not beside the project ({RUNS.name} missing): NOT tested"
)


def test_hangs_of_unseen_seeds_are_confirmed_and_false_alarms_stay_rare() -> None:
    tally = Tally()
    for seed in range(FIRST_TEST_SEED, FIRST_TEST_SEED + 6):
        run(Ours(), seed, tally)
    found = tally.figures()
    assert found["missed"] == 0
    assert tally.false_alarms <= 1
    assert found["suspect_p50_s"] <= 100
    assert found["confirm_p50_s"] <= 420


def test_the_same_seed_is_the_same_job() -> None:
    def first(count: int) -> list[tuple[float, str, int]]:
        events = Job(plan(101, ranks=32)).events()
        return [(e.at_s, e.what, e.step) for e, _ in zip(events, range(count), strict=False)]

    assert first(500) == first(500)


@pytest.mark.parametrize(("is_variable", "sigma"), [(False, 0.004), (True, 0.11)])
def test_the_noise_is_that_of_the_measured_traces(is_variable: bool, sigma: float) -> None:
    steps = [e.compute for e in Job(plan(102, ranks=256, is_variable=is_variable)).events() if e.compute is not None]
    logs = np.log(np.array(steps[50:350]))
    residual = logs - np.median(logs, axis=0)
    residual -= np.median(residual, axis=1, keepdims=True)
    spread = 1.4826 * np.median(np.abs(residual))
    assert 0.7 * sigma < spread < 1.3 * sigma


def test_a_slow_rank_slows_its_own_work_and_the_whole_job() -> None:
    fault = Fault(kind=FaultKind.SLOW_RANK, at_s=10_000.0, factor=1.3, rank=63)
    events = [e for e in Job(plan(103, is_variable=False, faults=(fault,))).events(20_000.0) if e.what is What.STEP]
    before = [e for e in events if 5_000 < e.at_s < 10_000]
    after = [e for e in events if e.at_s > 10_100]
    own = [
        np.mean([e.compute[63] / np.median(e.compute[48:]) for e in part if e.compute is not None])
        for part in (before, after)
    ]
    assert 1.25 < own[1] / own[0] < 1.35
    assert np.mean([e.wall_s for e in after]) > 1.1 * np.mean([e.wall_s for e in before])


def test_ten_thousand_ranks_need_few_bytes_each() -> None:
    signs = RankSigns()
    signs.stepped(np.arange(10_000), 1, 1.0)
    assert signs.nbytes / 10_000 <= 64


# ------------------------------------------------------------------ recorded runs


def timings(folder: Path) -> list[StepTiming]:
    found = []
    for path in sorted(folder.glob("times/*.jsonl")):
        for text in path.read_text().splitlines():
            said = json.loads(text)
            if said.get("event") == "step":
                at = datetime.fromtimestamp(said["t"], UTC)
                found.append(
                    StepTiming(attempt=JOB, at=at, rank=Rank(said["rank"]), step=said["step"], step_s=said["total"])
                )
    return sorted(found, key=lambda seen: seen.at)


def replayed(seen: Sequence[StepTiming | Heartbeat], until: datetime) -> list[Anomaly]:
    """Ticks of two seconds; observations arrive when they were made."""
    detector, found, index = HangDetector(), list[Anomaly](), 0
    now = seen[0].at
    while now < until:
        while index < len(seen) and seen[index].at <= now:
            found += detector.observe(seen[index])
            index += 1
        found += detector.overdue(now)
        now += timedelta(seconds=2)
    return found


def truth(folder: Path) -> tuple[dict[str, Any], datetime]:
    said = json.loads((folder / "truth.json").read_text())
    return said, datetime.fromtimestamp(said["events"][-1]["t"], UTC)


def heartbeats(timings_: list[StepTiming], until: datetime, stopped: int, stopped_at: datetime) -> Iterator[Heartbeat]:
    """What `relight.client` would have sent: each rank every second, but none of a stopped process."""
    at = timings_[0].at
    while at < until:
        for rank in sorted({t.rank for t in timings_}):
            if rank != stopped or at < stopped_at:
                yield Heartbeat(attempt=JOB, at=at, rank=rank)
        at += timedelta(seconds=1)


@recorded
@pytest.mark.parametrize("kind", ["healthy", "straggler", "numeric"])
def test_recorded_runs_that_did_not_hang_raise_nothing(kind: str) -> None:
    for folder in sorted((RUNS / kind).iterdir()):
        seen = timings(folder)
        assert replayed(seen, truth(folder)[1]) == [], folder.name


@recorded
def test_a_recorded_stopped_rank_is_suspected_and_unnamed_by_equal_steps_alone() -> None:
    folder = RUNS / "sigstop" / "rank2-silent"
    found = replayed(timings(folder), truth(folder)[1])
    assert [(a.tier, a.scope) for a in found] == [(Tier.SUSPECT, Scope.JOB)]
    assert "culprit unknown" in found[0].summary


@recorded
def test_a_recorded_stopped_rank_is_confirmed_and_named_by_heartbeats() -> None:
    folder = RUNS / "sigstop" / "rank2-silent"
    said, until = truth(folder)
    seen = timings(folder)
    stopped_at = datetime.fromtimestamp(next(e["t"] for e in said["events"] if "SIGSTOP" in e["what"]), UTC)
    both: list[StepTiming | Heartbeat] = [*seen, *heartbeats(seen, until, 2, stopped_at)]
    both.sort(key=lambda one: one.at)
    confirmed = [a for a in replayed(both, until) if a.tier is Tier.CONFIRMED]
    assert [a.rank for a in confirmed] == [2]
    assert confirmed[0].detected_at - stopped_at < timedelta(seconds=45)


@recorded
def test_a_recorded_stop_that_ended_by_itself_is_no_hang() -> None:
    folder = RUNS / "sigstop" / "rank0-stop-then-cont"
    assert replayed(timings(folder), truth(folder)[1]) == []
