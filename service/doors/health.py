# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What health services say of machines, as signals: the node accused, and the jobs that held it then."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

from relight.types import AttemptId, ClusterId, LogLine, NodeEvent, NodeName, Observation, Stream
from service.allocations import Allocations, spelled
from service.loop import FORGET_AFTER
from service.observing import Signal
from service.records import AttemptRecord

# Health services send weeks of the past after a restart: that is no news of a machine's state.
STALE_AFTER = FORGET_AFTER
_MAX_KEY = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that a health service found. `key` is the same in every repetition.

    `is_fatal`: the machine should not be used; `is_evidence`: it may explain a job's failure.
    """

    source: str
    key: str
    at: datetime
    code: str
    text: str
    node: str | None = None
    gpu: str | None = None
    job: AttemptId | None = None
    is_fatal: bool = False
    is_evidence: bool = True
    stream: Stream = Stream.DCGM


def signals(found: Finding, cluster: ClusterId, allocations: Allocations, now: datetime) -> Iterator[Signal]:
    """The node's own signal, then one line of evidence for every attempt that it concerns."""
    is_stale = now - found.at > STALE_AFTER
    if found.node is not None:
        yield _signal(found, cluster, None, _node_event(found, is_fatal=found.is_fatal and not is_stale))
    if not found.is_evidence or is_stale:
        return
    if found.job is not None:
        yield _signal(found, cluster, found.job, _line(found, found.job, found.node))
        return
    for holder in held_lately(allocations, cluster, found.node, found.at, now):
        yield _signal(found, cluster, holder.id, _line(found, holder.id, spelled(found.node or "", holder)))


def held_lately(
    allocations: Allocations, cluster: ClusterId, node: str | None, at: datetime, now: datetime
) -> tuple[AttemptRecord, ...]:
    """The holders of a node at a moment whose attempts are still worth explaining."""
    if node is None:
        return ()
    holders = allocations.holders(cluster, node, at)
    return tuple(one for one in holders if one.ended_at is None or now - one.ended_at <= STALE_AFTER)


def at_most(text: str, size: int) -> str:
    return text if len(text) <= size else text[: size - 1] + "…"


def is_future(at: datetime, now: datetime) -> bool:
    """True for a time that only a wrong clock can have given."""
    return at - now > timedelta(hours=1)


def _node_event(found: Finding, *, is_fatal: bool) -> NodeEvent:
    return NodeEvent(
        at=found.at,
        node=NodeName(found.node or ""),
        code=at_most(found.code, _MAX_KEY),
        is_fatal=is_fatal,
        text=at_most(found.text, 2_000),
        gpu=found.gpu,
    )


def _line(found: Finding, attempt: AttemptId, node: str | None) -> LogLine:
    return LogLine(
        attempt=attempt, file=found.source, number=0, stream=found.stream, text=at_most(found.text, 16_000),
        at=found.at, node=NodeName(node) if node else None,
    )  # fmt: skip


def _signal(found: Finding, cluster: ClusterId, attempt: AttemptId | None, seen: Observation) -> Signal:
    return Signal(
        source=found.source,
        source_event_id=f"{found.key}/{attempt or 'node'}",
        attempt=attempt,
        cluster=cluster,
        observation=seen,
        kind="node_event" if attempt is None else "log",
    )
