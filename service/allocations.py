# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which attempts held a node at a moment: how a machine's own words find the jobs they concern."""

from __future__ import annotations

import threading
from datetime import datetime, timedelta

from relight.events import AttemptObserved, Event
from relight.types import AttemptId, ClusterId, NodeName
from service.journal import Journal
from service.records import AttemptRecord

# An observer sees an attempt late, and a kernel speaks of it a little after its end.
SLACK = timedelta(minutes=2)
REMEMBERED_A_NODE = 16


class Allocations:
    """An index from nodes to the attempts that held them last; follows the journal, thread-safe.

    Nodes are found by their full name or, where that is unknown, by its first label: a kernel calls itself
    `n7` where the scheduler says `n7.cluster.example`, and the other way round.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._lock = threading.Lock()
        self._held: dict[tuple[ClusterId, str], list[AttemptId]] = {}
        self._held_by_label: dict[tuple[ClusterId, str], list[AttemptId]] = {}
        for attempt in journal.state.attempts.values():
            self._place(attempt.seen)
        journal.listeners.append(self.recorded)

    def recorded(self, event: Event) -> None:
        if isinstance(event, AttemptObserved):
            self._place(event)

    def holders(self, cluster: ClusterId, node: str, at: datetime) -> tuple[AttemptRecord, ...]:
        """The attempts that held the node at that time, else the one that did so within two minutes of it."""
        names = self._names(cluster, node)
        with self._journal.view:
            known = [self._journal.state.attempts[name] for name in names if name in self._journal.state.attempts]
        there = [one for one in known if _distance(one, at) == timedelta()]
        if there:
            return tuple(there)
        near = min(known, key=lambda one: _distance(one, at), default=None)
        return (near,) if near is not None and _distance(near, at) <= SLACK else ()

    def first_label(node: str) -> str:
    """`n7` of `n7.cluster.example`; an address is one label."""
    return node if node.replace(".", "").isdigit() or ":" in node else node.partition(".")[0]
