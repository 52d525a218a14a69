# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Slurm by slurmrestd: reads, and those verbs that its version has; the others go by the command line."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controllers.slurm import rest_answers, slurm_json
from controllers.slurm.rest_versions import RestVerb, RestVersion, newest_version
from controllers.slurm.rest_wire import RestWire
from controllers.slurm.scontrol_text import Garbled
from relight.jobs import (
    BatchScheduler,
    ClusterReading,
    EndedRun,
    JobReading,
    JobRecord,
    RefusalCode,
    SchedulerClocks,
    SchedulerRefused,
    SchedulerUnreachable,
)
from relight.ports import Clock
from relight.types import NodeName

OPENAPI = "/openapi/v3"
_JOB_ID = re.compile(r"\d{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRest:
    """A `BatchScheduler` by slurmrestd.

    `commands` carries out what the version lacks (`missing`), and tells what slurmrestd does not: Slurm's own
    clocks, and earlier runs. Without it those verbs are refused, and those facts are unknown. `marks_in` is
    as in `SlurmCommandLine`.
    """

    wire: RestWire
    version: RestVersion
    clock: Clock
    commands: BatchScheduler | None = None
    marks_in: str = "AdminComment"
    name: str = "slurm"

    def missing(self, needed: Collection[RestVerb] = tuple(RestVerb)) -> tuple[RestVerb, ...]:
        """Which of the needed verbs this version of slurmrestd has no request for."""
        lacking = self.version.lacks(self.marks_in)
        return tuple(verb for verb in RestVerb if verb in lacking and verb in needed)

    # -------------------------------------------------------------- reads

    def survey(self, now: datetime) -> ClusterReading:
        try:
            jobs = slurm_json.json_jobs(self._asked("GET", "jobs"))
            nodes = slurm_json.json_nodes(self._asked("GET", "nodes"))
        except (SchedulerUnreachable, SchedulerRefused, Garbled) as why:
            return ClusterReading(at=now, is_blind=True, why_blind=str(why))
        return ClusterReading(at=now, is_blind=False, jobs=jobs, nodes=nodes)

    def show(self, job_id: str, now: datetime) -> JobReading:
        try:
            found = slurm_json.json_jobs(self._asked("GET", f"job/{_checked(job_id)}"))
        except SchedulerRefused as why:
            if why.code is RefusalCode.NOT_FOUND:
                return JobReading(at=now)
            return JobReading(at=now, is_blind=True, why_blind=str(why))
        except (SchedulerUnreachable, Garbled) as why:
            return JobReading(at=now, is_blind=True, why_blind=str(why))
        own = [one for one in found if one.job_id == job_id]
        if not own:
            return JobReading(at=now, is_blind=True, why_blind=f"asked for job {job_id}, told of others")
        return JobReading(at=now, job=own[0])

    def history(self, job_id: str, now: datetime) -> tuple[EndedRun, ...] | None:
        """By sacct alone: slurmdbd's part of the API shows the last run of a requeued job and none before it."""
        return self.commands.history(job_id, now) if self.commands is not None else None

    def clocks(self) -> SchedulerClocks:
        if self.commands is not None:
            return self.commands.clocks()
        try:
            return rest_answers.cluster_told(self._asked("GET", "ping"))
        except (SchedulerUnreachable, SchedulerRefused, Garbled):
            return SchedulerClocks()

    def rank_nodes(self, jobs: Sequence[JobRecord]) -> Mapping[str, tuple[NodeName, ...]]:
        """By the commands alone: slurmrestd tells of no running step."""
        return self.commands.rank_nodes(jobs) if self.commands is not None else {}

    # -------------------------------------------------------------- verbs

    def marked_text(self, job: JobRecord) -> str:
        return job.comment if self.marks_in == "Comment" else job.admin_comment

    def mark(self, job_id: str, text: str) -> None:
        if (other := self._other(RestVerb.MARK)) is not None:
            return other.mark(job_id, text)
        return self._update(job_id, self.version.mark_body(self.marks_in, text))

    def requeue_hold(self, job_id: str) -> None:
        if (other := self._other(RestVerb.REQUEUE_HOLD)) is not None:
            return other.requeue_hold(job_id)
        self._asked("GET", f"job/{_checked(job_id)}/requeue?Hold=true")
        return None

    def hold(self, job_id: str) -> None:
        self._update(job_id, {"hold": True})

    def set_exclusions(self, job_id: str, nodes: Sequence[NodeName]) -> None:
        if (other := self._other(RestVerb.SET_EXCLUSIONS)) is not None:
            return other.set_exclusions(job_id, nodes)
        return self._update(job_id, self.version.exclusions_body(nodes))

    def release(self, job_id: str) -> None:
        self._update(job_id, {"hold": False})

    def start_after(self, job_id: str, delay_s: int) -> None:
        self._update(job_id, self.version.start_body(int(delay_s), self.clock.now()))

    def cancel(self, job_id: str) -> None:
        try:
            self._asked("DELETE", f"job/{_checked(job_id)}")
        except SchedulerRefused as why:
            if why.code not in {RefusalCode.NOT_FOUND, RefusalCode.NOT_PENDING}:
                raise  # one that is gone or over is what was wanted

    # -------------------------------------------------------------- the rest

    def _other(self, verb: RestVerb) -> BatchScheduler | None:
        """Who carries a verb out in slurmrestd's place. Errors: SchedulerRefused if nobody can."""
        if verb not in self.version.lacks(self.marks_in):
            return None
        if self.commands is None:
            raise SchedulerRefused(RefusalCode.OTHER, f"slurmrestd {self.version} has no request for {verb}")
        return self.commands

    def _update(self, job_id: str, change: Mapping[str, Any]) -> None:
        self._asked("POST", f"job/{_checked(job_id)}", change)

    def _asked(self, method: str, what: str, body: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        status, said = self.wire.send(method, f"/slurm/{self.version}/{what}", body)
        return rest_answers.answered(f"slurmrestd {method} {what}", status, said)


def spoken_version(wire: RestWire) -> RestVersion:
    """Ask slurmrestd what it speaks. Errors: SchedulerUnreachable, Garbled."""
    status, said = wire.send("GET", OPENAPI)
    if status != 200:
        raise SchedulerUnreachable(f"slurmrestd answered {status} to {OPENAPI}: {said[:200]!r}")
    return newest_version(slurm_json.decoded(said))


def _checked(job_id: str) -> str:
    if _JOB_ID.fullmatch(job_id) is None:
        raise SchedulerRefused(RefusalCode.OTHER, f"{job_id!r} is no job id")
    return job_id
