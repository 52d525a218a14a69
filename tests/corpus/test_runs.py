# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Real Slurm runs with injected faults: the failure, its class, and the rank and node that caused it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.adapters.log_files import read_folder
from service.diagnosis import Diagnosis, Diagnostician

RUNS = Path(__file__).parents[3] / "shared" / "logs"
AT = datetime(2026, 11, 29, tzinfo=UTC)
FOLDERS = sorted(p.parent for p in RUNS.glob("*/*/truth.json"))

# What the injected fault is called in the taxonomy, as far as the logs can tell, and actions that do no harm.
EXPECTED: dict[str, tuple[set[str], set[str]]] = {
    "healthy": ({"none"}, {"continue"}),
    "transient_hang": ({"none", "throughput_drop"}, {"continue"}),
    "straggler": ({"none", "throughput_drop"}, {"continue"}),
    "checkpoint_corrupt": ({"checkpoint_corrupt", "checkpoint_shape_mismatch"}, {"restart", "stop"}),
    "disk_full": ({"disk_full"}, {"restart", "restart_excluding"}),
    "preempted": ({"preempted"}, {"continue"}),
    "graceful_stop": ({"user_cancelled"}, {"stop", "continue"}),
    "cancelled": ({"user_cancelled"}, {"stop", "continue"}),
    "time_limit": ({"time_limit"}, {"restart", "continue"}),
    "start_failure_all": ({"python_exception"}, {"stop"}),
    "start_failure_one_node": ({"input_missing"}, {"stop", "restart", "restart_excluding"}),
    "exception_data": ({"python_exception"}, {"stop", "restart"}),
    "process_exit": ({"cause_not_in_log"}, {"restart"}),
    "hang_software": ({"nccl_collective_timeout"}, {"restart"}),
    "hang": ({"nccl_collective_timeout", "silent_hang"}, {"restart", "stop"}),
    "node_failure": ({"node_failure"}, {"restart_excluding"}),
    "slurmd_failure": ({"node_failure"}, {"restart_excluding"}),
    "node_hang": ({"node_failure"}, {"restart_excluding"}),
    "nan_loss": ({"nan_gradient"}, {"restart"}),
    "oom_slurm_limit": ({"host_oom_killed"}, {"stop"}),
    "oom_kernel": ({"host_oom_killed"}, {"stop"}),
    "process_killed": ({"killed_unconfirmed"}, {"restart"}),
}
# Ends whose culprit no log can tell: a value spread by the all-reduce, a stopped process that all wait for in
# silence, and slowness, which only timings show.
UNTOLD = {"nan_loss", "straggler", "transient_hang"}
SILENT = {"rank2-silent"}

pytestmark = pytest.mark.skipif(
    not FOLDERS,
    reason=f"the recorded runs are not beside the project ({RUNS.name} missing): the recorded runs are NOT tested",
)


def diagnosis(shipped: Diagnostician, folder: Path) -> tuple[dict[str, Any], Diagnosis]:
    return json.loads((folder / "truth.json").read_text()), shipped.judge(read_folder(folder).logs, at=AT)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_run_gets_the_failure_and_an_action_that_does_no_harm(shipped: Diagnostician, folder: Path) -> None:
    truth, said = diagnosis(shipped, folder)
    failures, actions = EXPECTED[truth["label"]]
    assert said.attribution.failure in failures
    assert said.verdict.action.value in actions


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda p: f"{p.parent.name}/{p.name}")
def test_a_run_names_the_rank_and_node_that_caused_it_or_nobody(shipped: Diagnostician, folder: Path) -> None:
    truth, said = diagnosis(shipped, folder)
    culprit = truth.get("culprit") or {}
    if truth["label"] in UNTOLD or folder.name in SILENT or not isinstance(culprit.get("rank", 0), int):
        assert said.culprit_nodes == ()
        return
    if "rank" in culprit:
        assert list(said.attribution.ranks) == [culprit["rank"]]
    if "node" in culprit:
        assert list(said.culprit_nodes) == [culprit["node"]]
