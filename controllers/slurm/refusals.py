# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Slurm's words for a no, put into ours; commands and slurmrestd use the same ones."""

from __future__ import annotations

from relight.jobs import RefusalCode, SchedulerRefused, SchedulerUnreachable

NO_SUCH_JOB = "Invalid job id specified"
# Slurm's own words, which have not changed from 20.11 to 26.05, in the order of the first that fits.
_REFUSALS = (
    (NO_SUCH_JOB, RefusalCode.NOT_FOUND),
    ("Invalid node name", RefusalCode.INVALID_NODE),
    ("no longer pending", RefusalCode.NOT_PENDING),
    ("is pending execution", RefusalCode.ALREADY_PENDING),
    ("presently disabled", RefusalCode.NOT_REQUEUEABLE),
    ("Only batch jobs", RefusalCode.NOT_BATCH),
    ("Access/permission denied", RefusalCode.DENIED),
    ("Invalid user id", RefusalCode.DENIED),
    ("already completing or completed", RefusalCode.NOT_PENDING),
    ("already finished", RefusalCode.NOT_PENDING),
)
_DOWN = (
    "Unable to contact",
    "Connection refused",
    "timed out",
    "Socket timed out",
    "Zero Bytes",
    "Unable to establish",
)


def refusal_code(said: str) -> RefusalCode | None:
    """What Slurm's words mean; None for words that are not known."""
    return next((code for words, code in _REFUSALS if words in said), None)


def refusal(what: str, said: str) -> SchedulerRefused | SchedulerUnreachable:
    """The error for what Slurm said of a request: a no, or the news that slurmctld did not answer."""
    if any(word in said for word in _DOWN):
        return SchedulerUnreachable(f"{what}: {said[:300]}")
    return SchedulerRefused(refusal_code(said) or RefusalCode.OTHER, f"{what}: {said[:300]}")
