# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a controller sees of a batch scheduler's jobs, and the verbs it may ask of the scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol, runtime_checkable

from relight.types import AttemptState, NodeName

# Slurm's own hold after too many launch failures: neither controller nor watchdog may end it.
SCHEDULER_HOLDS = frozenset({"JobHoldMaxRequeue", "launch_failure_limit_exceeded_requeued_held"})
REQUEUED_HELD = frozenset({"job_requeued_in_held_state", "JobHeldUser", "JobHeldAdmin"})


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """One job as the scheduler tells it; what it does not tell is None or empty.

    `job_id` is the id that verbs take; an array task has its own, a heterogeneous job that of its leader.
    `state` is None if the scheduler used a word that we do not know. `is_ambiguous`: the record holds a
    field twice, as a job name that imitates fields does, so that nothing may be done on its strength.
    `tasks_per_node` is what was asked for, which need not be what came out.
    """

    job_id: str
    state: AttemptState | None
    native_state: str = ""
    reason: str = ""
    restart_count: int = 0
    name: str = ""
    user: str = ""
    uid: str = ""
    account: str = ""
    partition: str = ""
    submit_at: datetime | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    eligible_at: datetime | None = None
    nodes: tuple[NodeName, ...] = ()
    requested_nodes: int | None = None
    gpus_per_node: int | None = None
    tasks_per_node: int | None = None
    exc_nodes: tuple[NodeName, ...] = ()
    failed_nodes: tuple[NodeName, ...] = ()
    priority: int | None = None
    is_batch: bool = True
    requeueable: bool = True
    exit_code: int | None = None
    signal: int | None = None
    time_limit_s: float | None = None
    comment: str = ""
    admin_comment: str = ""
    extra: str = ""
    log_paths: tuple[str, ...] = ()
    work_dir: str = ""
    array_job: str | None = None
    array_task: int | None = None
    is_array_rest: bool = False
    het_leader: str | None = None
    het_offset: int | None = None
    sluid: str | None = None
    cancelled_by: str = ""
    is_ambiguous: bool = False

    @property
    def is_held(self) -> bool:
        """Kept from being scheduled, by whomever."""
        return self.state is AttemptState.PENDING and (
            self.priority == 0 or self.is_schedulers_hold or self.reason in REQUEUED_HELD
        )

    @property
    def is_schedulers_hold(self) -> bool:
        """Held by the scheduler itself; a reason that a job still bears when it runs again is no hold."""
        return self.state is AttemptState.PENDING and self.reason in SCHEDULER_HOLDS

    @property
    def marks(self) -> str:
        """Where a mark of ours may stand."""
        return f"{self.admin_comment} {self.comment}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerNode:
    """One node; `is_lost` means that it does not answer or is marked down, not merely drained."""

    name: NodeName
    is_usable: bool
    is_lost: bool
    partitions: tuple[str, ...] = ()
    native_state: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReading:
    """One look at all jobs and nodes. A blind look holds nothing and says nothing of any absence."""

    at: datetime
    is_blind: bool
    why_blind: str = ""
    jobs: tuple[JobRecord, ...] = ()
    nodes: tuple[SchedulerNode, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReading:
    """A fresh look at one job: the record, or its absence as the scheduler's own word, or nothing known."""

    at: datetime
    job: JobRecord | None = None
    is_blind: bool = False
    why_blind: str = ""

    @property
    def is_absent(self) -> bool:
        return not self.is_blind and self.job is None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """How an earlier run of a job ended, from accounting, which remembers what the queue forgets."""

    restart_index: int
    state: AttemptState | None
    native_state: str
    submit_at: datetime | None
    end_at: datetime | None
    nodes: tuple[NodeName, ...] = ()
    exit_code: int | None = None
    signal: int | None = None
    cancelled_by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerClocks:
    """The scheduler's own times, in seconds, and whether it requeues; None is unknown."""

    requeue_delay_s: float | None = None
    min_job_age_s: float | None = None
    requeues_by_default: bool | None = None
    has_accounting: bool | None = None
    cluster: str = ""
    version: str = ""
    at: datetime | None = None


class RefusalCode(StrEnum):
    """Why a scheduler said no."""

    NOT_REQUEUEABLE = "not_requeueable"
    NOT_BATCH = "not_batch"
    ALREADY_PENDING = "already_pending"
    NOT_PENDING = "not_pending"
    NOT_FOUND = "not_found"
    INVALID_NODE = "invalid_node"
    DENIED = "denied"
    OTHER = "other"


class SchedulerRefused(RuntimeError):
    """The scheduler answered and did not do it."""

    def __init__(self, code: RefusalCode, said: str) -> None:
        super().__init__(f"{code}: {said}")
        self.code = code
        self.said = said


class SchedulerUnreachable(RuntimeError):
    """No answer that can be trusted: the verb may have been carried out or not; read before going on."""


@runtime_checkable
class BatchScheduler(Protocol):
    """Reads and verbs of one batch scheduler.

    Reads never raise: what can't be read is blind. Verbs raise SchedulerRefused or SchedulerUnreachable; a
    verb that returns has been accepted, which is not yet proof that it took effect. Each verb done twice
    does no more than done once.
    """

    @property
    def name(self) -> str:
        """As in configuration: `slurm`."""
        ...

    def survey(self, now: datetime) -> ClusterReading:
        """All jobs that the scheduler still knows, finished ones included, and all nodes."""
        ...

    def show(self, job_id: str, now: datetime) -> JobReading:
        """One job, read afresh."""
        ...

    def history(self, job_id: str, now: datetime) -> tuple[EndedRun, ...] | None:
        """The ended runs of a job, oldest first; None without accounting or without an answer."""
        ...

    def clocks(self) -> SchedulerClocks:
        """What is configured; all None if it can't be read."""
        ...

    def rank_nodes(self, jobs: Sequence[JobRecord]) -> Mapping[str, tuple[NodeName, ...]]:
        """By job id, the node of rank r at index r; () where that is not certain for every rank.

        A job of which nothing can be said now, since it runs nothing or there was no answer, is left out.
        """
        ...

    def marked_text(self, job: JobRecord) -> str:
        """The text of a job that `mark` replaces."""
        ...

    def mark(self, job_id: str, text: str) -> None:
        """Replace the text that bears our mark; refused for a job that is over."""
        ...

    def requeue_hold(self, job_id: str) -> None:
        """End the present run if there is one, and queue the job again, held."""
        ...

    def hold(self, job_id: str) -> None:
        """Keep a pending job from being scheduled."""
        ...

    def set_exclusions(self, job_id: str, nodes: Sequence[NodeName]) -> None:
        """Replace the list of excluded nodes of a pending job."""
        ...

    def release(self, job_id: str) -> None:
        """End a hold."""
        ...

    def start_after(self, job_id: str, delay_s: int) -> None:
        """Replace a pending job's earliest start by `delay_s` seconds from now."""
        ...

    def cancel(self, job_id: str) -> None:
        """End the job for good; one that is gone is no error."""
        ...
