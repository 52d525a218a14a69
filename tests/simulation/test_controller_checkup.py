# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Why did nothing happen? The walk names the station where a job's way ends."""

from __future__ import annotations

from datetime import timedelta

import pytest

from controllers.slurm.advice import Advisor
from controllers.slurm.checkup import Checkup, Finding, Verdict, clock_findings
from relight.jobs import SchedulerClocks
from relight.testing.fake_slurm import Trouble
from service.tokens import Role
from tests.simulation.recovery_world import World


def walk(world: World, job_id: str | None) -> list[Finding]:
    checkup = Checkup(
        scheduler=world.slurm, opt_in=world.settings.opt_in, cluster=world.settings.cluster,
        advisor=Advisor(world.transport),
    )  # fmt: skip
    return list(checkup.walk(job_id, world.clock.at))


def ends(found: list[Finding]) -> list[tuple[str, str]]:
    return [(one.station, one.says) for one in found if one.verdict is Verdict.ENDS]


def test_a_recovery_that_went_well_ends_nowhere(world: World) -> None:
    job_id = world.running()
    world.gpu_falls_off(job_id)
    world.until(lambda: world.advice(job_id)["state"] == "CONVERGED")
    found = walk(world, job_id)
    assert any(one.station == "run 0: action" and "CONVERGED" in one.says for one in found)
    assert [station for station, _ in ends(found)] == ["run 1: advice"], "the new run has not failed"


@pytest.mark.parametrize(("comment", "station"), [("relight=off", "opt-in"), ("relight=act", "run 0: gates")])
def test_the_station_where_it_ends_is_named(world: World, comment: str, station: str) -> None:
    world.service.as_(Role.ADMIN).set_mode("monitor")
    job_id = world.slurm.submit(2, comment=comment)
    world.step(3)
    if comment == "relight=act":
        world.gpu_falls_off(job_id)
        world.step(3)
    assert [name for name, _ in ends(walk(world, job_id))] == [station]


def test_blindness_absence_and_a_silent_advisor_are_told_apart(world: World) -> None:
    job_id = world.running()
    world.transport.is_down = True
    assert ends(walk(world, job_id)) == [("advisor", "connection refused")]
    assert ends(walk(world, "999"))[0][0] == "job"
    world.slurm.trouble = Trouble.HANG
    assert ends(walk(world, job_id))[0][0] == "scheduler"


def test_slurms_own_clocks_are_explained(world: World) -> None:
    bad = SchedulerClocks(requeue_delay_s=120, min_job_age_s=60, requeues_by_default=False, has_accounting=False,
                          at=world.clock.at - timedelta(hours=2))  # fmt: skip
    stations = [one.station for one in clock_findings(bad, world.clock.at) if one.verdict is Verdict.MIND]
    assert stations == ["requeue delay", "purge", "JobRequeue", "accounting", "clock"]
    assert list(clock_findings(SchedulerClocks(), world.clock.at)) == []
