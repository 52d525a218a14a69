# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a recovery cost, and rounds that go on whatever one of them meets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from controllers.slurm.ledger import entry, exposition
from controllers.slurm.rounds import Lock, Taken, run_rounds
from controllers.slurm.store import StoreUnusable


def at(second: int) -> str:
    return f"2026-11-02T12:{second // 60:02d}:{second % 60:02d}+00:00"


WHOLE: dict[str, Any] = {
    "attempt": "a", "disposition": "CONVERGED",
    "times": {"ended": at(0), "detected": at(2), "decided": at(3), "requeue_hold": at(3), "release": at(7),
              "executed": at(7), "restarted": at(9), "resumed": at(100)},
}  # fmt: skip


def test_every_part_of_a_recovery_is_told_apart() -> None:
    found = entry(WHOLE, gpus=36)
    assert found.seconds == {"detect": 2, "decide": 1, "act": 4, "hold": 4, "queue": 2, "resume": 91}
    assert found.lost_gpu_hours == pytest.approx(1.0)


def test_what_did_not_happen_is_left_out_and_not_counted_as_nothing() -> None:
    found = entry({"attempt": "a", "disposition": "ABANDONED", "times": {"ended": at(0), "detected": at(2)}}, gpus=8)
    assert found.seconds == {"detect": 2}
    assert found.lost_gpu_hours is None
    assert entry(WHOLE, gpus=None).lost_gpu_hours is None


def test_the_metrics_can_be_read_by_prometheus() -> None:
    text = exposition([entry(WHOLE, gpus=36), entry(WHOLE, gpus=None)], is_blind=True, is_advised=False, holds=2)
    samples = {
        (one.name, *one.labels.values()): one.value
        for family in text_string_to_metric_families(text)
        for one in family.samples
    }
    assert samples["relight_controller_blind",] == 1
    assert samples["relight_recoveries_total", "CONVERGED"] == 2
    assert samples["relight_recovery_seconds_sum", "resume"] == 182


@dataclass
class Said:
    why: str


def test_a_round_that_fails_does_not_end_the_next_and_is_told_once() -> None:
    story: list[Said | Exception] = [
        Said(""),
        StoreUnusable("disk full"),
        StoreUnusable("disk full"),
        Said(""),
        Said("blind"),
    ]
    told: list[str] = []

    def tick() -> Said:
        now = story.pop(0)
        if isinstance(now, Exception):
            raise now
        return now

    last = run_rounds(tick, lambda _: not story, 5, told.append)
    assert last is not None
    assert last.why == "blind"
    assert told == ["StoreUnusable: disk full", "well again", "blind"]


def test_a_second_controller_on_the_same_folder_refuses_to_start(tmp_path: Path) -> None:
    first = Lock(tmp_path / "lock")
    with pytest.raises(Taken, match="another process"):
        Lock(tmp_path / "lock")
    first.release()
    Lock(tmp_path / "lock").release()
