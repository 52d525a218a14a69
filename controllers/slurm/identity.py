# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Names that survive restarts of the controller: one for each workload, one for each run of it."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime

from relight.jobs import JobRecord
from relight.types import AttemptId, ClusterId, WorkloadId

# Never to be changed: every attempt on record is known by it.
NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "urn:relight:attempts")


def attempt_id(cluster: ClusterId, job_id: str, first_submit: datetime, restart_count: int) -> AttemptId:
    """The same for the same run, whoever computes it and however often.

    Job ids wrap, so the first submit time is in the key; a requeue renews the submit time, so the restart
    count is.
    """
    when = first_submit.astimezone(UTC).isoformat(timespec="seconds")
    return AttemptId(str(uuid.uuid5(NAMESPACE, f"{cluster}/slurm/{job_id}/{when}/{restart_count}")))


def workload_id(job: JobRecord, first_submit: datetime, chosen: str | None) -> WorkloadId:
    """The name that the job gave itself, else that of its chain of requeues."""
    if chosen:
        return WorkloadId(f"{job.user or 'unknown'}.{chosen}")
    task = "" if job.array_task is None else f"_{job.array_task}"
    stem = job.array_job if job.array_task is not None and job.array_job else job.job_id
    return WorkloadId(f"slurm-{stem}{task}-{int(first_submit.timestamp())}")
