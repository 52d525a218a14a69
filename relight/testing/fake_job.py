# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A job of the fake Slurm: what it shows, what it remembers, and what becomes of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from relight.jobs import EndedRun, JobRecord
from relight.types import AttemptState, NodeName

REQUEUED_REASON = "job_requeued_in_held_state"
OVER = frozenset({"COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "OUT_OF_MEMORY"})
STATES = {
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
class FakeJob:
    """The record, and behind it: ended runs, the earliest start, and what Slurm counts."""

    record: JobRecord
    wanted: int
    rows: list[EndedRun] = field(default_factory=list)
    begin_at: datetime | None = None
    own_requeues: int = 0
    completing_until: datetime | None = None
    after_completing: str = ""

    def remember(self, state: str, at: datetime) -> None:
        """The run that ends now goes to accounting."""
        record = self.record
        self.rows.append(
            EndedRun(
                restart_index=len(self.rows), state=STATES.get(state), native_state=state, submit_at=record.submit_at,
                end_at=at, nodes=record.nodes, exit_code=record.exit_code, signal=record.signal,
                cancelled_by=record.cancelled_by,
            )
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Deed:
    """A verb that was carried out, or a start, or an end."""

    at: datetime
    what: str
    job_id: str
    restart_count: int
    nodes: tuple[NodeName, ...] = ()
