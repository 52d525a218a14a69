# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A run that hangs while Slurm thinks that all is well, and what people propose for one."""

from __future__ import annotations

from relight.types import Anomaly, AnomalyKind, AttemptId, AttemptState
from service.tokens import Role
from tests.simulation.recovery_world import World


def hang(world: World, job_id: str) -> None:
    attempt = AttemptId(world.attempt(job_id))
    seen = Anomaly(attempt=attempt, kind=AnomalyKind.HANG, detector="hang", onset_at=world.clock.at,
                   detected_at=world.clock.at, score=2.0, summary="no step for 20 minutes")  # fmt: skip
    world.service.application.advisor.attribute(attempt, seen)


def test_advice_on_a_run_that_hangs_is_there_before_it_is_asked_for(world: World) -> None:
    job_id = world.running()
    hang(world, job_id)
    world.service.application.loop.tick(world.clock.now())
    unasked = world.advice(job_id)
    assert unasked["trigger"] == "detected"
    world.step(3)
    assert world.advice(job_id)["id"] == unasked["id"]
    if world.advice(job_id)["action"] == "restart":
        world.until(lambda: world.slurm.job(job_id).restart_count == 1)
    else:
        assert world.slurm.job(job_id).state is AttemptState.RUNNING


def slow(world: World, job_id: str) -> AttemptId:
    attempt = AttemptId(world.attempt(job_id))
    seen = Anomaly(attempt=attempt, kind=AnomalyKind.STRAGGLER, detector="straggler", onset_at=world.clock.at,
                   detected_at=world.clock.at, score=9.0, summary="rank 1 is slow", detail={"ratio": 3.0})  # fmt: skip
    world.service.application.advisor.attribute(attempt, seen)
    return attempt


def test_a_slow_run_that_comes_to_hang_is_asked_about_too(world: World) -> None:
    job_id = world.running()
    attempt = slow(world, job_id)
    world.step(3)
    said = world.advice(job_id)
    assert (said["action"], said["reason"]) == ("continue", "slowness_is_observed")
    assert not world.touched(job_id), "slowness alone is watched"
    hang(world, job_id)
    world.until(lambda: world.slurm.job(job_id).restart_count == 1)
    (incident,) = world.service.get("/v1/incidents", params={"attempt": attempt}).json()["items"]
    assert incident["anomalies"][:2] == ["straggler", "hang"]


def test_a_slow_run_is_ended_right_after_its_next_checkpoint(world: World) -> None:
    job_id = world.running()
    attempt = slow(world, job_id)

    def completes(checkpoint: int) -> None:
        said = {"attempt_id": attempt, "source": "rank", "source_event_id": str(checkpoint), "event_time": world.clock.at.isoformat(),
                "progress": {"step": checkpoint + 1, "checkpoint_step": checkpoint, "kind": "completed"}}  # fmt: skip
        answer = world.service.as_(Role.ADMIN).post("/v1/signals", json={"signals": [said]})
        assert answer.json()["accepted"] == 1, answer.text

    completes(100)
    body = {"attempt_id": attempt, "author": "ada", "proposed": {"action": "restart"}}
    proposed = world.service.as_(Role.ADMIN).post("/v1/recommendations", json=body).json()
    assert (proposed["action"], proposed["actionable"]) == ("restart", True), proposed
    world.step(20)
    assert not world.touched(job_id), "the work since the checkpoint would be lost"
    completes(200)
    world.step(2)
    assert world.touched(job_id)
    world.until(lambda: world.slurm.job(job_id).state is AttemptState.RUNNING)
    assert world.slurm.job(job_id).restart_count == 1


def test_a_restart_that_a_person_proposes_for_a_running_job_is_carried_out_once(world: World) -> None:
    job_id = world.running()
    body = {"attempt_id": world.attempt(job_id), "author": "ada", "proposed": {"action": "restart"}}
    answer = world.service.as_(Role.ADMIN).post("/v1/recommendations", json=body)
    assert answer.status_code == 201, answer.text
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    world.until(lambda: world.slurm.job(job_id).state is AttemptState.RUNNING)
    assert world.slurm.job(job_id).restart_count == 1
    world.check_audit()


def test_a_stop_that_a_person_proposes_holds_first_and_cancels_after_the_grace(world: World) -> None:
    job_id = world.running()
    body = {"attempt_id": world.attempt(job_id), "author": "ada", "proposed": {"action": "stop"}}
    assert world.service.as_(Role.ADMIN).post("/v1/recommendations", json=body).status_code == 201
    world.step(5)
    job = world.slurm.job(job_id)
    assert job.is_held
    assert "relight:stopped/" in job.marks
    world.step(300)
    assert world.slurm.job(job_id).is_held, "the watchdog does not undo a stop"
    world.clock.advance(seconds=1400)
    world.step(60)
    assert world.deeds("cancel") == 0, "half an hour is not over"
    world.until(lambda: world.slurm.job(job_id).state is AttemptState.CANCELLED_BY_USER)
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    assert ("cancel", "done") in world.milestones()


def test_who_releases_a_stopped_job_has_the_last_word(world: World) -> None:
    job_id = world.running()
    body = {"attempt_id": world.attempt(job_id), "author": "ada", "proposed": {"action": "stop"}}
    assert world.service.as_(Role.ADMIN).post("/v1/recommendations", json=body).status_code == 201
    world.until(lambda: world.slurm.job(job_id).is_held)
    world.step(2)
    world.slurm.user_releases(job_id)
    world.step(10)
    assert world.advice(job_id)["reconciliation"]["reason"] == "user_released"
    assert world.deeds("cancel") == 0
    assert not world.slurm.job(job_id).is_held
