# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Where ranks run is published with the attempt, and names the node of a rank that the log accuses."""

from __future__ import annotations

from dataclasses import replace

from relight.jobs import JobRecord
from relight.types import AttemptId, AttemptState
from tests.simulation.recovery_world import World

ECC = "[rank2]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


def published(world: World, job_id: str, restart_count: int = 0) -> dict[str, str]:
    known = world.service.application.journal.state.attempts.get(AttemptId(world.attempt(job_id, restart_count)))
    return dict(known.detail("rank_to_node") or {}) if known is not None else {}


def test_ranks_are_published_with_the_attempt_and_stay_when_it_has_ended(world: World) -> None:
    job_id = world.running(2, tasks_per_node=2)
    nodes = world.slurm.job(job_id).nodes
    placed = {str(rank): nodes[rank // 2] for rank in range(4)}
    world.until(lambda: published(world, job_id) == placed, 10)
    world.slurm.end(job_id, exit_code=7)
    world.until(lambda: world.slurm.job(job_id).restart_count == 1)
    assert published(world, job_id) == placed


def test_what_is_not_known_is_not_published(world: World) -> None:
    job_id = world.running(2)
    world.step(20)
    assert published(world, job_id) == {}


def test_the_next_run_has_its_own_places(world: World) -> None:
    job_id = world.running(2, tasks_per_node=1)
    first = world.gpu_falls_off(job_id)
    world.until(lambda: world.slurm.job(job_id).state is AttemptState.RUNNING and bool(published(world, job_id, 1)))
    assert first in published(world, job_id).values()
    assert first not in published(world, job_id, 1).values()


def test_a_new_step_whose_layout_is_unknown_takes_back_what_was_published(world: World) -> None:
    job_id = world.running(2, tasks_per_node=1)
    world.until(lambda: bool(published(world, job_id)), 10)
    world.slurm._jobs[job_id].record = _unplaced(world.slurm.job(job_id))
    world.until(lambda: published(world, job_id) == {}, 90)


def test_a_rank_that_the_log_accuses_has_its_node_excluded(world: World) -> None:
    job_id = world.running(3, tasks_per_node=1)
    world.until(lambda: bool(published(world, job_id)), 10)
    node = world.slurm.job(job_id).nodes[2]
    world.say(job_id, ECC)
    world.slurm.end(job_id)
    world.until(lambda: world.slurm.job(job_id).restart_count == 1)
    world.until(lambda: node in world.slurm.job(job_id).exc_nodes, 60)


def test_without_places_the_same_words_exclude_nobody(world: World) -> None:
    """The near miss: the same log, but nobody knows where rank 2 ran."""
    job_id = world.running(3)
    world.say(job_id, ECC)
    world.slurm.end(job_id)
    world.until(lambda: world.slurm.job(job_id).restart_count == 1)
    world.step(30)
    assert world.slurm.job(job_id).exc_nodes == ()


def _unplaced(job: JobRecord) -> JobRecord:
    return replace(job, tasks_per_node=None)
