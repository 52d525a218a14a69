# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Recoveries from end to end, with an advisor in process and a Slurm in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta

import pytest

from relight.events import OutcomeReported
from relight.types import AttemptState, NodeName
from service.tokens import Role
from tests.api.running import XID_79
from tests.simulation.conftest import MakeWorld
from tests.simulation.recovery_world import World


def test_a_dead_gpu_leads_to_a_restart_elsewhere(world: World) -> None:
    job_id = world.running(comment="relight=act", exclude=("n6",))
    bad = world.gpu_falls_off(job_id)
    world.until(lambda: world.slurm.job(job_id).state is AttemptState.RUNNING)
    job = world.slurm.job(job_id)
    assert job.restart_count == 1
    assert bad not in job.nodes
    assert set(job.exc_nodes) == {bad, "n6"}
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    world.check_audit()
    assert "relight:" not in world.slurm.job(job_id).marks


def test_an_unexplained_failure_is_held_first_and_restarted_where_it_ran(world: World) -> None:
    job_id = world.running()
    world.slurm.end(job_id, exit_code=7)
    world.step()
    assert world.slurm.job(job_id).is_held, "held at once, while the log is still being read"
    assert world.advice(job_id)["state"] == "PROPOSED"
    took = world.until(lambda: world.slurm.job(job_id).state is AttemptState.RUNNING)
    assert took <= 62, "the advised back-off counts from the hold on"
    assert world.slurm.job(job_id).exc_nodes == ()
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    world.check_audit()


def test_a_line_that_arrives_while_the_job_is_held_still_changes_the_verdict(world: World) -> None:
    world.with_settings(settle_s=12)
    job_id = world.running()
    bad = world.slurm.job(job_id).nodes[0]
    attempt = world.attempt(job_id)
    world.slurm.end(job_id, exit_code=7)
    world.step(2)
    assert world.advice(job_id)["action"] == "restart"
    world.say(job_id, XID_79, stream="kernel", node=bad, file="kern.log", attempt_id=attempt)
    world.until(lambda: world.slurm.job(job_id).state is AttemptState.RUNNING)
    assert bad in world.slurm.job(job_id).exc_nodes
    assert world.advice(job_id)["generation"] == 2


def test_a_lost_node_is_kept_out_of_the_run_that_slurm_starts_by_itself(world: World) -> None:
    job_id = world.running()
    lost = world.slurm.job(job_id).nodes[1]
    world.slurm.node_down(lost)
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    told = world.service.get(f"/v1/attempts/{world.attempt(job_id, 0)}").json()
    assert (told["state"], told["failed_nodes"]) == ("NODE_FAILED", [lost])
    assert world.advice(job_id)["reconciliation"]["reason"] == "already_satisfied"
    assert set(world.slurm.job(job_id).exc_nodes) == {lost}
    assert world.deeds("requeue_hold") == 0, "adopted, not done twice"
    assert world.slurm.job(job_id).restart_count == 1


def test_a_lost_node_is_noticed_without_accounting_too(make_world: MakeWorld) -> None:
    world = make_world(has_accounting=False)
    job_id = world.running()
    lost = world.slurm.job(job_id).nodes[1]
    world.slurm.node_down(lost)
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    assert set(world.slurm.job(job_id).exc_nodes) == {lost}


def test_what_the_user_ended_is_left_alone(world: World) -> None:
    job_id = world.running()
    world.slurm.user_cancels(job_id)
    world.step(20)
    assert world.slurm.job(job_id).state is AttemptState.CANCELLED_BY_USER
    assert not world.touched(job_id)


def test_a_finished_job_and_a_preempted_one_are_left_alone(world: World) -> None:
    done, moved = world.running(), world.running()
    world.slurm.end(done, "COMPLETED", exit_code=0)
    world.slurm.preempt(moved)
    world.step(20)
    assert not world.touched(done)
    assert not world.touched(moved)
    assert world.service.get(f"/v1/attempts/{world.attempt(moved, 0)}").json()["state"] == "PREEMPTED"


@pytest.mark.parametrize("comment", ["relight=monitor", "relight=off", '{"relight": "monitor"}'])
def test_a_job_that_did_not_opt_in_is_not_touched(world: World, comment: str) -> None:
    job_id = world.running(comment=comment)
    world.slurm.end(job_id)
    world.step(20)
    assert not world.touched(job_id)
    assert world.slurm.job(job_id).state is AttemptState.FAILED


def test_the_advisors_own_mode_has_the_last_word(world: World) -> None:
    world.service.as_(Role.ADMIN).set_mode("monitor")
    job_id = world.running(comment="relight=act")
    world.gpu_falls_off(job_id)
    world.step(20)
    assert not world.touched(job_id)
    assert world.advice(job_id)["state"] == "SHADOW"


def test_a_job_that_must_not_be_requeued_is_reported_and_not_touched(world: World) -> None:
    job_id = world.running(requeueable=False)
    world.gpu_falls_off(job_id)
    world.step(20)
    assert not world.touched(job_id)
    assert "not_requeueable" in world.advice(job_id)["blocked_by"]


def test_in_approve_mode_nothing_happens_before_a_person_says_so(world: World) -> None:
    job_id = world.running(comment="relight=approve")
    bad = world.gpu_falls_off(job_id)
    world.step(100)
    assert not world.touched(job_id)
    advice = world.advice(job_id)
    answer = world.service.as_(Role.ADMIN).post(
        f"/v1/recommendations/{advice['id']}/approve", json={"actor": "ada", "note": "go"}
    )
    assert answer.status_code == 200, answer.text
    took = world.until(lambda: world.slurm.job(job_id).restart_count == 1 and not world.slurm.job(job_id).is_held)
    assert took <= 3
    assert bad in world.slurm.job(job_id).exc_nodes


def test_a_mode_lowered_while_a_job_is_held_lets_it_go_and_cancels_nothing(make_world: MakeWorld) -> None:
    world = make_world()
    world.with_settings(settle_s=30)
    job_id = world.running()
    world.slurm.end(job_id, exit_code=7)
    world.step(3)
    assert world.slurm.job(job_id).is_held
    world.service.as_(Role.ADMIN).set_mode("monitor")
    world.step(3)
    job = world.slurm.job(job_id)
    assert not job.is_held
    assert "relight:" not in job.marks
    assert world.deeds("cancel") == 0


def test_a_pause_file_stops_every_new_action(world: World) -> None:
    world.is_paused = True
    job_id = world.running()
    world.gpu_falls_off(job_id)
    world.step(20)
    assert not world.touched(job_id)


def test_a_failure_from_before_the_controller_was_installed_is_shown_only(make_world: MakeWorld) -> None:
    world = make_world()
    world.has_controller = False
    job_id = world.slurm.submit(2)
    world.step(2)
    world.slurm.end(job_id)
    world.step(2)
    world.has_controller = True
    world.step(20)
    assert not world.touched(job_id)
    assert world.service.get(f"/v1/attempts/{world.attempt(job_id)}").json()["state"] == "FAILED"


def test_a_user_who_holds_or_cancels_a_held_job_wins(make_world: MakeWorld) -> None:
    world = make_world()
    world.with_settings(settle_s=30)
    job_id = world.running()
    world.slurm.end(job_id, exit_code=7)
    world.step(3)
    world.slurm.user_cancels(job_id)
    world.step(60)
    assert world.slurm.job(job_id).state is AttemptState.CANCELLED_BY_USER
    assert world.advice(job_id)["reconciliation"]["reason"] == "user_cancelled"


def test_slurms_own_hold_after_too_many_requeues_is_never_released(make_world: MakeWorld) -> None:
    world = make_world(max_batch_requeue=0)
    job_id = world.running()
    world.slurm.node_down(world.slurm.job(job_id).nodes[0])
    world.step(300)
    job = world.slurm.job(job_id)
    assert job.is_held
    assert job.reason == "JobHoldMaxRequeue"
    assert world.deeds("release") == 0


def test_exclusions_that_leave_too_few_nodes_are_not_set_and_that_is_said(make_world: MakeWorld) -> None:
    world = make_world(nodes=2)
    job_id = world.running()
    world.gpu_falls_off(job_id)
    world.until(lambda: world.advice(job_id)["state"] not in {"", "PROPOSED", "CLAIMED", "ACTING"})
    job = world.slurm.job(job_id)
    assert (job.exc_nodes, job.is_held) == ((), False)
    assert job.restart_count <= 1


def test_our_exclusions_are_taken_back_when_slurm_finds_no_nodes_for_the_job(make_world: MakeWorld) -> None:
    """The nodes that are left go in the moment between the exclusion and the start, so that nothing was known before."""
    world = make_world(nodes=3)
    job_id = world.running()
    bad = world.gpu_falls_off(job_id)
    others = {"n1", "n2", "n3"} - {bad}
    inner = world.slurm.set_exclusions

    def and_then_the_others_go(job: str, nodes: Sequence[NodeName]) -> None:
        inner(job, nodes)
        for node in others if nodes else ():
            world.slurm.drain(node)

    world.slurm.set_exclusions = and_then_the_others_go  # type: ignore[method-assign,assignment]
    world.until(lambda: bad in world.slurm.job(job_id).exc_nodes)
    assert world.slurm.job(job_id).state is AttemptState.PENDING, "it must not start before the nodes are gone"
    world.until(lambda: world.slurm.job(job_id).reason == "ReqNodeNotAvail")
    world.until(lambda: world.advice(job_id)["state"] == "FAILED")
    assert world.advice(job_id)["reconciliation"]["reason"] == "no_capacity"
    assert world.slurm.job(job_id).exc_nodes == ()
    assert not world.slurm.job(job_id).is_held
    set_twice = [step for step, phase in world.milestones() if (step, phase) == ("set_exclusions", "done")]
    assert len(set_twice) == 2, "set once, taken back once, each on record"


def test_only_our_own_exclusions_expire(world: World) -> None:
    job_id = world.running(exclude=("n6",))
    first = world.gpu_falls_off(job_id)
    world.until(lambda: world.slurm.job(job_id).restart_count == 1 and world.slurm.job(job_id).nodes != ())
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    track = world.controller.following.track(job_id)
    assert track is not None
    assert set(track.ours) == {first}
    much_later = world.clock.at + timedelta(days=8)
    assert track.exclusions_for(much_later, world.slurm.job(job_id).exc_nodes) == {"n6"}
    assert track.users_own(world.slurm.job(job_id).exc_nodes) == ("n6",)


def test_progress_and_completion_are_four_separate_outcomes(world: World) -> None:
    job_id = world.running()
    world.gpu_falls_off(job_id)
    world.until(lambda: world.slurm.job(job_id).state is AttemptState.RUNNING)
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    signal = {"source": "test", "source_event_id": "1", "event_time": world.clock.at.isoformat(),
              "attempt_id": world.attempt(job_id), "progress": {"step": 10}}  # fmt: skip
    assert world.service.as_(Role.ADMIN).post("/v1/signals", json={"signals": [signal]}).json()["accepted"] == 1
    world.slurm.end(job_id, "COMPLETED", exit_code=0)
    world.step(3)
    outcomes = [str(event.outcome) for event in world.service.audit.events() if isinstance(event, OutcomeReported)]
    assert sorted(outcomes[:2]) == ["allocation_restarted", "decision_executed"], "either may be seen first"
    assert outcomes[2:] == ["progress_resumed", "training_completed"]


def test_tasks_of_an_array_are_recovered_one_by_one(world: World) -> None:
    first = world.slurm.submit(1, tasks=3)
    world.step(3)
    second = str(int(first) + 1)
    world.slurm.end(second, exit_code=7)
    world.until(lambda: world.slurm.job(second).restart_count == 1)
    world.step(20)
    assert world.slurm.job(first).restart_count == 0
    told = world.service.get(f"/v1/attempts/{world.attempt(second)}").json()
    assert told["scheduler"] | {"uid": ""} == {
        "kind": "slurm", "job_id": first, "array_task": 1, "restart_count": 1, "uid": "",
    }  # fmt: skip


def test_only_the_leader_of_a_heterogeneous_job_is_acted_on(world: World) -> None:
    leader = world.slurm.submit(1, het=2)
    world.step(3)
    member = str(int(leader) + 1)
    world.slurm.end(member, exit_code=7)
    world.step(20)
    assert not world.touched(member)
    world.slurm.end(leader, exit_code=7)
    world.until(lambda: world.slurm.job(leader).restart_count == 1)


def test_a_purged_job_whose_end_nobody_saw_is_lost_and_not_failed(make_world: MakeWorld) -> None:
    world = make_world(has_accounting=False, min_job_age_s=5)
    job_id, other = world.running(), world.running()
    world.has_controller = False
    world.slurm.end(job_id)
    world.step(10)
    world.has_controller = True
    world.step(3)
    assert world.service.get(f"/v1/attempts/{world.attempt(job_id)}").json()["state"] == "LOST"
    assert world.service.get(f"/v1/attempts/{world.attempt(other)}").json()["state"] == "RUNNING"
