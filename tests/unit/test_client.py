# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The reporter of a rank: what it says, what it drops, and that it never gets in the way."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from relight.client import Reporter, Settings, SettingsError
from relight.client.settings import settings_from
from relight.client.sinks import Receipt
from relight.client.step import Step
from service.api.signals import SignalAsk

PROJECT = Path(__file__).parents[2]


class Kept:
    """A sink that takes everything."""

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []

    def deliver(self, items: Sequence[str]) -> Receipt:
        self.items += map(json.loads, items)
        return Receipt()

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [item[kind] for item in self.items if kind in item]


class Stuck:
    """A sink like a service that accepts a connection and then never answers."""

    def __init__(self) -> None:
        self.free = threading.Event()

    def deliver(self, items: Sequence[str]) -> Receipt:
        self.free.wait(30)
        return Receipt()


def settings(**other: Any) -> Settings:
    given: dict[str, Any] = {
        "attempt": "a1",
        "rank": 0,
        "node": "n1",
        "url": "http://127.0.0.1:1",
        "timing_interval_s": 0,
        "flush_s": 60,
    }
    return Settings(**{**given, **other})


def test_a_step_is_reported_with_its_local_time_apart() -> None:
    kept = Kept()
    reporter = Reporter(settings(rank=3), kept)
    with reporter.step(7) as step, step.compute:
        pass
    reporter.close()
    (timing,) = kept.of("step_timing")
    assert (timing["rank"], timing["step"]) == (3, 7)
    assert 0 <= timing["compute_s"] <= timing["step_s"] < 5


def test_a_step_without_a_mark_has_no_local_time_rather_than_zero() -> None:
    kept = Kept()
    reporter = Reporter(settings(), kept)
    with reporter.step(1):
        pass
    reporter.close()
    assert "compute_s" not in kept.of("step_timing")[0]


def test_only_rank_0_speaks_of_the_progress_of_the_job() -> None:
    for rank, steps in ((0, [2]), (1, [])):
        kept = Kept()
        reporter = Reporter(settings(rank=rank), kept)
        for number in (1, 2):
            with reporter.step(number):
                pass
        reporter.close()
        assert [said["step"] for said in kept.of("progress")] == steps


def test_an_aborted_step_is_no_progress() -> None:
    kept = Kept()
    reporter = Reporter(settings(), kept)
    with pytest.raises(ZeroDivisionError), reporter.step(1):
        raise ZeroDivisionError
    reporter.close()
    assert kept.of("progress") == kept.of("step_timing") == []


def test_a_checkpoint_that_failed_is_begun_and_never_completed() -> None:
    kept = Kept()
    reporter = Reporter(settings(), kept)
    with reporter.checkpoint(50):
        pass
    with pytest.raises(OSError, match="full"), reporter.checkpoint(100):
        raise OSError("full")
    reporter.close()
    assert [(said["checkpoint_step"], said["kind"]) for said in kept.of("progress")] == [
        (50, "started"),
        (50, "completed"),
        (100, "started"),
    ]


def test_quick_steps_are_sent_as_their_mean_and_the_rest_at_the_end() -> None:
    kept = Kept()
    reporter = Reporter(settings(timing_interval_s=3_600), kept)
    for number in range(1, 101):
        with reporter.step(number):
            pass
    reporter.close()
    assert [said["step"] for said in kept.of("step_timing")] == [1, 100]


def test_everything_said_is_what_the_api_takes() -> None:
    kept = Kept()
    reporter = Reporter(settings(), kept)
    with reporter.step(1) as step, step.compute:
        pass
    with reporter.checkpoint(1):
        pass
    reporter.shape(global_batch_size=512, sequence_length=4096)
    reporter.shape(global_batch_size=512, sequence_length=4096)
    reporter.shape(global_batch_size=0, sequence_length=-1)
    reporter.throughput(tokens_per_s=1e5)
    reporter.throughput(samples_per_s=float("nan"))
    reporter.timing(2, float("inf"))
    reporter.timing(2, float("nan"), 1.0)
    reporter.timing(2, 1.0, float("nan"))
    reporter.timing(2, -1.0)
    reporter.heartbeat()
    reporter.close()
    known = TypeAdapter(SignalAsk)
    kinds = {known.validate_json(json.dumps(item)).kind for item in kept.items}
    assert kinds == {"progress", "step_timing", "heartbeat", "throughput", "shape"}
    assert kept.of("shape") == [{"global_batch_size": 512, "sequence_length": 4096}]
    assert [said["step"] for said in kept.of("step_timing")] == [1, 2]
    keys = [item["source_event_id"] for item in kept.items]
    assert len(set(keys)) == len(keys)


def test_a_stuck_service_costs_timings_and_neither_steps_nor_checkpoints() -> None:
    stuck = Stuck()
    reporter = Reporter(settings(queue=100, flush_s=0.001, close_s=0.01), stuck)
    with reporter.checkpoint(1):
        pass
    for number in range(5_000):
        with reporter.step(number):
            pass
    assert reporter.counts.dropped >= 5_000 - 100 - 1_000
    reporter.close()
    stuck.free.set()


def test_checkpoints_survive_a_flood_of_timings() -> None:
    kept = Kept()
    reporter = Reporter(settings(queue=10), kept)
    with reporter.checkpoint(1):
        pass
    for number in range(1_000):
        reporter.timing(number, 1.0)
    reporter.close()
    assert [said["checkpoint_step"] for said in kept.of("progress") if "checkpoint_step" in said] == [1, 1]


def test_a_rank_stuck_in_its_own_work_stops_beating_and_one_that_waits_does_not() -> None:
    step = Step(lambda *_: None)
    with step.at(1):
        step.collective()
    step.at(2).__enter__()
    assert not step.is_stalled(step.began + 59, stall_s=60)
    assert step.is_stalled(step.began + 61, stall_s=60)
    step.collective()
    assert not step.is_stalled(step.began + 1e6, stall_s=60)


def test_a_loop_that_marks_no_collectives_is_never_called_stuck() -> None:
    step = Step(lambda *_: None)
    with step.at(1):
        pass
    step.at(2).__enter__()
    assert not step.is_stalled(step.began + 1e6, stall_s=60)


def test_without_settings_nothing_is_said_and_nothing_breaks() -> None:
    reporter = Reporter(None)
    with reporter.step(1) as step, step.compute:
        pass
    with reporter.checkpoint(1):
        pass
    reporter.heartbeat()
    reporter.throughput(tokens_per_s=1)
    reporter.shape(global_batch_size=1)
    reporter.timing(1, 1.0)
    reporter.close()
    assert not reporter.is_on


def test_bad_settings_silence_the_reporter_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("RELIGHT_URL", "ftp://somewhere")
    monkeypatch.setenv("RELIGHT_ATTEMPT_ID", "a1")
    assert not Reporter.from_env().is_on
    assert "ftp://somewhere" in caplog.text


def test_a_rank_knows_itself_from_slurm_or_torchrun() -> None:
    slurm = settings_from(
        {"RELIGHT_URL": "http://h:1", "SLURM_PROCID": "5", "SLURM_JOB_ID": "77", "SLURM_RESTART_COUNT": "2",
         "SLURMD_NODENAME": "n9"}
    )  # fmt: skip
    assert slurm is not None
    assert (slurm.rank, slurm.attempt, slurm.node) == (5, "slurm:77:2", "n9")
    torchrun = settings_from({"RELIGHT_SIGNALS_FILE": "/x/s.ndjson", "RANK": "3", "RELIGHT_ATTEMPT_ID": "a"})
    assert torchrun is not None
    assert (torchrun.rank, torchrun.file) == (3, Path("/x/s.ndjson.rank3"))
    placed = settings_from({"RELIGHT_SIGNALS_FILE": "/x/{rank}.nd", "RANK": "3", "RELIGHT_ATTEMPT_ID": "a"})
    assert placed is not None
    assert placed.file == Path("/x/3.nd")
    assert settings_from({"RELIGHT_URL": "http://h:1", "RELIGHT_CLIENT": "off"}) is None
    assert settings_from({}) is None


@pytest.mark.parametrize(
    ("environ", "named"),
    [
        ({"RELIGHT_URL": "http://h"}, "RELIGHT_ATTEMPT_ID"),
        ({"RELIGHT_URL": "http://h", "RELIGHT_ATTEMPT_ID": "a b"}, "'a b'"),
        ({"RELIGHT_URL": "http://h", "RELIGHT_ATTEMPT_ID": "a", "RANK": "x"}, "'x'"),
        ({"RELIGHT_URL": "http://h", "RELIGHT_ATTEMPT_ID": "a", "RANK": "-1"}, "-1"),
        ({"RELIGHT_URL": "http://h", "RELIGHT_ATTEMPT_ID": "a", "RELIGHT_HEARTBEAT_S": "0"}, "heartbeat_s"),
        ({"RELIGHT_URL": "http://h", "RELIGHT_ATTEMPT_ID": "a", "RELIGHT_STALL_S": "nan"}, "stall_s"),
        ({"RELIGHT_URL": "http://h", "RELIGHT_SIGNALS_FILE": "/f", "RELIGHT_ATTEMPT_ID": "a"}, "not both"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(environ: dict[str, str], named: str) -> None:
    with pytest.raises(SettingsError, match=named):
        settings_from(environ)


FORKING = """
import os, sys
from relight.client import Reporter
reporter = Reporter.from_env()
with reporter.step(1):
    pass
child = os.fork()
if child == 0:
    assert not reporter.is_on
    with reporter.step(2):
        pass
    reporter.close()
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
with reporter.step(3):
    pass
"""


def test_a_forked_child_is_silent_and_its_parent_goes_on_and_flushes_at_exit(tmp_path: Path) -> None:
    environ = {
        "RELIGHT_SIGNALS_FILE": str(tmp_path / "s"), "RELIGHT_ATTEMPT_ID": "a1", "RELIGHT_TIMING_INTERVAL_S": "0",
        "PYTHONPATH": str(PROJECT),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKING], env=environ, timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = [json.loads(line) for line in (tmp_path / "s.rank0").read_text().splitlines()]
    assert [item["step_timing"]["step"] for item in said if "step_timing" in item] == [1, 3]
