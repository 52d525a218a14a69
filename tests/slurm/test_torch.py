# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""PyTorch DDP on gloo under the real Slurm: killed and hung, recovered over SSH, trained beyond its last step."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from tests.slurm.proof import Form, Proof
from tests.slurm.recovered import RESTARTED, hang, warm, went_on
from tests.torch_python import require_torch

pytestmark = [pytest.mark.slurm, pytest.mark.torch]


@pytest.fixture
def torch(apart: Proof) -> Iterator[Proof]:
    apart.form = Form("examples.ddp_torch", require_torch())
    yield apart
    apart.cancel_all()


def test_a_killed_rank_of_a_ddp_job_leads_to_one_restart_from_the_checkpoint(torch: Proof) -> None:
    job_id = torch.train("ddp-killed", nodes=2)
    torch.trains(job_id, 15)
    before = torch.step(job_id)
    (victim,) = torch.rank_pids(torch.nodes(job_id)[1])
    os.kill(victim, signal.SIGKILL)
    torch.until(lambda: torch.job(job_id)["Restarts"] == "1", 40, "requeued")
    went_on(torch, job_id, before)
    assert torch.milestones(job_id) == RESTARTED
    assert torch.resumed_at(job_id) >= 10


def test_a_stopped_rank_of_a_ddp_job_is_named_by_its_heartbeat_and_the_job_restarted(torch: Proof) -> None:
    job_id = torch.train("ddp-stopped", nodes=2)
    before = warm(torch, job_id)
    took = hang(torch, job_id, torch.nodes(job_id)[1])
    went_on(torch, job_id, before)
    print(f"torch: the run was ended {took:.1f} s after the rank was stopped")
    (found,) = torch.anomalies(job_id, "hang")
    assert found["rank"] == 1
    advice = torch.advice(job_id)
    assert (advice["action"], advice["failure"]) == ("restart", "silent_hang")
    assert torch.milestones(job_id) == RESTARTED
