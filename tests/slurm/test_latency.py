# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Figures of the real cluster, which exclude queueing as the published ones of others do."""

from __future__ import annotations

import statistics

import pytest

from tests.slurm.latency import measure
from tests.slurm.proof import Proof

pytestmark = pytest.mark.slurm


def test_crashes_are_detected_and_acted_on_within_seconds(acting: Proof) -> None:
    found = [measure(acting, f"latency{number}") for number in range(3)]
    detection = statistics.mean(one.detection for one in found)
    action = statistics.mean(one.action for one in found)
    resumed = statistics.mean(one.resumed for one in found)
    print(f"mean of {len(found)}: detection {detection:.2f} s, action {action:.2f} s, training resumed {resumed:.2f} s")
    assert detection <= 10
    assert action <= 6, "4 s of it are the wait for late log lines, since a killed process explains nothing"
