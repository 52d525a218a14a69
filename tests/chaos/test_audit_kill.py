# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Fifty times kill -9 in the middle of recording: nothing that was acknowledged is lost."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from service.adapters.clock import SystemClock
from service.adapters.duckdb_audit import DuckDBAuditLog

ROUNDS = 50
VICTIM = Path(__file__).with_name("audit_victim.py")
PROJECT = VICTIM.parents[2]


def killed_after(lines: int, path: Path, number: int, owed: list[str]) -> tuple[str, list[str]]:
    """Let a process record until it acknowledged `lines` events, then kill it.

    It first checks what the process before it was `owed`. Returns its report and its own
    acknowledgements, those included that reached the pipe before the kill did.
    """
    checkpoint_bytes = random.Random(number).choice([20_000, 32_000_000])
    command = [sys.executable, str(VICTIM), str(path), str(number), str(checkpoint_bytes)]
    victim = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env={"PYTHONPATH": str(PROJECT)},
    )
    with victim:
        assert victim.stdin and victim.stdout and victim.stderr
        victim.stdin.write("".join(owed))
        victim.stdin.close()
        report = victim.stdout.readline()
        acknowledged = [victim.stdout.readline() for _ in range(lines)]
        victim.kill()
        acknowledged += victim.stdout.readlines()
        complaint = victim.stderr.read()
    assert report.startswith("head"), f"{report}{''.join(acknowledged)}{complaint}"
    return report, [line for line in acknowledged if line.endswith("\n")]


@pytest.mark.slow
def test_no_acknowledged_event_is_lost_by_kill_9(tmp_path: Path) -> None:
    path = tmp_path / "audit.duckdb"
    chance = random.Random(20261101)
    owed: list[str] = []
    total, recorded = 0, 0
    for number in range(1, ROUNDS + 1):
        report, acknowledged = killed_after(chance.randrange(5, 60), path, number, owed)
        _, head, is_sound, events = report.split()[:4]
        assert is_sound == "True", report
        assert int(events) == int(head) >= recorded + len(owed), report
        recorded = int(head)
        owed = acknowledged
        total += len(acknowledged)
    log = DuckDBAuditLog(path, SystemClock())
    positions = [stored.position for stored in log.read(limit=1_000_000)]
    verified = log.verify()
    log.close()
    assert total > ROUNDS * 5
    assert positions == list(range(1, len(positions) + 1))
    assert len(positions) >= total
    assert verified.is_sound
