# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The next step of a recovery, from what is wanted and what the scheduler says now: pure and total."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from relight.hold_mark import HoldMark, MarkState, read_mark
from relight.jobs import JobRecord
from relight.types import Action, AttemptState, NodeName, RecommendationId

NO_CAPACITY_REASONS = ("BadConstraints", "ReqNodeNotAvail", "NodeDown", "Nodes_required_for_job_are_DOWN")
_UNTIMELY = {
    AttemptState.CANCELLED_BY_USER: "user_cancelled",
    AttemptState.COMPLETED: "superseded",
    AttemptState.PREEMPTED: "superseded",
}


class Verb(StrEnum):
    """What may be asked of Slurm; each is one step on record, though it may take more than one command."""

    REQUEUE_HOLD = "requeue_hold"
    SET_EXCLUSIONS = "set_exclusions"
    RELEASE = "release"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True, kw_only=True)
class Do:
    """One verb; for a hold, `state` is what the mark shall say."""

    verb: Verb
    state: MarkState = MarkState.DECIDING


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """What is wanted is so; `reason` says whether by us."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Over:
    """It can't or must not be reached any more."""

    disposition: str
    reason: str


Step = Do | Wait | Reached | Over


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One recovery: the run that failed (`restart_count`, `started_at`), what is advised, and what we did.

    `was_running`: the run had not ended when advice was given. `we_held` and `we_released`: those verbs of
    ours were sent, so that a change of state after them is somebody else's doing. `unwanted` are exclusions of
    ours to be taken back, since they leave the job without nodes.
    """

    recommendation: RecommendationId
    action: Action
    restart_count: int
    exclusions: Collection[NodeName] = ()
    unwanted: Collection[NodeName] = ()
    was_running: bool = False
    started_at: datetime | None = None
    we_held: bool = False
    we_released: bool = False
    we_cancelled: bool = False
    is_overdue: bool = False
    is_decided: bool = True
    is_grace_over: bool = False

    @property
    def stops(self) -> bool:
        return self.action is Action.STOP


def next_step(job: JobRecord | None, wanted: Wanted) -> Step:
    """The one step that is due. Total: every state of a job, known or not, leads to one."""
    if job is None:
        return Over(disposition="ABANDONED", reason="expired")
    if job.is_ambiguous or job.state is None:
        return Wait(why=f"the record of job {job.job_id} can't be trusted: {job.native_state}")
    if job.restart_count < wanted.restart_count:
        return Wait(why="the scheduler shows an earlier run, as after a fail-over")
    if job.restart_count > wanted.restart_count + 1:
        return Reached(reason="already_satisfied")
    if job.restart_count == wanted.restart_count:
        return _before_requeue(job, wanted)
    return _after_requeue_stop(job, wanted) if wanted.stops else _after_requeue(job, wanted)


def _before_requeue(job: JobRecord, wanted: Wanted) -> Step:
    if job.state in _UNTIMELY:
        is_ours = wanted.we_cancelled and job.state is AttemptState.CANCELLED_BY_USER
        if is_ours:
            return Reached(reason="desired_state_observed")
        return Over(disposition="ABANDONED", reason=_UNTIMELY[job.state])
    if job.state in {AttemptState.ENDING, AttemptState.PENDING, AttemptState.SUSPECT, AttemptState.LOST}:
        return Wait(why=f"the run is {job.native_state}")
    is_running = job.state is AttemptState.RUNNING
    if is_running and not (wanted.was_running and job.start_at == wanted.started_at):
        return Over(disposition="ABANDONED", reason="superseded")
    if wanted.stops and not is_running:
        return Reached(reason="already_satisfied")
    if not job.requeueable or not job.is_batch or (job.het_offset or 0) > 0:
        return Over(disposition="ABANDONED", reason="not_requeueable")
    return Do(verb=Verb.REQUEUE_HOLD, state=MarkState.STOPPED if wanted.stops else MarkState.DECIDING)


def _after_requeue(job: JobRecord, wanted: Wanted) -> Step:
    """The job was queued again, by us or by Slurm itself: adopt it, and see that it keeps away from nodes."""
    mark = own_mark(job, wanted)
    is_missing = not set(wanted.exclusions) <= set(job.exc_nodes) or bool(set(wanted.unwanted) & set(job.exc_nodes))
    match job.state:
        case AttemptState.CANCELLED_BY_USER:
            return Over(disposition="ABANDONED", reason="user_cancelled")
        case AttemptState.PENDING if job.is_held:
            return _held(job, wanted, mark, is_missing)
        case AttemptState.PENDING:
            if not wanted.is_decided:
                return Wait(why="somebody released the job before a decision")
            if is_missing:
                return Do(verb=Verb.SET_EXCLUSIONS)
        case AttemptState.RUNNING if set(wanted.exclusions) & set(job.nodes):
            return Over(disposition="ABANDONED", reason="user_released" if wanted.we_held else "superseded")
        case _:
            pass  # it runs elsewhere, or has ended again: the restart took place
    if mark is not None and not (job.state is not None and job.state.is_terminal):
        return Do(verb=Verb.RELEASE)  # the mark is the last thing to go
    return Reached(reason="desired_state_observed" if wanted.we_held else "already_satisfied")


def _held(job: JobRecord, wanted: Wanted, mark: HoldMark | None, is_missing: bool) -> Step:
    if not is_ours(job, wanted):
        reason = "scheduler_refused" if job.is_schedulers_hold else "user_released"
        return Over(disposition="ABANDONED", reason=reason)
    is_due = wanted.is_overdue or (mark is not None and mark.state is MarkState.EXPIRED)
    if is_due:
        return Do(verb=Verb.RELEASE)
    if not wanted.is_decided:
        return Wait(why="held while the decision is made")
    return Do(verb=Verb.SET_EXCLUSIONS) if is_missing else Do(verb=Verb.RELEASE)


def _after_requeue_stop(job: JobRecord, wanted: Wanted) -> Step:
    """Held with a reason first, cancelled only after the grace; whoever releases it has the last word."""
    mark = own_mark(job, wanted)
    if job.state is AttemptState.CANCELLED_BY_USER:
        return Reached(reason="desired_state_observed") if wanted.we_cancelled else Over(
            disposition="ABANDONED", reason="user_cancelled"
        )  # fmt: skip
    if job.state is not AttemptState.PENDING:
        return Over(disposition="ABANDONED", reason="user_released" if wanted.we_held else "superseded")
    if not job.is_held:
        if wanted.we_held:
            return Over(disposition="ABANDONED", reason="user_released")
        return Do(verb=Verb.REQUEUE_HOLD, state=MarkState.STOPPED)
    if not is_ours(job, wanted):
        return Reached(reason="already_satisfied")  # it waits for a person as it is
    if not wanted.is_decided:
        return Do(verb=Verb.RELEASE) if wanted.is_overdue else Wait(why="held while the decision is made")
    if mark is None or mark.state is not MarkState.STOPPED:
        return Do(verb=Verb.REQUEUE_HOLD, state=MarkState.STOPPED)
    return Do(verb=Verb.CANCEL) if wanted.is_grace_over else Wait(why="held until the grace of the stop is over")


def own_mark(job: JobRecord, wanted: Wanted) -> HoldMark | None:
    """Our mark for this very recovery and this very run; any other is an old one or not ours."""
    mark = read_mark(job.marks)
    if mark is None or mark.recommendation != wanted.recommendation:
        return None
    return mark if mark.restart_count == job.restart_count else None


def is_ours(job: JobRecord, wanted: Wanted) -> bool:
    """A hold of ours: by its mark, or placed by us a moment ago and not marked yet."""
    if not job.is_held or job.is_schedulers_hold:
        return False
    if own_mark(job, wanted) is not None:
        return True
    is_bare = read_mark(job.marks) is None and "requeued_in_held_state" in job.reason
    return is_bare and wanted.we_held and not wanted.we_released


def took_effect(verb: Verb, job: JobRecord | None, wanted: Wanted, target: Collection[NodeName]) -> bool:
    """Whether a verb has done its work, by a fresh look."""
    if job is None:
        return verb is Verb.CANCEL
    is_next = job.restart_count == wanted.restart_count + 1
    is_later = job.restart_count > wanted.restart_count + 1
    match verb:
        case Verb.REQUEUE_HOLD if wanted.stops:
            mark = own_mark(job, wanted)
            return is_next and job.is_held and mark is not None and mark.state is MarkState.STOPPED
        case Verb.REQUEUE_HOLD:
            return is_next or is_later
        case Verb.SET_EXCLUSIONS:
            return set(job.exc_nodes) == set(target) or is_later
        case Verb.RELEASE:
            return is_later or (is_next and not is_ours(job, wanted) and own_mark(job, wanted) is None)
        case Verb.CANCEL:
            return job.state is not None and job.state.is_terminal


def lacks_capacity(job: JobRecord) -> bool:
    """Slurm says that the job's demands leave it without nodes."""
    return (
        job.state is AttemptState.PENDING and not job.is_held and job.reason.lstrip("(").startswith(NO_CAPACITY_REASONS)
    )
