# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Slurm's compact lists of hosts, opened and closed within bounds."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hostlist import BadHostlist, collect_hostlist, expand_hostlist

from relight.types import NodeName

MAX_NODES = 65_536
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,253}")
_EMPTY = frozenset({"", "(null)", "None", "None assigned", "N/A", "n/a"})


def expanded(compact: str) -> tuple[NodeName, ...]:
    """The hosts in order, without repetitions.

    Errors: ValueError for a list that is malformed, names an impossible host or more than 65,536 of them.
    """
    if compact.strip() in _EMPTY:
        return ()
    if len(compact) > 1_000_000:
        raise ValueError(f"host list of {len(compact)} characters, the limit is 1,000,000")
    try:
        names = expand_hostlist(compact.strip(), allow_duplicates=False, sort=False)
    except BadHostlist as why:
        raise ValueError(f"host list {compact[:200]!r}: {why}") from why
    if len(names) > MAX_NODES:
        raise ValueError(f"host list of {len(names)} hosts, the limit is {MAX_NODES}")
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"host list {compact[:200]!r} holds {name!r}, which is no host name")
    return tuple(map(NodeName, names))


def compacted(nodes: Iterable[NodeName]) -> str:
    """The list as Slurm takes it. Errors: ValueError for a name that could be more than a name."""
    names = sorted(set(nodes))
    for name in names:
        if _NAME.fullmatch(name) is None:
            raise ValueError(f"{name!r} is no host name")
    return str(collect_hostlist(names)) if names else ""
