# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Lets go of our holds at their deadline, knowing neither advisor nor controller: its own process and store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from controllers.slurm.slips import Slips
from controllers.slurm.store import Store
from relight.deadline import HARD_DEADLINE, Hold, overdue
from relight.hold_mark import HoldMark, MarkState, read_mark, with_mark
from relight.jobs import BatchScheduler, JobRecord, RefusalCode, SchedulerRefused, SchedulerUnreachable
from relight.ports import Clock
from relight.types import AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """What one round of the watchdog came to."""

    at: datetime
    holds: int = 0
    released: tuple[str, ...] = ()
    is_blind: bool = False
    why: str = ""


class Watchdog:
    """Releases holds that bear our mark and await a decision, when they are due.

    A hold without our mark, with the mark of another run, of Slurm's own making or placed by a stop is left
    alone. Errors: StoreUnusable, OSError; a blind scheduler is a result.
    """

    def __init__(
        self, scheduler: BatchScheduler, store: Store, slips: Slips, clock: Clock, hard: timedelta = HARD_DEADLINE
    ) -> None:
        self._scheduler, self._store, self._slips, self._clock, self._hard = scheduler, store, slips, clock, hard

    def tick(self) -> Watch:
        now = self._clock.now()
        reading = self._scheduler.survey(now)
        if reading.is_blind:
            return Watch(at=now, is_blind=True, why=reading.why_blind)
        slips = self._slips.all()
        holds = {job.job_id: found for job in reading.jobs if (found := self._hold(job, slips.get(job.job_id), now))}
        self._forget({job.job_id for job in reading.jobs if job.is_held})
        released, why = [], ""
        for due in overdue(holds.values(), now, hard=self._hard):
            try:
                if self._let_go(str(due.attempt), now):
                    released.append(str(due.attempt))
            except (SchedulerUnreachable, SchedulerRefused) as stopped:
                why = why or f"job {due.attempt}: {stopped}"
        return Watch(at=now, holds=len(holds), released=tuple(released), why=why)

    def _hold(self, job: JobRecord, slip: HoldMark | None, now: datetime) -> Hold | None:
        mark = mark_of(job, slip)
        if mark is None:
            return None
        # A mark can be edited, what we saw ourselves can't: the hard deadline counts from then at the latest.
        known = self._store.get("seen", job.job_id)
        key = f"{mark.recommendation}/{mark.restart_count}"
        if known is None or known["key"] != key:
            known = {"key": key, "at": now.isoformat()}
            self._store.put("seen", job.job_id, known)
        hold = mark.as_hold(AttemptId(job.job_id))
        return replace(hold, placed_at=min(hold.placed_at, datetime.fromisoformat(known["at"])))

    def _let_go(self, job_id: str, now: datetime) -> bool:
        """Fence, release, look again: a late controller finds the mark expired, or no hold at all."""
        self._store.log(now.isoformat(), job_id, "release", "intent", {})
        job = self._scheduler.show(job_id, now).job
        mark = mark_of(job, self._slips.all().get(job_id)) if job is not None else None
        if job is None or mark is None or mark.state is MarkState.STOPPED:
            self._store.log(now.isoformat(), job_id, "release", "overtaken", {})
            return False
        expired = replace(mark, state=MarkState.EXPIRED)
        self._scheduler.mark(job_id, with_mark(self._scheduler.marked_text(job), expired))
        self._scheduler.release(job_id)
        after = self._scheduler.show(job_id, self._clock.now()).job
        if after is not None and mark_of(after, None) is None and not after.is_held:
            self._unmark(after)
            self._store.log(now.isoformat(), job_id, "release", "done", {"recommendation": mark.recommendation})
            return True
        return False

    def _unmark(self, job: JobRecord) -> None:
        """What is over needs no mark; a job that has ended since can't be changed any more."""
        try:
            self._scheduler.mark(job.job_id, with_mark(self._scheduler.marked_text(job), None))
        except SchedulerRefused as why:
            if why.code not in {RefusalCode.NOT_PENDING, RefusalCode.NOT_FOUND}:
                raise

    def _forget(self, held: set[str]) -> None:
        for job_id, _ in tuple(self._store.all("seen")):
            if job_id not in held:
                self._store.drop("seen", job_id)


def mark_of(job: JobRecord, slip: HoldMark | None) -> HoldMark | None:
    """Whose hold this is, if ours: by its mark, or by the slip of a hold that could not be marked yet."""
    if not job.is_held or job.is_schedulers_hold or job.is_ambiguous:
        return None
    mark = read_mark(job.marks)
    if mark is None and slip is not None and "requeued_in_held_state" in job.reason:
        mark = slip
    return mark if mark is not None and mark.restart_count == job.restart_count else None
