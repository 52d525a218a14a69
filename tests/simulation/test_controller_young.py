# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A controller that has only just begun."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from tests.simulation.conftest import MakeWorld


def test_a_job_that_fails_in_the_very_second_in_which_it_was_first_seen_is_recovered(make_world: MakeWorld) -> None:
    """Slurm tells times in whole seconds, so that an end may seem older than the controller that saw the run."""
    world = make_world()
    world.clock.at += timedelta(milliseconds=700)
    job_id = world.slurm.submit(2)
    world.controller.tick()
    world.slurm.end(job_id, exit_code=7)
    rounded = world.slurm._jobs[job_id]
    rounded.record = replace(rounded.record, end_at=world.clock.at.replace(microsecond=0))
    world.until(lambda: world.slurm.job(job_id).restart_count == 1, 30)
