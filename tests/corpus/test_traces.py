# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Real traces and real runs: the straggler detector names the slowed rank where there is one, else nobody."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd
import pytest

from detectors.slowdown import SlowdownDetector
from detectors.straggler import StragglerDetector
from relight.testing.detector import NOON, run
from relight.types import Anomaly, AttemptId, Observation, Rank, StepBatch, StepTiming

SHARED = Path(__file__).parents[3] / "shared"
TRACES = SHARED / "data" / "straggler_analysis"
WORKERS = SHARED / "data" / "alibaba_minibatch"
RUNS = SHARED / "logs"
JOB = AttemptId("job")
LOCAL = (
    sorted(p.parent for p in RUNS.glob("*/*/times") if '"pre"' in (p / "steps-rank0.jsonl").read_text())
    if RUNS.exists()
    else []
)
HEALTHY = sorted(p.parent for p in RUNS.glob("healthy/*/times"))
LASTING = [
    p for p in [*LOCAL, *sorted(p.parent for p in RUNS.glob("straggler/*const*/times"))] if p.parent.name == "straggler"
]
UNKNOWING = sorted(p.parent for p in RUNS.glob("straggler/*/times") if p.parent not in LOCAL)

needs_traces = pytest.mark.skipif(
    not TRACES.exists(), reason="the public traces are not beside the project: real step times are NOT tested"
)
needs_runs = pytest.mark.skipif(
    not LOCAL, reason="the recorded runs are not beside the project: real slow ranks are NOT tested"
)


def ranks_of(said: list[Anomaly]) -> set[int]:
    return {rank for a in said if a.scope in ("rank", "node") for rank in a.detail["ranks"]}


def trace(name: str) -> list[Observation]:
    """Forward and backward compute of each rank and step; the wall time from its first operation to its last."""
    ops = pd.read_parquet(TRACES / f"trace-{name}.parquet")
    keys = [ops["step"], ops["rank"]]
    computed = (
        ops["duration"]
        .where(ops["optype"].isin(["forward-compute", "backward-compute"]), 0)
        .groupby(keys)
        .sum()
        .unstack()
    )
    wall = (ops["start_ts"] + ops["duration"]).groupby(keys).max().unstack() - ops["start_ts"].groupby(
        keys
    ).min().unstack()
    stages = ops.groupby("rank")["stage"].first().reindex(computed.columns).tolist()
    at, made = NOON, []
    for step in computed.index:
        at += timedelta(seconds=float(wall.loc[step].max()))
        made.append(
            StepBatch(
                attempt=JOB, at=at, step=int(step), ranks=tuple(int(r) for r in computed.columns), stages=stages,
                step_s=wall.loc[step].tolist(), compute_s=computed.loc[step].tolist(),
            )
        )  # fmt: skip
    return list(made)


@needs_traces
@pytest.mark.parametrize(("name", "culprits"), [("AR", {0}), ("SE", set()), ("ST", set())])
def test_a_real_trace_names_exactly_the_slowed_rank(name: str, culprits: set[int]) -> None:
    said = run(StragglerDetector(), trace(name))
    assert ranks_of(said) == culprits
    assert {a.node for a in said} <= {None}


@needs_traces
def test_the_heavy_last_stage_is_reported_as_an_imbalance() -> None:
    assert [a.detail["stage"] for a in run(StragglerDetector(), trace("ST")) if a.scope == "stage"] == [3]


@needs_traces
def test_workers_of_uneven_speed_without_an_onset_raise_no_alarm() -> None:
    table = pd.read_csv(WORKERS / "job_2_norm.csv").pivot_table(
        index="time", columns="worker", values="batch_time_norm"
    )
    stream = [
        StepBatch(
            attempt=JOB, at=NOON + timedelta(seconds=10 * i), step=i, ranks=tuple(range(len(row))),
            step_s=[1.0] * len(row), compute_s=(row / 1000).tolist(),
        )
        for i, row in enumerate(table.to_numpy(dtype=float))
    ]  # fmt: skip
    assert run(StragglerDetector(), stream) == []


def timings(folder: Path) -> list[StepTiming]:
    rows = [
        json.loads(line)
        for file in sorted((folder / "times").glob("*.jsonl"))
        for line in file.read_text().splitlines()
    ]
    return [
        StepTiming(
            attempt=JOB, at=datetime.fromtimestamp(row["t"], tz=UTC), rank=Rank(row["rank"]), step=row["step"],
            step_s=row["total"], compute_s=row.get("pre"),
        )
        for row in sorted(rows, key=lambda row: row["t"])
        if row["event"] == "step"
    ]  # fmt: skip


@needs_runs
@pytest.mark.parametrize("folder", LOCAL, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_real_run_names_the_slow_rank_from_its_local_time_or_nobody(folder: Path) -> None:
    truth = json.loads((folder / "truth.json").read_text())
    said = run(StragglerDetector(), timings(folder))
    assert ranks_of(said) == ({truth["culprit"]["rank"]} if truth["label"] == "straggler" else set())


@needs_runs
@pytest.mark.parametrize("folder", UNKNOWING, ids=lambda p: p.name)
def test_without_local_time_a_real_run_accuses_nobody(folder: Path) -> None:
    assert run(StragglerDetector(), timings(folder)) == []
    said = run(SlowdownDetector(), timings(folder))
    assert {(a.scope, a.rank, a.node) for a in said} <= {("job", None, None)}


@needs_runs
@pytest.mark.parametrize("folder", LASTING, ids=lambda p: p.name)
def test_lasting_slowness_of_a_rank_is_a_slowdown_of_the_job(folder: Path) -> None:
    said = run(SlowdownDetector(), timings(folder))
    assert said
    assert said[0].detail["ratio"] > 1.2


@needs_runs
@pytest.mark.parametrize("folder", HEALTHY, ids=lambda p: p.name)
def test_a_healthy_run_on_a_loaded_machine_is_no_slowdown(folder: Path) -> None:
    assert run(SlowdownDetector(), timings(folder)) == []
