# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The kernel's table of processes when memory ran out: whether the victim held the memory or somebody else did."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from relight.types import Action, Evidence

_MAX_ROWS = 8_000
# `[  pid  ]   uid  tgid total_vm      rss ... name`; columns after rss differ between kernels.
_ROW = re.compile(rb"\[\s*(\d+)\]\s+(\d+)\s+\d+\s+\d+\s+(\d+)\s+\d+.*\s(\S+)\s*$")
_BEGIN = re.compile(rb" invoked oom-killer: ")
_WHOLE_HOST = re.compile(rb"oom-kill:constraint=CONSTRAINT_(?!MEMCG)|(?<![Mm]emory cgroup )[Oo]ut of memory: Kill")
# The other user's share must leave no doubt: pages mapped by several processes are counted in each.
_SHARE = 2


@dataclass(frozen=True, slots=True)
class _Process:
    pid: int
    uid: int
    pages: int
    name: str


def with_memory_holder(e: Evidence, lines: Sequence[bytes], index: int) -> Evidence:
    """The claim with the node accused, if the host ran out of memory that another user than the victim's holds.

    Units: resident pages, summed over a user. Without a table, or within a memory cgroup, the claim stays as it is.
    """
    pid = e.captures.get("pid")
    if not isinstance(pid, int) or _WHOLE_HOST.search(lines[index]) is None:
        return e
    table = _table_before(lines, index)
    victim = next((p for p in table if p.pid == pid), None)
    if victim is None:
        return e
    held: dict[int, int] = {}
    for p in table:
        held[p.uid] = held.get(p.uid, 0) + p.pages
    most = max(held, key=lambda uid: held[uid])
    if most == victim.uid or held[most] < _SHARE * held[victim.uid]:
        return e
    largest = max((p for p in table if p.uid == most), key=lambda p: p.pages)
    return replace(
        e,
        title=f"{e.title}, which {largest.name} (pid {largest.pid}) of user {most} holds",
        action=Action.RESTART_EXCLUDING,
        accuses_node="writer",
    )


def _table_before(lines: Sequence[bytes], index: int) -> list[_Process]:
    out = []
    for at in range(index - 1, max(-1, index - _MAX_ROWS), -1):
        row = _ROW.search(lines[at])
        if row is not None:
            pid, uid, pages = (int(row.group(n)) for n in (1, 2, 3))
            out.append(_Process(pid, uid, pages, row.group(4).decode("utf-8", "replace")))
        elif _BEGIN.search(lines[at]) is not None:
            break
    return out
