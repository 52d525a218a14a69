# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""kill -9 between every pair of steps of a recovery: generated from the recovery itself, not picked by hand."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from controllers.slurm.opt_in import OptInRules
from controllers.slurm.settings import ControllerSettings
from relight.types import AttemptState, Mode
from tests.simulation.conftest import MakeWorld
from tests.simulation.recovery_world import World

QUICK = ControllerSettings(opt_in=OptInRules(default=Mode.ACT), verify_after_s=2, settle_s=3, max_delay_s=0)
FAST = {"settings": QUICK, "requeue_delay_s": 4}
Story = Callable[[World], str]


def dead_gpu(world: World) -> str:
    """The cause is known at once: claimed, held, excluded, released."""
    job_id = world.running()
    world.reaper.calls = 0
    world.gpu_falls_off(job_id)
    return job_id


def silent_failure(world: World) -> str:
    """No cause in the log: held first, claimed after a while."""
    job_id = world.running()
    world.reaper.calls = 0
    world.slurm.end(job_id, exit_code=7)
    return job_id


def lost_node(world: World) -> str:
    """Slurm requeues by itself: adopted."""
    job_id = world.running()
    world.reaper.calls = 0
    world.slurm.node_down(world.slurm.job(job_id).nodes[0])
    return job_id


STORIES: tuple[Story, ...] = (dead_gpu, silent_failure, lost_node)


def finish(world: World, job_id: str) -> None:
    def is_over() -> bool:
        job = world.slurm.job(job_id)
        return job.state is AttemptState.RUNNING and world.store.get("pursuit", world.attempt(job_id, 0)) is None

    world.until(is_over)
    world.step(3)


def calls_of(make_world: MakeWorld, story: Story) -> int:
    world = make_world(**FAST)
    finish(world, story(world))
    return world.reaper.calls


def assert_recovered(world: World, job_id: str, story: Story) -> None:
    job = world.slurm.job(job_id)
    assert job.restart_count == 1, "one failure, one restart"
    assert world.deeds("requeued") == 1
    assert world.advice(job_id)["state"] == "CONVERGED"
    assert not job.is_held
    assert "relight:" not in job.marks
    if story is dead_gpu:
        assert set(job.exc_nodes) == {"n1"}
    world.check_audit()


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_controller_killed_after_any_step_of_a_recovery_restarts_the_job_once(
    make_world: MakeWorld, story: Story
) -> None:
    """Killed right after a step is killed right before the next one: nothing lies in between but memory."""
    total = calls_of(make_world, story)
    assert total > 20
    for number in range(1, total + 1):
        world = make_world(**FAST)
        job_id = story(world)
        world.reaper.at, world.reaper.is_after = world.reaper.calls + number, True
        finish(world, job_id)
        assert_recovered(world, job_id, story)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_a_controller_that_dies_for_good_after_any_step_holds_no_job_past_its_deadline(
    make_world: MakeWorld, story: Story
) -> None:
    """The watchdog alone is left: `World.check` looks after each second for holds that are overdue."""
    total = calls_of(make_world, story)
    for number in range(1, total + 1, 3):
        world = make_world(**FAST)
        job_id = story(world)
        world.reaper.at, world.reaper.is_after = world.reaper.calls + number, True
        while world.reaper.calls < world.reaper.at:
            world.step()
        world.has_controller = False
        world.clock.advance(seconds=50)
        world.step(14)
        assert not world.slurm.job(job_id).is_held
        assert world.slurm.job(job_id).restart_count <= 1


def test_a_watchdog_killed_after_any_step_still_lets_go_in_time(make_world: MakeWorld) -> None:
    def held_by_a_dead_controller() -> tuple[World, str]:
        world = make_world(**FAST)
        job_id = silent_failure(world)
        world.step()
        assert world.slurm.job(job_id).is_held
        world.has_controller = False
        world.watchdog_reaper.calls = 0
        return world, job_id

    world, job_id = held_by_a_dead_controller()
    world.until(lambda: not world.slurm.job(job_id).is_held)
    total = world.watchdog_reaper.calls
    assert total >= 4
    for number in range(1, total + 2):
        world, job_id = held_by_a_dead_controller()
        world.watchdog_reaper.at, world.watchdog_reaper.is_after = number, True
        world.clock.advance(seconds=50)
        world.step(14)
        assert not world.slurm.job(job_id).is_held
        assert world.deeds("requeued") == 1


def test_controller_and_watchdog_may_race_at_the_deadline(make_world: MakeWorld) -> None:
    for pause in range(4, 13):
        world = make_world(**FAST)
        job_id = silent_failure(world)
        world.step()
        world.has_controller = False
        world.clock.advance(seconds=50)
        world.step(pause)
        world.has_controller = True
        finish(world, job_id)
        assert_recovered(world, job_id, silent_failure)
