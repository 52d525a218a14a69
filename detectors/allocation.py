# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The nodes that a job says it was given: what happens on others is not its own."""

from __future__ import annotations

import re
from collections.abc import Iterable

import hostlist

from relight.types import NodeName

HINTS = _LIST, _JOB, _READY = b"NODELIST", b"jobid ", b"are ready for job"
_STATED: tuple[re.Pattern[bytes], ...] = tuple(
    re.compile(p)
    for p in (
        rb"\bSLURM_(?:JOB_)?NODELIST\s*[=:]\s*[\"']?([A-Za-z][\w.,\[\]-]*)",
        rb"srun: jobid \d+: nodes\(\d+\):`([A-Za-z][\w.,\[\]-]*)'",
        rb"salloc: Nodes ([A-Za-z][\w.,\[\]-]*) are ready for job",
    )
)
_MAX_NODES = 20_000


def allocated_nodes(lines: Iterable[bytes]) -> frozenset[NodeName]:
    """The nodes of the last allocation that the lines of a job's own log state; empty if none does.

    Errors: none; a list that can't be read is none.
    Source: the environment of Slurm's steps, `srun -v`, `salloc`.
    """
    found: frozenset[NodeName] = frozenset()
    for line in lines:
        if _LIST in line or _JOB in line or _READY in line:
            stated = next((m for p in _STATED if (m := p.search(line[:4_000])) is not None), None)
            found = _named(stated.group(1).decode()) if stated is not None else found
    return found


def _named(names: str) -> frozenset[NodeName]:
    try:
        known = hostlist.expand_hostlist(names)
    except hostlist.BadHostlist:
        return frozenset()
    return frozenset(map(NodeName, known)) if len(known) <= _MAX_NODES else frozenset()
