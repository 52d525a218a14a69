# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A recovery from end to end with slurmrestd between the controller and Slurm, in three generations of its API."""

from __future__ import annotations

from typing import Any, cast

import pytest

from controllers.slurm.advice import Advisor
from controllers.slurm.controller import Controller
from controllers.slurm.rest import SlurmRest
from controllers.slurm.rest_versions import RestVersion
from relight.testing.fake_slurm import Trouble
from relight.types import AttemptState
from tests.contracts.fake_slurmrestd import FakeSlurmrestd
from tests.simulation.recovery_world import World


def by_slurmrestd(world: World, version: int) -> FakeSlurmrestd:
    """The world's controller, started anew on slurmrestd; with commands only where the version lacks verbs."""
    wire = FakeSlurmrestd(world.slurm, version)
    rest = SlurmRest(
        wire=wire, version=RestVersion(version), clock=world.clock, commands=world.slurm if version < 45 else None
    )
    world.controller = Controller(
        world.settings, rest, Advisor(world.transport), cast(Any, world.store), world.slips, world.clock
    )
    return wire


@pytest.mark.parametrize("version", [38, 42, 45])
def test_a_dead_gpu_leads_to_one_restart_elsewhere(world: World, version: int) -> None:
    wire = by_slurmrestd(world, version)
    job_id = world.running(exclude=("n6",))
    bad = world.gpu_falls_off(job_id)
    world.until(lambda: world.slurm.job(job_id).state is AttemptState.RUNNING)
    job = world.slurm.job(job_id)
    assert (job.restart_count, set(job.exc_nodes)) == (1, {bad, "n6"})
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    world.check_audit()
    assert "relight:" not in job.marks
    requeued = [path for method, path, _ in wire.requests if "requeue" in path]
    assert len(requeued) == (1 if version >= 45 else 0), "once, and by commands where there is no request for it"


@pytest.mark.parametrize("version", [38, 42, 45])
def test_slurmrestd_without_slurmctld_is_blind_and_afterwards_the_recovery_goes_on(world: World, version: int) -> None:
    by_slurmrestd(world, version)
    job_id = world.running()
    world.slurm.end(job_id, exit_code=7)
    world.slurm.trouble = Trouble.ERROR
    world.step(20)
    assert world.last is not None
    assert world.last.is_blind
    assert not world.touched(job_id)
    world.slurm.trouble = None
    world.until(lambda: world.slurm.job(job_id).restart_count == 1)
    world.step(30)
    assert world.slurm.job(job_id).restart_count == 1
