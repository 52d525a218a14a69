# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The slurmrestd backend keeps the contract of every backend, in each version of the API that it speaks."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from controllers.slurm.rest import SlurmRest, spoken_version
from controllers.slurm.rest_versions import SUPPORTED, RestVerb, RestVersion
from relight.jobs import BatchScheduler, RefusalCode, SchedulerRefused
from relight.testing.scheduler import BatchSchedulerContract, FakeSlurm
from relight.types import AttemptState, NodeName
from tests.contracts.fake_slurmrestd import FakeSlurmrestd


class _Clock:
    at = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)

    def now(self) -> datetime:
        return self.at


class Told:
    """The fake Slurm through one version of slurmrestd, alone or with commands for what that lacks."""

    def __init__(self, version: int, *, has_commands: bool) -> None:
        self.clock = _Clock()
        self.slurm = FakeSlurm(self.clock)
        self.wire = FakeSlurmrestd(self.slurm, version)
        commands = self.slurm if has_commands else None
        self.rest = SlurmRest(wire=self.wire, version=spoken_version(self.wire), clock=self.clock, commands=commands)

    def failed(self) -> str:
        job_id = self.slurm.submit(1)
        self.slurm.end(job_id, exit_code=3)
        return job_id


class TestSlurmrestd(BatchSchedulerContract):
    @pytest.fixture(autouse=True, params=SUPPORTED)
    def reach(self, request: pytest.FixtureRequest) -> None:
        self._told = Told(request.param, has_commands=True)

    def scheduler(self) -> BatchScheduler:
        return self._told.rest

    def now(self) -> datetime:
        return self._told.clock.at

    def submit(self, *, nodes: int = 1, requeueable: bool = True, exclude: tuple[str, ...] = ()) -> str:
        return self._told.slurm.submit(nodes, requeueable=requeueable, exclude=exclude)

    def fail(self, job_id: str) -> None:
        self._told.slurm.end(job_id, exit_code=3)

    def wait(self, claim: Callable[[], bool]) -> None:
        for _ in range(300):
            if claim():
                return
            self._told.clock.at += timedelta(seconds=1)
        raise AssertionError("it never came true")


@pytest.mark.parametrize("version", SUPPORTED)
def test_what_a_version_can_do_goes_by_it_and_only_the_rest_by_commands(version: int) -> None:
    told = Told(version, has_commands=True)
    job_id = told.failed()
    told.rest.requeue_hold(job_id)
    told.rest.set_exclusions(job_id, (NodeName("n1"),))
    told.rest.mark(job_id, "relight:x")
    told.rest.release(job_id)
    told.rest.start_after(job_id, 5)
    sent = [(method, path.rsplit("/", 1)[-1], sorted(body or ())) for method, path, body in told.wire.requests[1:]]
    by_rest = [("POST", job_id, ["hold"]), ("POST", job_id, ["begin_time"])]
    if version >= 40:
        by_rest = [("POST", job_id, ["excluded_nodes"]), ("POST", job_id, ["admin_comment"]), *by_rest]
    if version >= 45:
        by_rest = [("GET", "requeue?Hold=true", []), *by_rest]
    assert sent == by_rest
    assert [deed.what for deed in told.slurm.deeds][-5:] == [
        "requeue_hold", "set_exclusions", "mark", "release", "start_after"
    ]  # fmt: skip


@pytest.mark.parametrize("version", [38, 42, 44])
def test_without_commands_what_a_version_lacks_is_refused_by_name_and_not_tried(version: int) -> None:
    told = Told(version, has_commands=False)
    job_id = told.failed()
    with pytest.raises(SchedulerRefused, match=rf"slurmrestd v0.0.{version} has no request for requeue_hold") as no:
        told.rest.requeue_hold(job_id)
    assert no.value.code is RefusalCode.OTHER
    assert told.slurm.job(job_id).state is AttemptState.FAILED


def test_the_newest_version_does_everything_without_commands() -> None:
    told = Told(45, has_commands=False)
    assert told.rest.missing() == ()
    job_id = told.failed()
    told.rest.requeue_hold(job_id)
    told.rest.set_exclusions(job_id, (NodeName("n1"),))
    told.rest.set_exclusions(job_id, ())
    reading = told.rest.show(job_id, told.clock.at)
    assert reading.job is not None
    assert (reading.job.is_held, reading.job.exc_nodes, reading.job.sluid) == (True, (), f"s{job_id}1")


@pytest.mark.parametrize(
    ("version", "marks_in", "missing"),
    [
        (38, "AdminComment", ("mark", "requeue_hold", "set_exclusions")),
        (38, "Comment", ("requeue_hold", "set_exclusions")),
        (40, "AdminComment", ("requeue_hold",)),
        (44, "AdminComment", ("requeue_hold",)),
        (45, "AdminComment", ()),
        (46, "Comment", ()),
    ],
)
def test_each_version_says_what_it_lacks(version: int, marks_in: str, missing: tuple[str, ...]) -> None:
    told = Told(version, has_commands=False)
    rest = SlurmRest(wire=told.wire, version=RestVersion(version), clock=told.clock, marks_in=marks_in)
    assert rest.missing() == missing
    assert rest.missing((RestVerb.RELEASE, RestVerb.CANCEL)) == ()


def test_without_commands_what_only_they_tell_is_unknown_and_not_made_up() -> None:
    told = Told(45, has_commands=False)
    job_id = told.failed()
    assert told.rest.history(job_id, told.clock.at) is None
    assert told.rest.rank_nodes(told.slurm.jobs()) == {}
    assert told.rest.clocks().requeue_delay_s is None
    assert told.rest.clocks().version == "fake"
