# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What an answer of slurmrestd means: its status code alone says little, its list of errors says more.

22.05 answers 500 to a job that does not exist and to a token that is wrong, and 200 with errors to an update
that it did not make; 24.11 answers 404 and 26.05 422. A 404 without Slurm's own word for it is no absence: the
address or the version may be wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from controllers.slurm.refusals import NO_SUCH_JOB, refusal, refusal_code
from controllers.slurm.scontrol_text import Garbled
from relight.jobs import SchedulerClocks, SchedulerUnreachable

_NO_SUCH_JOB = 2017
MAX_BYTES = 256 * 1024 * 1024


def answered(what: str, status: int, body: bytes) -> Mapping[str, Any]:
    """The answer, if it is one. Errors: SchedulerRefused, SchedulerUnreachable, Garbled."""
    if len(body) > MAX_BYTES:
        raise Garbled(f"{what}: an answer of {len(body)} bytes, the limit is {MAX_BYTES}")
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as why:
        raise SchedulerUnreachable(f"{what}: {status}, and no JSON: {body[:200]!r}") from why
    if not isinstance(said, dict):
        raise Garbled(f"{what}: {status}, and no JSON object but {type(said).__name__}")
    complaints = "; ".join(_complaints(said))
    if complaints:
        is_understood = refusal_code(complaints) is not None
        if is_understood or status < 500:
            raise refusal(what, complaints)
        raise SchedulerUnreachable(f"{what}: {status} {complaints[:300]}")
    if status != 200:
        raise SchedulerUnreachable(f"{what}: {status} {body[:200]!r}")
    return said


def cluster_told(said: Mapping[str, Any]) -> SchedulerClocks:
    """What every answer tells of its cluster; slurmrestd tells nothing of Slurm's own times."""
    meta = _mapping(said.get("meta"))
    slurm = _mapping(meta.get("slurm")) or _mapping(meta.get("Slurm"))
    return SchedulerClocks(version=str(slurm.get("release") or ""), cluster=str(slurm.get("cluster") or ""))


def _complaints(said: Mapping[str, Any]) -> Iterator[str]:
    """Everything in an answer that says no: errors of the request, and results of single jobs."""
    for one in _list(said.get("errors")):
        if not isinstance(one, dict):
            yield str(one)
            continue
        if one.get("error_number") == _NO_SUCH_JOB or one.get("error_code") == _NO_SUCH_JOB:
            yield NO_SUCH_JOB
        words = [str(one.get(key)) for key in ("error", "description") if one.get(key)]
        yield ": ".join(words) or str(one)
    for name in ("results", "status"):
        for one in _list(said.get(name)):
            if isinstance(one, dict) and one.get("error_code"):
                words = [NO_SUCH_JOB] if one["error_code"] == _NO_SUCH_JOB else []
                yield ": ".join([*words, *(str(one.get(key)) for key in ("error", "why") if one.get(key))])


def _list(said: Any) -> list[Any]:
    return said if isinstance(said, list) else []


def _mapping(said: Any) -> Mapping[str, Any]:
    return said if isinstance(said, dict) else {}
