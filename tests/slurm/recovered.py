# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a recovery on the real cluster must have come to, whatever was broken."""

from __future__ import annotations

import os
import signal

from tests.slurm.proof import Proof

RESTARTED = ["requeue_hold:intent", "requeue_hold:done", "release:intent", "release:done"]


def in_order(kinds: list[str], *wanted: str) -> bool:
    """Whether these kinds of events stand on record one after another, whatever is between them."""
    left = iter(kinds)
    return all(one in left for one in wanted)


def went_on(proof: Proof, job_id: str, before: int) -> None:
    """One restart, training beyond its last step, and everything of it on record in order."""
    proof.until(lambda: proof.job(job_id)["JobState"] == "RUNNING", 60, "runs again")
    proof.trains(job_id, before + 5)
    proof.until(lambda: proof.state(job_id) == "CONVERGED", 30, "the recommendation converges")
    assert proof.job(job_id)["Restarts"] == "1", "one failure, one restart"
    resumed = {"PROGRESS_RESUMED", "CLOSED_RECOVERED"}
    proof.until(lambda: proof.incidents(job_id)[0]["state"] in resumed, 20, "it is known that it trains on")
    kinds = proof.kinds(job_id)
    acted = ("anomaly.detected", "incident.opened", "recommendation.issued", "recommendation.claimed",
             "milestone.recorded")  # fmt: skip
    assert in_order(kinds, *acted, "reconciliation.reported"), kinds
    assert in_order(kinds, *acted, "outcome.reported", "outcome.reported"), "it restarted, then it progressed"
    assert kinds.index("attribution.made") < kinds.index("recommendation.issued"), kinds


def warm(proof: Proof, job_id: str) -> int:
    """Train until the advisor knows how the job usually goes; the last step."""
    proof.trains(job_id, 0)
    proof.until(lambda: (proof.attempts(job_id)[0]["last_step"] or 0) > 0, 20, "its steps arrive")
    first = proof.step(job_id)
    proof.trains(job_id, first + 70)
    proof.until(lambda: proof.step(job_id) % 10 in {4, 5, 6}, 10, "it is between two checkpoints")
    return proof.step(job_id)


def hang(proof: Proof, job_id: str, node: str) -> float:
    """Stop the rank of a node; how long it took until the run was ended."""
    (victim,) = proof.rank_pids(node)
    os.kill(victim, signal.SIGSTOP)
    return proof.until(lambda: proof.job(job_id)["Restarts"] == "1", 45, "the hang is seen and the run ended")
