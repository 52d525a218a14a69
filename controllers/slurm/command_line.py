# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Slurm by its command line: text for reads and writes, JSON where a record imitates fields."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo

from controllers.slurm import scontrol_text, slurm_json, task_layout
from controllers.slurm.node_names import compacted
from controllers.slurm.refusals import refusal
from controllers.slurm.runners import Answer, Runner
from controllers.slurm.scontrol_text import Garbled
from controllers.slurm.task_layout import needs_details
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
from relight.types import NodeName

_JOB_ID = re.compile(r"\d{1,10}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmCommandLine:
    """A `BatchScheduler` by scontrol, squeue, sinfo, sacct and scancel.

    `zone` is the time zone in which the commands print. `marks_in` is the field that bears our mark:
    AdminComment needs operator rights and can't be forged by users, Comment is open to a job's owner.
    """

    runner: Runner
    name: str = "slurm"
    timeout_s: float = 20.0
    zone: tzinfo = UTC
    marks_in: str = "AdminComment"

    # -------------------------------------------------------------- reads

    def survey(self, now: datetime) -> ClusterReading:
        try:
            jobs = scontrol_text.jobs(self._said("scontrol", "--oneliner", "show", "job"), self.zone)
            nodes = scontrol_text.nodes(self._said("sinfo", "-h", "-N", "-o", scontrol_text.NODE_FORMAT))
            return ClusterReading(at=now, is_blind=False, jobs=self._clear(jobs), nodes=nodes)
        except (SchedulerUnreachable, SchedulerRefused, Garbled) as why:
            return ClusterReading(at=now, is_blind=True, why_blind=str(why))

    def show(self, job_id: str, now: datetime) -> JobReading:
        try:
            text = self._said("scontrol", "--oneliner", "show", "job", _checked(job_id))
            found = [one for one in self._clear(scontrol_text.jobs(text, self.zone)) if one.job_id == job_id]
        except SchedulerRefused as why:
            if why.code is RefusalCode.NOT_FOUND:
                return JobReading(at=now)
            return JobReading(at=now, is_blind=True, why_blind=str(why))
        except (SchedulerUnreachable, Garbled) as why:
            return JobReading(at=now, is_blind=True, why_blind=str(why))
        if not found:
            return JobReading(at=now, is_blind=True, why_blind=f"asked for job {job_id}, told of others")
        return JobReading(at=now, job=found[0])

    def history(self, job_id: str, now: datetime) -> tuple[EndedRun, ...] | None:
        start = (now - timedelta(days=60)).astimezone(self.zone).strftime("%Y-%m-%dT%H:%M:%S")
        try:
            text = self._said(
                "sacct", "-X", "-P", "-n", "--duplicates", "-j", _checked(job_id), "-S", start,
                "--format", ",".join(scontrol_text.HISTORY_FIELDS),
            )  # fmt: skip
            return scontrol_text.history(text, job_id, self.zone)
        except (SchedulerUnreachable, SchedulerRefused, ValueError):
            return None

    def clocks(self) -> SchedulerClocks:
        try:
            return scontrol_text.clocks(self._said("scontrol", "show", "config"), self.zone)
        except (SchedulerUnreachable, SchedulerRefused, ValueError):
            return SchedulerClocks()

    def rank_nodes(self, jobs: Sequence[JobRecord]) -> Mapping[str, tuple[NodeName, ...]]:
        """By the running steps, and by the jobs' CPUs where those alone tell how the tasks are split."""
        try:
            known = task_layout.steps(self._said("scontrol", "--oneliner", "show", "step"))
            doubtful = [one for job in jobs if (one := task_layout.main_step(job, known)) and needs_details(job, one)]
            even = frozenset[str]()
            if doubtful:
                even = task_layout.even_jobs(self._said("scontrol", "--oneliner", "--details", "show", "job"))
        except (SchedulerUnreachable, SchedulerRefused, Garbled):
            return {}
        return task_layout.places(jobs, known, even)

    # -------------------------------------------------------------- verbs

    def marked_text(self, job: JobRecord) -> str:
        return job.comment if self.marks_in == "Comment" else job.admin_comment

    def mark(self, job_id: str, text: str) -> None:
        self._update(job_id, f"{self.marks_in}={text}")

    def requeue_hold(self, job_id: str) -> None:
        self._said("scontrol", "requeuehold", _checked(job_id))

    def hold(self, job_id: str) -> None:
        self._said("scontrol", "hold", _checked(job_id))

    def set_exclusions(self, job_id: str, nodes: Sequence[NodeName]) -> None:
        self._update(job_id, f"ExcNodeList={compacted(nodes)}")

    def release(self, job_id: str) -> None:
        self._said("scontrol", "release", _checked(job_id))

    def start_after(self, job_id: str, delay_s: int) -> None:
        self._update(job_id, f"StartTime=now+{int(delay_s)}" if delay_s > 0 else "StartTime=now")

    def cancel(self, job_id: str) -> None:
        self._said("scancel", _checked(job_id))

    # -------------------------------------------------------------- the rest

    def _update(self, job_id: str, change: str) -> None:
        self._said("scontrol", "update", f"JobId={_checked(job_id)}", change)

    def _clear(self, jobs: Sequence[JobRecord]) -> tuple[JobRecord, ...]:
        """Records that imitate fields are read again as JSON, where nobody can; else they stay ambiguous."""
        doubtful = [one.job_id for one in jobs if one.is_ambiguous]
        if not doubtful:
            return tuple(jobs)
        try:
            text = self._said("squeue", "--json", "--states=all", "-j", ",".join(doubtful))
            clear = {one.job_id: one for one in slurm_json.json_jobs(slurm_json.decoded(text))}
        except (SchedulerUnreachable, SchedulerRefused, Garbled):
            return tuple(jobs)
        return tuple(clear.get(one.job_id, one) if one.is_ambiguous else one for one in jobs)

    def _said(self, *argv: str) -> str:
        answer = self.runner.run(argv, self.timeout_s)
        if answer.code != 0:
            raise _refusal(argv, answer)
        return answer.out


def _refusal(argv: Sequence[str], answer: Answer) -> SchedulerRefused | SchedulerUnreachable:
    said = f"{answer.err} {answer.out}".strip()
    return refusal(" ".join(argv[:3]), said or f"exit code {answer.code}")


def _checked(job_id: str) -> str:
    if _JOB_ID.fullmatch(job_id) is None:
        raise SchedulerRefused(RefusalCode.NOT_FOUND, f"{job_id!r} is no job id")
    return job_id
