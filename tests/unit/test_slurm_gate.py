# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The forced command of the controller's SSH key: what it lets through, and what hides behind an option."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GATE = Path(__file__).parents[2] / "deploy" / "slurm" / "gate"


def gate(command: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "/nowhere", "SSH_ORIGINAL_COMMAND": command, "SLURM_CONF": os.devnull}
    return subprocess.run(
        [sys.executable, str(GATE)], env=environment, text=True, capture_output=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    "command",
    [
        "", "id", "'squeue; id'", "scontrol", "scontrol shutdown", "scontrol reconfigure", "scontrol --oneliner",
        "scontrol --oneliner shutdown", "scontrol --oneliner --details reconfigure", "scontrol -M x show job",
        "scontrol --oneliner update NodeName=n1 State=DOWN", "scontrol update JobId=1 Command=/tmp/x", "'",
    ],
)  # fmt: skip
def test_what_is_not_needed_is_refused(command: str) -> None:
    done = gate(command)
    assert (done.returncode, done.stderr[:8]) == (126, "refused:")


@pytest.mark.parametrize(
    "command",
    [
        "scontrol --oneliner show job 7", "scontrol --oneliner --details show job", "scontrol --oneliner show step",
        "scontrol update JobId=7 ExcNodeList=n1", "scontrol requeuehold 7", "squeue --json", "scancel 7",
    ],
)  # fmt: skip
def test_what_the_controller_sends_is_let_through(command: str) -> None:
    """To the command itself, wherever that is, or to the news that this host has none."""
    done = gate(command)
    assert done.returncode != 126
    assert "refused" not in done.stderr
