# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Slurm's state by slurmrestd: reads only, of v0.0.38 and of v0.0.40 to v0.0.46; verbs go by the command line.

slurmrestd of 22.05 can't exclude nodes, and answers some refusals with 200; so what acts is another backend.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Protocol

from controllers.slurm import slurm_json
from controllers.slurm.scontrol_text import Garbled
from relight.jobs import ClusterReading, JobReading, SchedulerUnreachable

SUPPORTED = (38, *range(40, 47))
_NO_SUCH_JOB = "2017"


class Fetch(Protocol):
    """GET a path with headers: status and body. Errors: SchedulerUnreachable."""

    def __call__(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmRestReader:
    """The read half of a `BatchScheduler`. The token file is read at every call: tokens live half an hour."""

    fetch: Fetch
    user: str
    token_file: Path
    version: int

    def __post_init__(self) -> None:
        if self.version not in SUPPORTED:
            known = ", ".join(f"v0.0.{number}" for number in SUPPORTED)
            raise ValueError(f"slurmrestd v0.0.{self.version} is not supported, these are: {known}")

    def survey(self, now: datetime) -> ClusterReading:
        try:
            jobs = slurm_json.json_jobs(slurm_json.decoded(self._get("jobs")))
            nodes = slurm_json.json_nodes(slurm_json.decoded(self._get("nodes")))
        except (SchedulerUnreachable, Garbled, OSError) as why:
            return ClusterReading(at=now, is_blind=True, why_blind=str(why))
        return ClusterReading(at=now, is_blind=False, jobs=jobs, nodes=nodes)

    def show(self, job_id: str, now: datetime) -> JobReading:
        if not re.fullmatch(r"\d{1,10}", job_id):
            return JobReading(at=now, is_blind=True, why_blind=f"{job_id!r} is no job id")
        try:
            status, body = self.fetch(self._path(f"job/{job_id}"), self._headers())
            if status == 404 or (status == 500 and _NO_SUCH_JOB.encode() in body):
                return JobReading(at=now)
            found = slurm_json.json_jobs(slurm_json.decoded(_answered(status, body)))
        except (SchedulerUnreachable, Garbled, OSError) as why:
            return JobReading(at=now, is_blind=True, why_blind=str(why))
        own = [one for one in found if one.job_id == job_id]
        if not own:
            return JobReading(at=now, is_blind=True, why_blind=f"asked for job {job_id}, told of others")
        return JobReading(at=now, job=own[0])

    def _get(self, what: str) -> bytes:
        return _answered(*self.fetch(self._path(what), self._headers()))

    def _path(self, what: str) -> str:
        return f"/slurm/v0.0.{self.version}/{what}"

    def _headers(self) -> dict[str, str]:
        token = self.token_file.read_text("ascii").strip().removeprefix("SLURM_JWT=")
        return {"X-SLURM-USER-NAME": self.user, "X-SLURM-USER-TOKEN": token}


def newest_version(openapi: Any) -> int:
    """The newest version that both sides speak, by the paths of `/openapi`. Errors: Garbled."""
    paths = openapi.get("paths") if isinstance(openapi, Mapping) else None
    found = {int(version) for path in paths or () for version in re.findall(r"/slurm/v0\.0\.(\d+)/", str(path))}
    common = found & set(SUPPORTED)
    if not common:
        raise Garbled(f"slurmrestd speaks {sorted(found) or 'nothing known'}, supported are {SUPPORTED}")
    return max(common)


def _answered(status: int, body: bytes) -> bytes:
    if status != 200:
        raise SchedulerUnreachable(f"slurmrestd answered {status}: {body[:200]!r}")
    return body
