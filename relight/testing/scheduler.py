# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The contract of every batch scheduler that a controller may act on, as tests to inherit."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from relight.jobs import BatchScheduler, JobRecord, RefusalCode, SchedulerRefused
from relight.testing.fake_slurm import Deed, FakeSlurm, Trouble
from relight.types import AttemptState, NodeName

__all__ = ["BatchSchedulerContract", "Deed", "FakeSlurm", "Trouble"]


class BatchSchedulerContract:
    """Inherit, and say how to reach a scheduler with at least three free nodes.

    `wait` is given a claim that is to come true, and lets time pass until it does or fails the test.
    """

    def scheduler(self) -> BatchScheduler:
        raise NotImplementedError

    def now(self) -> datetime:
        raise NotImplementedError

    def submit(self, *, nodes: int = 1, requeueable: bool = True, exclude: tuple[str, ...] = ()) -> str:
        """A job that runs until it is told to end."""
        raise NotImplementedError

    def fail(self, job_id: str) -> None:
        """Let the job's script end with exit code 3."""
        raise NotImplementedError

    def wait(self, claim: Callable[[], bool]) -> None:
        raise NotImplementedError

    # -------------------------------------------------------------- the tests

    def test_a_running_job_is_shown_with_its_nodes(self) -> None:
        job_id = self._running(nodes=2)
        job = self._job(job_id)
        assert (len(job.nodes), job.requested_nodes, job.restart_count) == (2, 2, 0)
        assert job.is_batch
        assert job.requeueable
        assert not job.is_held
        assert any(one.job_id == job_id for one in self._survey_jobs())

    def test_nodes_are_surveyed_with_their_partition(self) -> None:
        reading = self.scheduler().survey(self.now())
        assert not reading.is_blind
        assert sum(node.is_usable for node in reading.nodes) >= 3
        assert all(node.partitions for node in reading.nodes)

    def test_a_job_that_never_was_is_absent_and_not_blind(self) -> None:
        reading = self.scheduler().show("999999", self.now())
        assert reading.is_absent
        assert not reading.is_blind

    def test_a_failure_keeps_its_exit_code(self) -> None:
        job = self._job(self._failed())
        assert (job.state, job.exit_code, job.signal) == (AttemptState.FAILED, 3, None)

    def test_a_failed_job_is_requeued_held_and_counts_one_restart(self) -> None:
        job_id = self._failed()
        self.scheduler().requeue_hold(job_id)
        self.wait(lambda: self._job(job_id).state is AttemptState.PENDING)
        job = self._job(job_id)
        assert job.is_held
        assert not job.is_schedulers_hold
        assert job.restart_count == 1

    def test_a_second_requeue_is_refused_and_changes_nothing(self) -> None:
        job_id = self._held()
        assert self._refused(lambda: self.scheduler().requeue_hold(job_id)) is RefusalCode.ALREADY_PENDING
        assert self._job(job_id).restart_count == 1

    def test_a_job_that_must_not_be_requeued_is_refused(self) -> None:
        job_id = self._running(requeueable=False)
        assert self._refused(lambda: self.scheduler().requeue_hold(job_id)) is RefusalCode.NOT_REQUEUEABLE
        assert self._job(job_id).state is AttemptState.RUNNING

    def test_exclusions_replace_the_list_and_may_be_repeated(self) -> None:
        job_id = self._held()
        first, second = (node.name for node in self.scheduler().survey(self.now()).nodes[:2])
        for nodes in ((first, second), (second,), (second,)):
            self.scheduler().set_exclusions(job_id, nodes)
        assert self._job(job_id).exc_nodes == (second,)
        self.scheduler().set_exclusions(job_id, ())
        assert self._job(job_id).exc_nodes == ()

    def test_exclusions_of_a_running_job_are_refused(self) -> None:
        job_id = self._running()
        name = self._job(job_id).nodes[0]
        refused = self._refused(lambda: self.scheduler().set_exclusions(job_id, (name,)))
        assert refused is RefusalCode.NOT_PENDING

    def test_an_unknown_node_is_refused(self) -> None:
        job_id = self._held()
        refused = self._refused(lambda: self.scheduler().set_exclusions(job_id, (NodeName("no-such-node"),)))
        assert refused is RefusalCode.INVALID_NODE

    def test_a_mark_is_read_back_and_taken_away_again(self) -> None:
        job_id = self._held()
        self.scheduler().mark(job_id, "relight:deciding/r-1/1/1/1800000000/1800000060")
        assert "relight:deciding/r-1/1/1/1800000000/1800000060" in self._job(job_id).marks
        self.scheduler().mark(job_id, "")
        assert "relight:" not in self._job(job_id).marks

    def test_a_released_job_starts_soon_if_its_begin_time_is_brought_forward(self) -> None:
        job_id = self._held()
        for _ in range(2):  # twice is once
            self.scheduler().release(job_id)
        # Not at once: a node that is not done with the run before may end the new one with it.
        self.scheduler().start_after(job_id, 3)
        self.wait(lambda: self._job(job_id).state is AttemptState.RUNNING)
        assert self._job(job_id).restart_count == 1

    def test_a_released_job_waits_for_its_begin_time(self) -> None:
        job_id = self._held()
        self.scheduler().release(job_id)
        self.scheduler().start_after(job_id, 600)
        job = self._job(job_id)
        assert not job.is_held
        assert job.state is AttemptState.PENDING
        assert job.eligible_at is not None
        assert (job.eligible_at - self.now()).total_seconds() > 500

    def test_a_hold_keeps_a_pending_job(self) -> None:
        job_id = self._held()
        self.scheduler().release(job_id)
        for _ in range(2):
            self.scheduler().hold(job_id)
        assert self._job(job_id).is_held

    def test_a_cancelled_job_is_over_and_may_be_cancelled_again(self) -> None:
        job_id = self._running()
        self.scheduler().cancel(job_id)
        self.wait(lambda: self._job(job_id).state is AttemptState.CANCELLED_BY_USER)
        self.scheduler().cancel(job_id)
        self.scheduler().cancel("999999")

    def test_verbs_on_a_job_that_never_was_are_refused(self) -> None:
        scheduler = self.scheduler()
        for verb in (scheduler.requeue_hold, scheduler.release, scheduler.hold):
            assert self._refused(lambda verb=verb: verb("999999")) is RefusalCode.NOT_FOUND  # type: ignore[misc]

    # -------------------------------------------------------------- what they are made of

    def _survey_jobs(self) -> tuple[JobRecord, ...]:
        reading = self.scheduler().survey(self.now())
        assert not reading.is_blind, reading.why_blind
        return reading.jobs

    def _job(self, job_id: str) -> JobRecord:
        reading = self.scheduler().show(job_id, self.now())
        assert reading.job is not None, reading.why_blind or f"job {job_id} is absent"
        return reading.job

    def _running(self, *, nodes: int = 1, requeueable: bool = True) -> str:
        job_id = self.submit(nodes=nodes, requeueable=requeueable)
        self.wait(lambda: self._job(job_id).state is AttemptState.RUNNING)
        return job_id

    def _failed(self) -> str:
        job_id = self._running()
        self.fail(job_id)
        self.wait(lambda: self._job(job_id).state is AttemptState.FAILED)
        return job_id

    def _held(self) -> str:
        job_id = self._failed()
        self.scheduler().requeue_hold(job_id)
        self.wait(lambda: self._job(job_id).is_held)
        return job_id

    def _refused(self, verb: Callable[[], None]) -> RefusalCode:
        try:
            verb()
        except SchedulerRefused as refusal:
            return refusal.code
        raise AssertionError("the scheduler did not refuse")
