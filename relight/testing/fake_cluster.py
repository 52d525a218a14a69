# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The fake Slurm's inside: nodes and jobs in virtual time, that start, end, are requeued, purged and forgotten."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import datetime, timedelta

from relight.jobs import SchedulerNode
from relight.ports import Clock
from relight.testing.fake_job import OVER, REQUEUED_REASON, STATES, Deed, FakeJob
from relight.types import AttemptState, NodeName


class FakeCluster:
    """Deterministic; time passes by the clock, and every look brings it up to date.

    `deeds` lists what happened, in order. `fail_over` forgets what happened since the last save.
    """

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
        self.deeds: list[Deed] = []
        self._save_every = timedelta(seconds=save_every_s)
        self._nodes = {NodeName(f"n{index + 1}"): "idle" for index in range(nodes)}
        self._reasons: dict[NodeName, str] = {}
        self._jobs: dict[str, FakeJob] = {}
        self._next = 1
        self._saved_at, self._saved = clock.now(), copy.deepcopy(self._jobs)

    def fail_over(self) -> None:
        """The backup controller takes over with the last state that was saved."""
        self._settle()
        self._jobs = copy.deepcopy(self._saved)

    # -------------------------------------------------------------- inside

    def _now(self) -> datetime:
        return self.clock.now()

    def _tell(self, what: str, one: FakeJob) -> None:
        record = one.record
        self.deeds.append(Deed(self._now(), what, record.job_id, record.restart_count, record.nodes))

    def _change(self, job_id: str, *, priority: int, reason: str) -> None:
        one = self._jobs[job_id]
        one.record = replace(one.record, priority=priority, reason=reason)

    def _cancel(self, one: FakeJob, by: str) -> None:
        if one.record.native_state == "RUNNING":
            self._end(one, "CANCELLED", 0, 15, "", by=by)
        elif one.record.native_state not in OVER:
            one.record = replace(
                one.record, native_state="CANCELLED", state=AttemptState.CANCELLED_BY_USER, end_at=self._now(),
                cancelled_by=by,
            )  # fmt: skip

    def _end(
        self,
        one: FakeJob,
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
            one.record, native_state=state, state=STATES[state], reason=reason, exit_code=exit_code, signal=signal,
            end_at=self._now(), failed_nodes=failed, cancelled_by=by,
        )  # fmt: skip
        one.record = ended
        one.remember(state, self._now())
        self._tell(f"ended:{state}", one)
        if self.completing_s:
            one.completing_until, one.after_completing = self._now() + timedelta(seconds=self.completing_s), state
            one.record = replace(ended, native_state="COMPLETING", state=AttemptState.ENDING)

    def _requeue(self, one: FakeJob, *, is_held: bool, reason: str = REQUEUED_REASON) -> None:
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
                one.record = replace(one.record, native_state=state, state=STATES[state])
        for one in self._jobs.values():
            self._try_start(one, now)
        for job_id, one in list(self._jobs.items()):
            ended = one.record.end_at
            is_over = one.record.native_state in OVER and ended is not None
            if is_over and ended is not None and (now - ended).total_seconds() > self.min_job_age_s:
                del self._jobs[job_id]
        if now - self._saved_at >= self._save_every:
            self._saved_at, self._saved = now, copy.deepcopy(self._jobs)

    def _try_start(self, one: FakeJob, now: datetime) -> None:
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
                native_state=state, reason=self._reasons.get(name, "") if state == "drained" else "",
            )
            for name, state in self._nodes.items()
        )  # fmt: skip
