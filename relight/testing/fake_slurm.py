# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A Slurm in memory and in virtual time: the same port, the same refusals, and faults on demand."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from relight.jobs import (
    ClusterReading,
    EndedRun,
    JobReading,
    JobRecord,
    RefusalCode,
    SchedulerClocks,
    SchedulerNode,
    SchedulerRefused,
    SchedulerUnreachable,
)
from relight.ports import Clock
from relight.types import AttemptState, NodeName

REQUEUED_REASON = "job_requeued_in_held_state"
_OVER = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})
_STATES = {
    "PENDING": AttemptState.PENDING,
    "RUNNING": AttemptState.RUNNING,
    "COMPLETING": AttemptState.ENDING,
    "COMPLETED": AttemptState.COMPLETED,
    "CANCELLED": AttemptState.CANCELLED_BY_USER,
    "FAILED": AttemptState.FAILED,
    "OUT_OF_MEMORY": AttemptState.FAILED,
    "TIMEOUT": AttemptState.TIMED_OUT,
    "NODE_FAIL": AttemptState.NODE_FAILED,
    "PREEMPTED": AttemptState.PREEMPTED,
}


class Trouble(StrEnum):
    """How the scheduler fails to answer."""

    HANG = "hang"
    EMPTY = "empty"
    GARBAGE = "garbage"
    ERROR = "error"


@dataclass
class _Job:
    record: JobRecord
    wanted: int
    rows: list[EndedRun] = field(default_factory=list)
    begin_at: datetime | None = None
    own_requeues: int = 0
    completing_until: datetime | None = None
    after_completing: str = ""


@dataclass(frozen=True, slots=True)
class Deed:
    """A verb that was carried out, or a start, or an end."""

    at: datetime
    what: str
    job_id: str
    restart_count: int
    nodes: tuple[NodeName, ...] = ()


class FakeSlurm:
    """A deterministic `BatchScheduler`. Time passes by its clock; every look brings it up to date.

    `trouble` makes reads blind and verbs unreachable; `loses_answers` carries a verb out and then says
    nothing of it; `fail_over` forgets what happened since the last save.
    """

    name = "slurm"

    def __init__(
        self,
        clock: Clock,
        nodes: int = 4,
        *,
        partition: str = "gpu",
        requeue_delay_s: float = 120,
        min_job_age_s: float = 300,
        max_batch_requeue: int = 5,
        save_every_s: float = 5,
        completing_s: float = 0,
        has_accounting: bool = True,
    ) -> None:
        self.clock = clock
        self.partition = partition
        self.requeue_delay_s, self.min_job_age_s = requeue_delay_s, min_job_age_s
        self.max_batch_requeue, self.completing_s = max_batch_requeue, completing_s
        self.has_accounting = has_accounting
        self.trouble: Trouble | None = None
        self.loses_answers = False
        self.deeds: list[Deed] = []
        self._save_every = timedelta(seconds=save_every_s)
        self._nodes = {NodeName(f"n{index + 1}"): "idle" for index in range(nodes)}
        self._jobs: dict[str, _Job] = {}
        self._next = 1
        self._saved_at, self._saved = clock.now(), copy.deepcopy(self._jobs)

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
        tasks: int = 0,
        het: int = 0,
        name: str = "train",
    ) -> str:
        """Queue a job; `tasks` makes an array, `het` a heterogeneous job. The first id is returned."""
        first = self._next
        count = max(tasks, het, 1)
        for index in range(count):
            record = JobRecord(
                job_id=str(self._next), state=AttemptState.PENDING, native_state="PENDING", name=name, user=user,
                uid="1000", partition=self.partition, submit_at=self._now(), eligible_at=self._now(), priority=1,
                requested_nodes=nodes, exc_nodes=tuple(map(NodeName, exclude)), requeueable=requeueable,
                is_batch=is_batch, comment=comment, array_job=str(first) if tasks else None,
                array_task=index if tasks else None, het_leader=str(first) if het else None,
                het_offset=index if het else None, log_paths=(f"/logs/{self._next}.out",),
            )  # fmt: skip
            self._jobs[record.job_id] = _Job(record, nodes, begin_at=self._now())
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

    def drain(self, node: str) -> None:
        self._nodes[NodeName(node)] = "drained"

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

    def fail_over(self) -> None:
        """The backup controller takes over with the last state that was saved."""
        self._settle()
        self._jobs = copy.deepcopy(self._saved)

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
        if one.record.native_state in _OVER:
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
            self._row(one, "REQUEUED")
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
        if (one := self._jobs.get(job_id)) is not None and one.record.native_state not in _OVER:
            self._cancel(one, "0")
            self._done("cancel", one)

    # -------------------------------------------------------------- inside

    def _now(self) -> datetime:
        return self.clock.now()

    def _asked(self, job_id: str) -> _Job:
        if self.trouble is not None:
            raise SchedulerUnreachable(f"fake trouble: {self.trouble}")
        self._settle()
        if job_id not in self._jobs:
            raise SchedulerRefused(RefusalCode.NOT_FOUND, "Invalid job id specified")
        return self._jobs[job_id]

    def _done(self, what: str, one: _Job) -> None:
        self._tell(what, one)
        self._settle()
        if self.loses_answers:
            raise SchedulerUnreachable(f"{what}: the answer was lost")

    def _tell(self, what: str, one: _Job) -> None:
        record = one.record
        self.deeds.append(Deed(self._now(), what, record.job_id, record.restart_count, record.nodes))

    def _change(self, job_id: str, *, priority: int, reason: str) -> None:
        one = self._jobs[job_id]
        one.record = replace(one.record, priority=priority, reason=reason)

    def _cancel(self, one: _Job, by: str) -> None:
        if one.record.native_state == "RUNNING":
            self._end(one, "CANCELLED", 0, 15, "", by=by)
        elif one.record.native_state not in _OVER:
            one.record = replace(
                one.record, native_state="CANCELLED", state=AttemptState.CANCELLED_BY_USER, end_at=self._now(),
                cancelled_by=by,
            )  # fmt: skip

    def _end(
        self,
        one: _Job,
        state: str,
        exit_code: int,
        signal: int | None,
        reason: str,
        *,
        failed: tuple[NodeName, ...] = (),
        by: str = "",
    ) -> None:
        if one.record.native_state != "RUNNING":
            raise ValueError(f"job {one.record.job_id} is {one.record.native_state}, only a running one ends")
        ended = replace(
            one.record, native_state=state, state=_STATES[state], reason=reason, exit_code=exit_code, signal=signal,
            end_at=self._now(), failed_nodes=failed, cancelled_by=by,
        )  # fmt: skip
        one.record = ended
        self._row(one, state)
        self._tell(f"ended:{state}", one)
        if self.completing_s:
            one.completing_until, one.after_completing = self._now() + timedelta(seconds=self.completing_s), state
            one.record = replace(ended, native_state="COMPLETING", state=AttemptState.ENDING)

    def _row(self, one: _Job, state: str) -> None:
        record = one.record
        one.rows.append(
            EndedRun(
                restart_index=len(one.rows), state=_STATES.get(state), native_state=state, submit_at=record.submit_at,
                end_at=self._now(), nodes=record.nodes, exit_code=record.exit_code, signal=record.signal,
                cancelled_by=record.cancelled_by,
            )
        )  # fmt: skip

    def _requeue(self, one: _Job, *, is_held: bool, reason: str = REQUEUED_REASON) -> None:
        now = self._now()
        one.begin_at = now + timedelta(seconds=self.requeue_delay_s + 1)
        one.completing_until = None
        one.record = replace(
            one.record, native_state="PENDING", state=AttemptState.PENDING, nodes=(), failed_nodes=(),
            restart_count=one.record.restart_count + 1, submit_at=now, eligible_at=one.begin_at, end_at=None,
            start_at=one.begin_at, priority=0 if is_held else 1, reason=reason if is_held else "BeginTime",
        )  # fmt: skip
        self._tell("requeued", one)

    def _settle(self) -> None:
        """Bring everything up to the present: ends, starts, purges and saves, in the order of ids."""
        now = self._now()
        for one in self._jobs.values():
            if one.completing_until is not None and one.completing_until <= now:
                state, one.completing_until = one.after_completing, None
                one.record = replace(one.record, native_state=state, state=_STATES[state])
        for one in self._jobs.values():
            self._try_start(one, now)
        for job_id, one in list(self._jobs.items()):
            ended = one.record.end_at
            is_over = one.record.native_state in _OVER and ended is not None
            if is_over and ended is not None and (now - ended).total_seconds() > self.min_job_age_s:
                del self._jobs[job_id]
        if now - self._saved_at >= self._save_every:
            self._saved_at, self._saved = now, copy.deepcopy(self._jobs)

    def _try_start(self, one: _Job, now: datetime) -> None:
        record = one.record
        if record.native_state != "PENDING" or record.is_held:
            return
        if one.begin_at is not None and now < one.begin_at:
            one.record = replace(record, reason="BeginTime")
            return
        allowed = [node for node in self._nodes if node not in record.exc_nodes]
        busy = {
            n for other in self._jobs.values() if other.record.native_state == "RUNNING" for n in other.record.nodes
        }
        free = [node for node in allowed if self._nodes[node] == "idle" and node not in busy]
        if len(allowed) < one.wanted:
            one.record = replace(record, reason="BadConstraints")
        elif sum(self._nodes[node] == "idle" for node in allowed) < one.wanted:
            one.record = replace(record, reason="ReqNodeNotAvail")
        elif len(free) < one.wanted:
            one.record = replace(record, reason="Resources")
        else:
            one.record = replace(
                record, native_state="RUNNING", state=AttemptState.RUNNING, reason="", start_at=now,
                nodes=tuple(free[: one.wanted]), exit_code=None, signal=None,
            )  # fmt: skip
            self._tell("started", one)

    def _node_records(self) -> tuple[SchedulerNode, ...]:
        return tuple(
            SchedulerNode(
                name=name, is_usable=state == "idle", is_lost=state == "down*", partitions=(self.partition,),
                native_state=state,
            )
            for name, state in self._nodes.items()
        )  # fmt: skip
