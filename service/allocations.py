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

    def _names(self, cluster: ClusterId, node: str) -> tuple[AttemptId, ...]:
        label = first_label(node)
        with self._lock:
            found = self._held.get((cluster, node))
            if found is None and label != node:
                found = self._held.get((cluster, label))
            if found is None and label == node:
                found = self._held_by_label.get((cluster, node))
            return tuple(found or ())

    def _place(self, seen: AttemptObserved) -> None:
        with self._lock:
            for node in seen.nodes:
                _remember(self._held, (seen.cluster, node), seen.attempt)
                if (label := first_label(node)) != node:
                    _remember(self._held_by_label, (seen.cluster, label), seen.attempt)


def spelled(node: str, attempt: AttemptRecord) -> NodeName:
    """The node's name as the attempt's allocation spells it."""
    if node in attempt.seen.nodes:
        return NodeName(node)
    label = first_label(node)
    if label in attempt.seen.nodes:
        return NodeName(label)
    return next((one for one in attempt.seen.nodes if label == node == first_label(one)), NodeName(node))


def first_label(node: str) -> str:
    """`n7` of `n7.cluster.example`; an address is one label."""
    return node if node.replace(".", "").isdigit() or ":" in node else node.partition(".")[0]


def _remember(index: dict[tuple[ClusterId, str], list[AttemptId]], key: tuple[ClusterId, str], name: AttemptId) -> None:
    held = index.setdefault(key, [])
    if name not in held:
        held.append(name)
        del held[:-REMEMBERED_A_NODE]


def _distance(attempt: AttemptRecord, at: datetime) -> timedelta:
    """How far a moment is from the time that the attempt held its nodes; zero within."""
    started = attempt.detail("started_at")
    begin = datetime.fromisoformat(started) if isinstance(started, str) else attempt.first_seen_at
    if at < begin:
        return begin - at
    return max(at - attempt.ended_at, timedelta()) if attempt.ended_at is not None else timedelta()
