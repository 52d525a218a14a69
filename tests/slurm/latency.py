# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How long detection and action take on the real cluster, from the scheduler's and the advisor's own times."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from datetime import datetime

from tests.slurm.proof import Proof


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds: from the kill to the advice, from there to the release, and to the next completed step."""

    detection: float
    action: float
    resumed: float


def measure(proof: Proof, name: str) -> Latency:
    """Kill a rank of a fresh training; the job is cancelled in the end."""
    job_id = proof.train(name, nodes=1)
    proof.trains(job_id, 12)
    before, victim = proof.step(job_id), proof.nodes(job_id)[0]
    killed_at = time.time()
    os.kill(proof.rank_pids(victim)[0], signal.SIGKILL)
    proof.until(lambda: proof.job(job_id)["Restarts"] == "1", 30, "requeued")
    proof.trains(job_id, before)
    resumed_at = time.time()
    proof.until(lambda: proof.state(job_id) == "CONVERGED", 30, "converges")
    issued = datetime.fromisoformat(proof.advice(job_id)["created_at"]).timestamp()
    entries = [one for one in proof.timeline(job_id) if one["kind"] == "milestone.recorded"]
    released = next(
        datetime.fromisoformat(one["at"]).timestamp()
        for one in entries
        if (one["event"]["step"], one["event"]["phase"]) == ("release", "done")
    )
    proof.cancel(job_id)
    return Latency(issued - killed_at, released - issued, resumed_at - killed_at)
