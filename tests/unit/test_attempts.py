# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Several attempts in one log: the last one is judged."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from detectors.attempts import last_attempt_start
from detectors.log_text import LogText, read_log
from relight.types import Stream
from service.diagnosis import Diagnostician

AT = datetime(2026, 1, 1, tzinfo=UTC)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
XID = "NVRM: Xid (PCI:0000:0f:00): 79, pid=1, name=python, GPU has fallen off the bus.\n"


def log(text: str) -> LogText:
    return read_log("job.log", text.encode(), Stream.APPLICATION)


@pytest.mark.parametrize(
    "marker",
    [
        "==== restart 1 ====",
        "=== RESTART attempt 2 ===".lower(),
        "[job] 2026-11-29T16:14:43.983 job=50 restart=1 nodes=node[1-4]",
        "SLURM_RESTART_COUNT=2",
    ],
)
def test_a_restart_marker_begins_an_attempt(marker: str) -> None:
    assert last_attempt_start(log(f"one\n{marker}\ntwo\n")) == 1


@pytest.mark.parametrize(
    "line", ["[job] restart=0 nodes=n1", "==== results ====", "SLURM_RESTART_COUNT=0", "restart_count=1"]
)
def test_other_lines_begin_none(line: str) -> None:
    assert last_attempt_start(log(f"one\n{line}\ntwo\n")) == 0


def test_headers_of_agents_that_start_together_are_one_attempt() -> None:
    header = "Starting elastic_operator with launch configs:\n"
    assert last_attempt_start(log(header + "x\n" * 20 + header)) == 0
    assert last_attempt_start(log(header + "x\n" * 500 + header + "y\n")) == 501


def test_the_last_attempt_is_judged_and_not_the_first(shipped: Diagnostician) -> None:
    both = shipped.judge((log(XID + "==== restart 1 ====\n" + OOM),), at=AT)
    assert both.attribution.failure == "cuda_oom"
    assert both.attribution.root is not None
    assert both.attribution.root.where.line == 3


def test_a_last_attempt_that_runs_well_needs_no_action(shipped: Diagnostician) -> None:
    said = shipped.judge((log(XID + "==== restart 1 ====\nstep=1 loss=2.0\nstep=2 loss=1.9\n"),), at=AT)
    assert (said.attribution.failure, said.verdict.action.value) == ("none", "continue")
