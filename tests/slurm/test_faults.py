# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Faults that Slurm does not see, or sees differently; recovered over SSH, with the advisor as its own process."""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Iterator

import pytest

from tests.slurm.proof import Proof
from tests.slurm.recovered import RESTARTED, hang, warm, went_on

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def limited(apart: Proof) -> Iterator[str]:
    """A job of one minute, begun first and looked at last: Slurm counts in minutes."""
    job_id = apart.train("limited", nodes=1, submit=("--time=1", "--nodelist=node4"))
    yield job_id


@pytest.fixture(autouse=True)
def _alone_but_for_that(apart: Proof, limited: str) -> Iterator[None]:
    """No test leaves a job to the next one."""
    yield
    apart.cancel_all(but=limited)


def test_a_stopped_rank_is_found_by_its_silence_and_the_job_restarted(apart: Proof) -> None:
    job_id = apart.train("stopped", nodes=2, submit=("--nodelist=node[1-2]",))
    before = warm(apart, job_id)
    took = hang(apart, job_id, apart.nodes(job_id)[1])
    went_on(apart, job_id, before)
    advice = apart.advice(job_id)
    print(f"hang: the run was ended {took:.1f} s after the rank was stopped")
    assert (advice["action"], advice["failure"]) == ("restart", "silent_hang")
    (found,) = apart.anomalies(job_id, "hang")
    assert found["rank"] == 1, "its heartbeat stopped, that of the one that waits went on"
    assert apart.milestones(job_id) == RESTARTED
    assert apart.job(job_id)["ExcNodeList"] == "(null)", "a rank that stands still accuses no node"


def test_a_slow_rank_is_watched_and_not_acted_on_until_it_hangs(apart: Proof) -> None:
    job_id = apart.train("slow", nodes=4)
    warm(apart, job_id)
    apart.order(job_id, 1, fault="slow", delay_s=0.2)
    apart.until(lambda: bool(apart.anomalies(job_id, "straggler")), 60, "the slow rank is named")
    found = apart.anomalies(job_id, "straggler")[0]
    assert found["rank"] == 1
    seen = apart.step(job_id)
    apart.trains(job_id, seen + 10)
    job = apart.job(job_id)
    assert (job["JobState"], job["Restarts"], apart.milestones(job_id)) == ("RUNNING", "0", [])
    assert apart.advice(job_id).get("action", "continue") == "continue"
    before = apart.step(job_id)
    hang(apart, job_id, apart.nodes(job_id)[1])
    went_on(apart, job_id, before)
    assert apart.incidents(job_id)[0]["anomalies"][:2] == ["straggler", "hang"]


def test_an_advisor_killed_at_each_step_of_a_recovery_forgets_nothing(apart: Proof) -> None:
    advisor = apart.advisor
    assert advisor is not None
    job_id = apart.train("forgotten", nodes=2, submit=("--nodelist=node[1-2]",))
    apart.trains(job_id, 15)
    before = apart.step(job_id)
    os.kill(apart.rank_pids(apart.nodes(job_id)[1])[0], signal.SIGKILL)
    apart.until(lambda: apart.job(job_id)["JobState"] != "RUNNING", 20, "the job fails")
    advisor.kill()
    advisor.start()
    apart.until(lambda: apart.job(job_id)["Restarts"] == "1", 30, "requeued and held")
    advisor.kill()
    advisor.start()
    apart.until(lambda: "release:done" in apart.milestones(job_id), 30, "released")
    advisor.kill()
    advisor.start()
    went_on(apart, job_id, before)
    assert apart.milestones(job_id) == RESTARTED
    with sqlite3.connect(apart.folder / "controller" / "controller.sqlite") as own:
        query = "SELECT step || ':' || phase FROM entry WHERE subject = ? AND phase IN ('intent', 'done') ORDER BY id"
        done = [row[0] for row in own.execute(query, (apart.attempts(job_id)[0]["id"],))]
    assert done == RESTARTED, "what the controller did and what is on record are the same"
    verified = apart.client.post("/v1/audit/verify", json={}).json()
    assert verified["is_sound"], verified


def test_a_full_disk_is_named_and_tried_once_more(apart: Proof) -> None:
    job_id = apart.train("full", nodes=2, submit=("--nodelist=node[1-2]",))
    apart.trains(job_id, 15)
    before = apart.step(job_id)
    apart.order(job_id, 1, fault="full_disk")
    apart.until(lambda: apart.advice(job_id) != {}, 30, "advice is on record")
    (apart.run(job_id) / "control" / "rank1.json").unlink()  # somebody frees the disk
    went_on(apart, job_id, before)
    assert apart.advice(job_id)["failure"] == "disk_full"
    assert apart.milestones(job_id) == RESTARTED


def test_a_node_whose_slurmd_alone_died_is_left_out_of_the_next_run(apart: Proof) -> None:
    job_id = apart.train("deaf", nodes=2, submit=("--exclude=node4",))
    apart.trains(job_id, 15)
    before, victim = apart.step(job_id), apart.nodes(job_id)[1]
    apart.cluster.kill_slurmd(victim)
    try:
        apart.until(lambda: apart.job(job_id)["Restarts"] == "1", 60, "slurm or we requeue it")
        apart.until(lambda: apart.excluded(job_id) == {victim, "node4"}, 30, "the node is excluded")
        apart.hurry(job_id)
        went_on(apart, job_id, before)
        assert victim not in apart.nodes(job_id)
        assert apart.attempts(job_id)[0]["failed_nodes"] == [victim]
        assert apart.advice(job_id)["action"] == "restart_excluding"
        assert "set_exclusions:done" in apart.milestones(job_id)
    finally:
        apart.cluster.heal(victim)


def test_a_preempted_job_is_left_to_slurm(apart: Proof) -> None:
    job_id = apart.train("yielding", nodes=1, submit=("--nodelist=node3", "--exclusive"))
    apart.trains(job_id, 12)
    before = apart.step(job_id)
    urgent = apart.cluster.client(
        "sbatch", "--parsable", "-p", "high", "-w", "node3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 300"
    ).strip()
    try:
        apart.until(lambda: apart.job(job_id)["Restarts"] == "1", 40, "slurm preempts and requeues it")
        apart.until(lambda: apart.job(urgent)["JobState"] == "RUNNING", 30, "the urgent job has the node")
        apart.until(lambda: len(apart.attempts(job_id)) == 2, 20, "the next run is known")
        apart.until(lambda: apart.attempts(job_id)[1]["state"] == "PENDING", 20, "and waits")
    finally:
        apart.cancel(urgent)
    apart.hurry(job_id)
    apart.until(lambda: apart.job(job_id)["JobState"] == "RUNNING", 30, "slurm starts it again")
    apart.trains(job_id, before + 5)
    ended = apart.attempts(job_id)[0]["state"]
    assert ended in {"PREEMPTED", "LOST"}, "without accounting Slurm tells nobody why it queued the job again"
    job = apart.job(job_id)
    assert (apart.milestones(job_id, 0), job["ExcNodeList"]) == ([], "(null)"), "nobody but Slurm touched it"
    if job["Restarts"] == "1":  # on a node that has just been cleared the next run may die at once, and is restarted
        assert apart.milestones(job_id, 1) == []
        assert apart.advice(job_id).get("action", "continue") == "continue"


def test_a_job_at_its_time_limit_goes_on_as_the_next_link_of_its_chain(apart: Proof, limited: str) -> None:
    apart.until(lambda: apart.attempts(limited)[0]["state"] == "TIMED_OUT", 120, "Slurm ends it at its limit")
    apart.until(lambda: apart.state(limited) == "CONVERGED", 60, "the next link is queued")
    ended, following = apart.attempts(limited)[:2]
    apart.trains(limited, ended["last_step"] + 5)
    advice = apart.advice(limited)
    assert (advice["action"], advice["failure"], advice["exclusions"]) == ("restart", "time_limit", [])
    assert apart.milestones(limited) == RESTARTED
    assert (following["attempt_index"], apart.job(limited)["ExcNodeList"]) == (1, "(null)")
