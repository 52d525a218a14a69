# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""When to ask Slurm where ranks run: soon after a start, then ever more rarely, since a job may start new steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from relight.jobs import BatchScheduler, JobRecord
from relight.types import AttemptState, NodeName

_FIRST = timedelta(seconds=5)
_LONGEST = timedelta(seconds=60)


class RankPlaces:
    """Asks for all jobs that are due at once, whatever their number; remembers only when to ask again."""

    def __init__(self, scheduler: BatchScheduler) -> None:
        self._scheduler = scheduler
        self._due: dict[tuple[str, int], tuple[datetime, timedelta]] = {}

    def look(self, jobs: Iterable[JobRecord], now: datetime) -> Mapping[str, tuple[NodeName, ...]]:
        """By job id, what is newly known; () takes back what was known, a job left out changes nothing."""
        running = {(one.job_id, one.restart_count): one for one in jobs if one.state is AttemptState.RUNNING}
        self._due = {run: self._due.get(run, (now, _FIRST)) for run in running}
        due = [job for run, job in running.items() if self._due[run][0] <= now]
        for job in due:
            wait = self._due[job.job_id, job.restart_count][1]
            self._due[job.job_id, job.restart_count] = (now + wait, min(wait * 2, _LONGEST))
        return self._scheduler.rank_nodes(due) if due else {}
