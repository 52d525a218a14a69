# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A scheduler that hangs, lies, forgets or loses its answers, an advisor that is silent, holds that are not ours."""

from __future__ import annotations

from datetime import timedelta

import pytest

from relight.hold_mark import HoldMark, MarkState, with_mark
from relight.testing.fake_slurm import Trouble
from relight.types import AttemptState, NodeName, RecommendationId
from tests.simulation.conftest import MakeWorld
from tests.simulation.recovery_world import World


@pytest.mark.parametrize("trouble", list(Trouble))
def test_a_blind_scheduler_means_nothing_and_afterwards_the_recovery_goes_on(world: World, trouble: Trouble) -> None:
    job_id, other = world.running(), world.running()
    bad = world.gpu_falls_off(job_id)
    world.slurm.trouble = trouble
    world.step(30)
    assert world.last is not None
    assert world.last.is_blind
    assert not world.touched(job_id)
    told = world.service.get(f"/v1/attempts/{world.attempt(other)}").json()
    assert told["state"] == "RUNNING", "not seeing a job is not its end"
    world.slurm.trouble = None
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    assert bad in world.slurm.job(job_id).exc_nodes
    assert world.slurm.job(job_id).restart_count == 1


@pytest.mark.parametrize("trouble", list(Trouble))
@pytest.mark.parametrize("after", range(1, 7))
def test_trouble_in_the_middle_of_the_verbs_is_sat_out(make_world: MakeWorld, trouble: Trouble, after: int) -> None:
    """From the n-th verb on the scheduler is gone for a while."""
    world = make_world()
    job_id = world.running()
    world.gpu_falls_off(job_id)
    sent = world.deeds_of(job_id)
    inner = world.slurm._done

    def failing(what: str, one: object) -> None:
        inner(what, one)  # type: ignore[arg-type]
        if world.deeds_of(job_id) - sent >= after and world.slurm.trouble is None and not recovered:
            world.slurm.trouble = trouble

    recovered: list[bool] = []
    world.slurm._done = failing  # type: ignore[method-assign]
    world.has_watchdog = False
    world.step(20)
    recovered.append(True)
    world.slurm.trouble = None
    world.has_watchdog = True
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    assert world.slurm.job(job_id).restart_count == 1
    assert world.deeds("requeued") == 1
    world.check_audit()


def test_answers_that_are_lost_are_read_back_and_not_repeated(world: World) -> None:
    job_id = world.running()
    bad = world.gpu_falls_off(job_id)
    world.slurm.loses_answers = True
    world.until(lambda: bad in world.slurm.job(job_id).exc_nodes and not world.slurm.job(job_id).is_held)
    world.slurm.loses_answers = False
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    assert world.deeds("requeued") == 1
    assert world.deeds("requeue_hold") == 1
    assert world.deeds("set_exclusions") == 1
    world.check_audit()


@pytest.mark.parametrize("second", range(0, 12, 2))
def test_what_a_fail_over_of_slurmctld_forgot_is_done_again(make_world: MakeWorld, second: int) -> None:
    world = make_world(save_every_s=7)
    job_id = world.running()
    world.step(7)
    bad = world.gpu_falls_off(job_id)
    world.step(second + 1)
    world.slurm.fail_over()
    if world.slurm.job(job_id).state is AttemptState.RUNNING and world.slurm.job(job_id).restart_count == 0:
        world.slurm.end(job_id)  # the processes are dead, and slurmctld finds out
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    job = world.slurm.job(job_id)
    assert job.restart_count == 1
    assert bad in job.exc_nodes
    assert not job.is_held


def test_an_empty_queue_after_a_full_one_is_believed_only_when_seen_twice(world: World) -> None:
    job_id = world.running()
    jobs, world.slurm._jobs = world.slurm._jobs, {}
    world.step()
    assert world.last is not None
    assert world.last.is_blind
    assert "not believed" in world.last.why
    world.slurm._jobs = jobs
    world.step()
    assert not world.last.is_blind
    assert world.service.get(f"/v1/attempts/{world.attempt(job_id)}").json()["state"] == "RUNNING"


def test_a_silent_advisor_leaves_a_failed_job_to_slurm(world: World) -> None:
    job_id = world.running()
    world.transport.is_down = True
    world.slurm.end(job_id, exit_code=7)
    world.step(60)
    assert not world.touched(job_id), "no hold without somebody who decides"
    world.transport.is_down = False
    world.until(lambda: world.slurm.job(job_id).restart_count == 1)


def test_an_advisor_that_falls_silent_while_a_job_is_held_lets_it_go_in_time(make_world: MakeWorld) -> None:
    world = make_world()
    world.with_settings(settle_s=30)
    world.has_watchdog = False
    job_id = world.running()
    world.slurm.end(job_id, exit_code=7)
    world.step(2)
    assert world.slurm.job(job_id).is_held
    world.transport.is_down = True
    world.until(lambda: not world.slurm.job(job_id).is_held, 70)
    assert world.slurm.job(job_id).restart_count == 1
    world.transport.is_down = False
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    world.check_audit()


def test_a_second_controller_waits_for_the_first_ones_lease(make_world: MakeWorld) -> None:
    """Another store, another name, the same cluster: the claim is the fence."""
    world, rival = make_world(), make_world()
    rival.slurm, rival.service, rival.clock, rival.transport = world.slurm, world.service, world.clock, world.transport
    rival.with_settings(controller_id="rival")
    job_id = world.running()
    rival.controller.tick()
    bad = world.gpu_falls_off(job_id)
    for _ in range(40):
        world.step()
        rival.controller.tick()
    assert world.slurm.job(job_id).restart_count == 1
    assert world.deeds("requeued") == 1
    assert bad in world.slurm.job(job_id).exc_nodes


# ------------------------------------------------------------------ the watchdog alone


def held_job(world: World, mark: HoldMark | None, *, reason: str = "") -> str:
    world.has_controller = False
    job_id = world.slurm.submit(1)
    world.step()
    world.slurm.end(job_id)
    world.slurm.requeue_hold(job_id)
    if mark is not None:
        world.slurm.mark(job_id, with_mark("ticket 4711", mark))
    if reason:
        world.slurm._change(job_id, priority=0, reason=reason)
    return job_id


def mark_of(world: World, state: MarkState = MarkState.DECIDING, *, restart: int = 1, seconds: int = 30) -> HoldMark:
    return HoldMark(
        recommendation=RecommendationId("r-1"), generation=1, restart_count=restart, placed_at=world.clock.at,
        until=world.clock.at + timedelta(seconds=seconds), state=state,
    )  # fmt: skip


def test_the_watchdog_releases_a_marked_hold_at_its_deadline_and_not_before(world: World) -> None:
    job_id = held_job(world, mark_of(world))
    world.step(27)
    assert world.slurm.job(job_id).is_held
    world.step(5)
    job = world.slurm.job(job_id)
    assert not job.is_held
    assert job.admin_comment == "ticket 4711", "other people's words stay"


def test_the_hard_deadline_counts_whatever_the_mark_says(world: World) -> None:
    job_id = held_job(world, mark_of(world, seconds=100_000))
    world.step(236)
    assert world.slurm.job(job_id).is_held
    world.step(8)
    assert not world.slurm.job(job_id).is_held


def test_a_mark_that_is_renewed_again_and_again_gains_no_time(world: World) -> None:
    job_id = held_job(world, mark_of(world))
    for _ in range(28):
        if not world.slurm.job(job_id).is_held:
            break
        world.slurm.mark(job_id, mark_of(world, seconds=20).text())
        world.step(10)
    assert not world.slurm.job(job_id).is_held


def test_a_slip_stands_for_a_mark_that_could_not_be_set(world: World) -> None:
    job_id = held_job(world, None)
    world.slips.put(job_id, mark_of(world))
    world.step(35)
    assert not world.slurm.job(job_id).is_held


@pytest.mark.parametrize(
    ("state", "restart", "reason"),
    [
        (None, 1, "JobHeldUser"),
        (MarkState.STOPPED, 1, ""),
        (MarkState.DECIDING, 7, ""),
        (MarkState.DECIDING, 1, "JobHoldMaxRequeue"),
    ],
    ids=["a user's hold", "a stop", "the mark of another run", "slurm's own hold"],
)
def test_the_watchdog_leaves_alone_what_does_not_await_our_decision(
    world: World, state: MarkState | None, restart: int, reason: str
) -> None:
    mark = None if state is None else mark_of(world, state, restart=restart)
    job_id = held_job(world, mark, reason=reason)
    world.step(300)
    assert world.slurm.job(job_id).is_held


def test_a_blind_watchdog_releases_as_soon_as_it_sees_again(world: World) -> None:
    job_id = held_job(world, mark_of(world, seconds=10))
    world.slurm.trouble = Trouble.HANG
    for _ in range(5):
        world.watchdog.tick()
    world.slurm.trouble = None
    world.clock.advance(seconds=60)
    told = world.watchdog.tick()
    assert told.released == (job_id,)
    assert NodeName("n1") not in world.slurm.job(job_id).exc_nodes
