# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Real failures of a real training under a real Slurm, recovered by the controller as sites run it."""

from __future__ import annotations

import os
import signal

import pytest

from relight.hold_mark import read_mark
from tests.slurm.proof import Proof, end

pytestmark = pytest.mark.slurm


def test_a_killed_rank_leads_to_one_restart_that_goes_on_from_the_checkpoint(acting: Proof) -> None:
    job_id = acting.train("killed")
    acting.trains(job_id, 15)
    before = acting.step(job_id)
    victim = acting.nodes(job_id)[1]
    os.kill(acting.rank_pids(victim)[0], signal.SIGKILL)
    acting.until(lambda: acting.job(job_id)["JobState"] != "RUNNING", 20, "the job fails")
    acting.until(lambda: acting.job(job_id)["Restarts"] == "1", 20, "requeued")
    acting.until(lambda: acting.job(job_id)["JobState"] == "RUNNING", 30, "runs again")
    acting.trains(job_id, before + 5)
    acting.until(lambda: acting.state(job_id) == "CONVERGED", 20, "the recommendation converges")
    job = acting.job(job_id)
    assert (job["Restarts"], job["ExcNodeList"]) == ("1", "(null)"), "a process that dies accuses no node"
    assert acting.attempts(job_id)[0]["state"] == "FAILED"
    assert acting.milestones(job_id) == [
        "requeue_hold:intent", "requeue_hold:done", "release:intent", "release:done"
    ]  # fmt: skip
    acting.cancel(job_id)


def test_a_lost_node_is_excluded_from_the_run_that_slurm_starts_itself(acting: Proof) -> None:
    job_id = acting.train("lost", nodes=2)
    acting.trains(job_id, 12)
    before, victim = acting.step(job_id), acting.nodes(job_id)[1]
    acting.cluster.power_off(victim)
    try:
        acting.until(lambda: acting.job(job_id)["Restarts"] == "1", 60, "slurm or we requeue it")
        acting.until(lambda: victim in acting.job(job_id)["ExcNodeList"], 30, "the node is excluded")
        acting.hurry(job_id)
        acting.until(lambda: acting.job(job_id)["JobState"] == "RUNNING", 60, "runs again")
        acting.trains(job_id, before + 5)
        acting.until(lambda: acting.state(job_id) == "CONVERGED", 30, "converges")
        assert victim not in acting.nodes(job_id)
        assert acting.job(job_id)["Restarts"] == "1"
        assert acting.attempts(job_id)[0]["failed_nodes"] == [victim]
    finally:
        acting.cancel(job_id)
        acting.cluster.heal(victim)


def test_an_exception_that_comes_back_is_stopped_and_not_restarted_for_ever(acting: Proof) -> None:
    job_id = acting.train("faulty", nodes=2)
    acting.order(job_id, 1, fault="exception", keep=True, from_step=0,
                 text="size mismatch for head.weight: copying a param with shape [8, 4] from checkpoint")  # fmt: skip

    def is_stopped() -> bool:
        attempts = acting.attempts(job_id)
        said = {acting.advice(job_id, one["attempt_index"]).get("action") for one in attempts}
        job = acting.job(job_id)
        return "stop" in said and (job["JobState"] == "FAILED" or job["Priority"] == "0")

    acting.until(is_stopped, 120, "the policy stops it: held with a reason, or left as it failed")
    restarts = int(acting.job(job_id)["Restarts"])
    assert restarts <= 4
    acting.until(lambda: acting.state(job_id, len(acting.attempts(job_id)) - 2) != "CLAIMED", 20, "all are at work")
    assert int(acting.job(job_id)["Restarts"]) == restarts, "and it stays so"
    acting.cancel(job_id)


def test_what_the_user_cancels_stays_cancelled(acting: Proof) -> None:
    job_id = acting.train("cancelled", nodes=1)
    acting.trains(job_id, 3)
    acting.cancel(job_id)
    acting.until(lambda: any(a["state"] == "CANCELLED_BY_USER" for a in acting.attempts(job_id)), 30, "it is seen")
    acting.until(lambda: acting.job(job_id)["JobState"] == "CANCELLED", 10, "it is over")
    assert acting.milestones(job_id) == []


def test_a_job_in_monitor_mode_is_advised_on_and_not_touched(acting: Proof) -> None:
    job_id = acting.train("watched", nodes=1, mode="monitor")
    acting.trains(job_id, 3)
    os.kill(acting.rank_pids(acting.nodes(job_id)[0])[0], signal.SIGKILL)
    acting.until(lambda: acting.state(job_id) == "SHADOW", 30, "advice is on record")
    job = acting.job(job_id)
    assert (job["JobState"], job["Restarts"]) == ("FAILED", "0")


def test_a_job_that_must_not_be_requeued_is_left_alone(acting: Proof) -> None:
    job_id = acting.train("once", nodes=1, submit=("--no-requeue",))
    acting.trains(job_id, 3)
    os.kill(acting.rank_pids(acting.nodes(job_id)[0])[0], signal.SIGKILL)
    acting.until(lambda: acting.advice(job_id) != {}, 30, "advice is on record")
    assert "not_requeueable" in acting.advice(job_id)["blocked_by"]
    assert acting.job(job_id)["Restarts"] == "0"


def test_a_controller_killed_while_it_holds_a_job_goes_on_where_it_was(proof: Proof) -> None:
    controller, watchdog = proof.start_controller("--settle-s", "8"), proof.start_watchdog()
    try:
        job_id = proof.train("orphan", nodes=1)
        proof.trains(job_id, 12)
        before = proof.step(job_id)
        os.kill(proof.rank_pids(proof.nodes(job_id)[0])[0], signal.SIGKILL)
        proof.until(lambda: proof.job(job_id)["Restarts"] == "1", 30, "requeued and held")
        end(controller, signal.SIGKILL)
        controller = proof.start_controller()
        proof.until(lambda: proof.job(job_id)["JobState"] == "RUNNING", 40, "runs again")
        proof.trains(job_id, before + 5)
        assert proof.job(job_id)["Restarts"] == "1", "one failure, one restart"
        proof.until(lambda: proof.state(job_id) == "CONVERGED", 20, "converges")
        proof.cancel(job_id)
    finally:
        end(controller)
        end(watchdog)


def test_the_watchdog_alone_releases_what_a_dead_controller_holds(proof: Proof) -> None:
    """Advisor or not: the deadline is in the job's own record."""
    job_id = proof.train("held", nodes=1, mode="monitor")
    proof.until(lambda: proof.step(job_id) > 3, 40, "it trains")
    proof.cluster.client("scontrol", "requeuehold", job_id)
    proof.until(lambda: proof.job(job_id)["JobState"] == "PENDING", 20, "held")
    now = proof.cluster.client("date", "+%s").strip()
    mark = f"relight:deciding/r-1/1/1/{now}/{int(now) + 5}"
    assert read_mark(mark) is not None
    proof.cluster.client("scontrol", "update", f"JobId={job_id}", f"AdminComment={mark}")
    watchdog = proof.start_watchdog()
    try:
        took = proof.until(lambda: proof.job(job_id)["Priority"] != "0", 20, "released")
        assert took >= 3
        assert "relight:" not in proof.cluster.client("scontrol", "-o", "show", "job", job_id)
    finally:
        end(watchdog)
        proof.cancel(job_id)
