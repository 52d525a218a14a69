# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A Slurm in memory and in virtual time: the same port, the same refusals, and faults on demand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from relight.jobs import (
    ClusterReading,
    EndedRun,
    JobReading,
    JobRecord,
    RefusalCode,
    SchedulerClocks,
    SchedulerRefused,
    SchedulerUnreachable,
)
from relight.testing.fake_cluster import FakeCluster
from relight.testing.fake_job import OVER, REQUEUED_REASON, Deed, FakeJob, Trouble
from relight.types import AttemptState, NodeName

__all__ = ["REQUEUED_REASON", "Deed", "FakeSlurm", "Trouble"]


class FakeSlurm(FakeCluster):
    """A deterministic `BatchScheduler`. Time passes by its clock; every look brings it up to date.

    `trouble` makes reads blind and verbs unreachable; `loses_answers` carries a verb out and then says
    nothing of it; `fail_over` forgets what happened since the last save.
    """

    name = "slurm"
    trouble: Trouble | None = None
    loses_answers = False

    # -------------------------------------------------------------- what users and the world do

    def submit(
        self,
        nodes: int = 2,
        *,
        comment: str = "",
        user: str = "ada",
        exclude: Sequence[str] = (),
        requeueable: bool = True,
        is_batch: bool = True,
        tasks_per_node: int | None = None,
        tasks: int = 0,
        het: int = 0,
        name: str = "train",
    ) -> str:
        """Queue a job; `tasks` makes an array, `het` a heterogeneous job. The first id is returned.

        `tasks_per_node` is how many ranks each node gets; without it nobody knows where ranks run.
        """
        first = self._next
        count = max(tasks, het, 1)
        for index in range(count):
            record = JobRecord(
                job_id=str(self._next), state=AttemptState.PENDING, native_state="PENDING", name=name, user=user,
                uid="1000", partition=self.partition, submit_at=self._now(), eligible_at=self._now(), priority=1,
                requested_nodes=nodes, exc_nodes=tuple(map(NodeName, exclude)), requeueable=requeueable,
                is_batch=is_batch, comment=comment, tasks_per_node=tasks_per_node,
                array_job=str(first) if tasks else None, array_task=index if tasks else None,
                het_leader=str(first) if het else None, het_offset=index if het else None,
                log_paths=(f"/logs/{self._next}.out",),
            )  # fmt: skip
            self._jobs[record.job_id] = FakeJob(record, nodes, begin_at=self._now())
            self._next += 1
        self._settle()
        return str(first)

    def job(self, job_id: str) -> JobRecord:
        """The truth, whatever trouble there is. Errors: KeyError."""
        self._settle()
        return self._jobs[job_id].record

    def jobs(self) -> tuple[JobRecord, ...]:
        self._settle()
        return tuple(one.record for one in self._jobs.values())

    def end(
        self, job_id: str, state: str = "FAILED", *, exit_code: int = 1, signal: int | None = None, reason: str = ""
    ) -> None:
        """A running job ends in one of Slurm's states."""
        self._settle()
        why = reason or ("NonZeroExitCode" if state == "FAILED" else "")
        self._end(self._jobs[job_id], state, exit_code, signal, why)
        self._settle()

    def node_down(self, node: str) -> None:
        """A node stops answering: its jobs end as NODE_FAIL, and Slurm requeues those that it may."""
        self._settle()
        name = NodeName(node)
        self._nodes[name] = "down*"
        for one in list(self._jobs.values()):
            if one.record.native_state == "RUNNING" and name in one.record.nodes:
                self._end(one, "NODE_FAIL", 0, 15, "NodeDown", failed=(name,))
                if one.record.requeueable and one.record.is_batch:
                    one.own_requeues += 1
                    self._requeue(one, is_held=one.own_requeues > self.max_batch_requeue, reason="JobHoldMaxRequeue")
        self._settle()

    def node_up(self, node: str) -> None:
        self._nodes[NodeName(node)] = "idle"
        self._settle()

    def drain(self, node: str, reason: str = "") -> None:
        """Somebody takes a node out; a real Slurm signs the reason: `fans loud [ada@2026-11-29T22:10:00]`."""
        self._nodes[NodeName(node)] = "drained"
        self._reasons[NodeName(node)] = reason

    def preempt(self, job_id: str) -> None:
        """A job of higher priority takes the nodes: the run ends, and the job waits again."""
        one = self._jobs[job_id]
        self._end(one, "PREEMPTED", 0, 15, "")
        self._requeue(one, is_held=False)

    def user_holds(self, job_id: str) -> None:
        self._change(job_id, priority=0, reason="JobHeldUser")

    def user_releases(self, job_id: str) -> None:
        self._change(job_id, priority=1, reason="")
        self._settle()

    def user_cancels(self, job_id: str) -> None:
        self._cancel(self._jobs[job_id], "1000")

    # -------------------------------------------------------------- reads

    def survey(self, now: datetime) -> ClusterReading:
        if self.trouble is not None:
            return ClusterReading(at=now, is_blind=True, why_blind=f"fake trouble: {self.trouble}")
        self._settle()
        jobs = tuple(one.record for one in self._jobs.values())
        return ClusterReading(at=now, is_blind=False, jobs=jobs, nodes=self._node_records())

    def show(self, job_id: str, now: datetime) -> JobReading:
        if self.trouble is not None:
            return JobReading(at=now, is_blind=True, why_blind=f"fake trouble: {self.trouble}")
        self._settle()
        found = self._jobs.get(job_id)
        return JobReading(at=now, job=found.record if found else None)

    def history(self, job_id: str, now: datetime) -> tuple[EndedRun, ...] | None:  # noqa: ARG002 -- the port's
        found = self._jobs.get(job_id)
        return tuple(found.rows) if found and self.has_accounting and self.trouble is None else None

    def rank_nodes(self, jobs: Sequence[JobRecord]) -> Mapping[str, tuple[NodeName, ...]]:
        """Where it is asked for by `tasks_per_node`, ranks are laid out in blocks; else one cannot know."""
        if self.trouble is not None:
            return {}
        known = [self._jobs[job.job_id].record for job in jobs if job.job_id in self._jobs]
        running = [one for one in known if one.native_state == "RUNNING"]
        return {one.job_id: tuple(n for n in one.nodes for _ in range(one.tasks_per_node or 0)) for one in running}

    def clocks(self) -> SchedulerClocks:
        return SchedulerClocks(
            requeue_delay_s=self.requeue_delay_s, min_job_age_s=self.min_job_age_s, requeues_by_default=True,
            has_accounting=self.has_accounting, cluster="fake", version="22.05.8", at=self._now(),
        )  # fmt: skip

    # -------------------------------------------------------------- verbs

    def marked_text(self, job: JobRecord) -> str:
        return job.admin_comment

    def mark(self, job_id: str, text: str) -> None:
        one = self._asked(job_id)
        if one.record.native_state in OVER:
            raise SchedulerRefused(RefusalCode.NOT_PENDING, f"Job has already finished for job {job_id}")
        one.record = replace(one.record, admin_comment=text)
        self._done("mark", one)

    def requeue_hold(self, job_id: str) -> None:
        one = self._asked(job_id)
        if not one.record.is_batch:
            raise SchedulerRefused(RefusalCode.NOT_BATCH, "Only batch jobs are accepted or processed")
        if not one.record.requeueable:
            raise SchedulerRefused(RefusalCode.NOT_REQUEUEABLE, "Requested operation is presently disabled")
        if one.record.native_state == "PENDING":
            raise SchedulerRefused(RefusalCode.ALREADY_PENDING, f"Job is pending execution for job {job_id}")
        if one.record.native_state == "RUNNING":
            one.remember("REQUEUED", self._now())
        elif one.rows:  # as accounting has it: how the run had ended is not to be read there any more
            one.rows[-1] = replace(one.rows[-1], state=None, native_state="REQUEUED")
        self._requeue(one, is_held=True)
        self._done("requeue_hold", one)

    def hold(self, job_id: str) -> None:
        one = self._asked(job_id)
        if one.record.native_state == "PENDING":
            one.record = replace(one.record, priority=0, reason="JobHeldAdmin")
        self._done("hold", one)

    def set_exclusions(self, job_id: str, nodes: Sequence[NodeName]) -> None:
        one = self._asked(job_id)
        if one.record.native_state != "PENDING":
            raise SchedulerRefused(RefusalCode.NOT_PENDING, f"Job is no longer pending execution for job {job_id}")
        if unknown := [node for node in nodes if node not in self._nodes]:
            raise SchedulerRefused(RefusalCode.INVALID_NODE, f"Invalid node name specified: {unknown[0]}")
        one.record = replace(one.record, exc_nodes=tuple(sorted(nodes)))
        self._done("set_exclusions", one)

    def release(self, job_id: str) -> None:
        one = self._asked(job_id)
        if one.record.native_state == "PENDING":
            one.record = replace(one.record, priority=1, reason="")
        self._done("release", one)

    def start_after(self, job_id: str, delay_s: int) -> None:
        one = self._asked(job_id)
        if one.record.native_state != "PENDING":
            raise SchedulerRefused(RefusalCode.NOT_PENDING, f"Job is no longer pending execution for job {job_id}")
        one.begin_at = self._now() + timedelta(seconds=delay_s)
        one.record = replace(one.record, eligible_at=one.begin_at)
        self._done("start_after", one)

    def cancel(self, job_id: str) -> None:
        if self.trouble is not None:
            raise SchedulerUnreachable(f"fake trouble: {self.trouble}")
        if (one := self._jobs.get(job_id)) is not None and one.record.native_state not in OVER:
            self._cancel(one, "0")
            self._done("cancel", one)

    def _asked(self, job_id: str) -> FakeJob:
        if self.trouble is not None:
            raise SchedulerUnreachable(f"fake trouble: {self.trouble}")
        self._settle()
        if job_id not in self._jobs:
            raise SchedulerRefused(RefusalCode.NOT_FOUND, "Invalid job id specified")
        return self._jobs[job_id]

    def _done(self, what: str, one: FakeJob) -> None:
        self._tell(what, one)
        self._settle()
        if self.loses_answers:
            raise SchedulerUnreachable(f"{what}: the answer was lost")
