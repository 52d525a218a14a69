# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Past logs through today's service, case by case from a cold start, in the time that the lines state."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from detectors.lines import Lines
from detectors.log_text import LogText
from relight.events import AttemptObserved
from relight.ports import Clock
from relight.types import (
    NO_FAILURE,
    Action,
    AttemptId,
    AttemptState,
    ClusterId,
    LogLine,
    NodeName,
    Trigger,
    WorkloadId,
)
from service.advisor import Request
from service.application import Application

BATCH = timedelta(seconds=10)
MAX_BATCH = 2_000
SETTLE = timedelta(seconds=30)
_UNTIMED = datetime(2000, 1, 1, tzinfo=UTC)
_ASSUMED_NODES = 1_000
_CLUSTER = ClusterId("default")


@dataclass(slots=True)
class EventClock:
    """Time as the lines tell it; it never runs back, whatever they say."""

    at: datetime = _UNTIMED

    def now(self) -> datetime:
        return self.at

    def reach(self, at: datetime) -> None:
        self.at = max(self.at, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What would have been said of one case. `delay_s` is from the onset that the lines state to detection.

    `before_end_s`: how long before the last line it was detected; both are None where lines state no time.
    """

    name: str
    failure: str
    failure_class: str
    action: str
    nodes: tuple[str, ...] = ()
    signature: str | None = None
    root_file: str | None = None
    root_line: int | None = None
    evidence_status: str = ""
    reason: str = ""
    kinds: tuple[str, ...] = ()
    delay_s: float | None = None
    before_end_s: float | None = None
    runtime_s: float | None = None
    lines: int = 0

    def as_json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


ColdStart = Callable[[Clock], Application]


@dataclass(frozen=True, slots=True)
class LogReplay:
    """Replays one case at a time, each in a service that has seen nothing else."""

    start: ColdStart

    def replay(self, name: str, logs: Sequence[LogText]) -> Replayed:
        clock = EventClock()
        entries = _Entries(logs)
        clock.reach(entries.begin or _UNTIMED)
        app = self.start(clock)
        attempt = AttemptId(f"replay-{hashlib.sha256(name.encode()).hexdigest()[:12]}")
        nodes = tuple(dict.fromkeys(log.node for log in logs if log.node is not None))
        app.intake.put_attempt(_seen(attempt, AttemptState.RUNNING, nodes, clock))
        for batch in entries.batches(attempt):
            clock.reach(max((at for line in batch if (at := line.at) is not None), default=clock.at))
            digest = hashlib.sha256(f"{name}/{batch[0].file}/{batch[0].number}".encode()).digest()
            app.intake.accept_lines(batch, digest, "replay", "replay")
            app.loop.tick(clock.now())
        ended = clock.now()
        clock.reach(ended + SETTLE)
        app.loop.tick(clock.now())
        state = AttemptState.FAILED if _has_failed(app, attempt) else AttemptState.COMPLETED
        app.intake.put_attempt(_seen(attempt, state, nodes, clock))
        return _verdict(app, attempt, name, entries, ended)


@dataclass(slots=True)
class _Entries:
    """The lines of a case in the order of their times, as far as they state any."""

    logs: Sequence[LogText]
    begin: datetime | None = None
    end: datetime | None = None
    count: int = 0
    _ordered: list[tuple[datetime, int, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """A line without a time of its own belongs to the one before it; a file's first ones to its first time."""
        for which, log in enumerate(self.logs):
            lines, own = Lines(log), list[datetime | None]()
            for index in range(len(log.lines)):
                stamped = lines.prefix(index).at
                own.append(stamped if stamped is not None and stamped.tzinfo is not None else None)
            first = next((at for at in own if at is not None), None)
            last = first or _UNTIMED
            for index, at in enumerate(own):
                last = max(last, at) if at is not None else last
                self._ordered.append((last, which, index))
            if first is not None:
                self.begin = min(self.begin or first, first)
                self.end = max(self.end or last, last)
        self._ordered.sort()
        self.count = len(self._ordered)

    def batches(self, attempt: AttemptId) -> Iterator[list[LogLine]]:
        batch, until = list[LogLine](), None
        for at, which, index in self._ordered:
            is_late = until is not None and at > until
            if batch and (is_late or len(batch) >= MAX_BATCH):
                yield batch
                batch = []
            if not batch:
                until = at + BATCH
            batch.append(self._line(attempt, at, which, index))
        if batch:
            yield batch

    def _line(self, attempt: AttemptId, at: datetime, which: int, index: int) -> LogLine:
        log = self.logs[which]
        return LogLine(
            attempt=attempt, file=log.name, number=index + 1, stream=log.stream,
            text=log.lines[index].decode("utf-8", "replace"), at=at if at != _UNTIMED else None,
            node=log.node, rank=log.rank,
        )  # fmt: skip

    def physical(self, file: str, number: int) -> int:
        """The line of the file that a logical line begins on."""
        for log in self.logs:
            if log.name == file and 0 < number <= len(log.numbers):
                return int(log.numbers[number - 1])
        return number


def _seen(attempt: AttemptId, state: AttemptState, nodes: tuple[NodeName, ...], clock: EventClock) -> AttemptObserved:
    """The attempt as a scheduler would tell it, with the facts that a controller would have checked."""
    return AttemptObserved(
        at=clock.now(),
        attempt=attempt,
        workload=WorkloadId(f"workload-{attempt}"),
        cluster=_CLUSTER,
        state=state,
        nodes=nodes,
        exit_code={AttemptState.FAILED: 1, AttemptState.COMPLETED: 0}.get(state),
        scheduler={"kind": "replay", "job_id": attempt},
        detail={
            "observed_at": clock.now().isoformat(), "requeueable": True, "requested_nodes": max(len(nodes), 1),
            "cluster_nodes": _ASSUMED_NODES, "partition_nodes": _ASSUMED_NODES, "eligible_nodes": _ASSUMED_NODES,
        },
    )  # fmt: skip


def _has_failed(app: Application, attempt: AttemptId) -> bool:
    """No scheduler tells how a past run ended: it failed if its logs name a failure that ends runs."""
    named = app.advisor.attribution(attempt).failure
    entry = app.policies.table().failures.get(named)
    return named != NO_FAILURE and (entry is None or entry.action is not Action.CONTINUE)


def _verdict(app: Application, attempt: AttemptId, name: str, entries: _Entries, ended: datetime) -> Replayed:
    ask = Request(attempt=attempt, trigger=Trigger.EXITED, key="replay", body_sha256="", actor="replay")
    issued = app.advisor.advise(ask).recommendation.issued
    said = app.advisor.attribution(attempt)
    found = [one.event.anomaly for one in app.journal.state.anomalies_of.get(attempt, ())]
    first = min(found, key=lambda one: one.detected_at, default=None)
    is_timed, root = entries.begin is not None, said.root
    action = Action.CONTINUE if issued.action is Action.NO_DECISION else issued.action
    return Replayed(
        name=name,
        failure=said.failure,
        failure_class=said.failure_class,
        action=action,
        nodes=tuple(one.node for one in issued.exclusions) if action is Action.RESTART_EXCLUDING else (),
        signature=root.signature if root is not None else None,
        root_file=root.where.file if root is not None else None,
        root_line=entries.physical(root.where.file, root.where.line) if root is not None else None,
        evidence_status=said.evidence_status,
        reason=issued.reason,
        kinds=tuple(dict.fromkeys(str(one.kind) for one in found)),
        delay_s=max((first.detected_at - first.onset_at).total_seconds(), 0.0) if first and is_timed else None,
        before_end_s=(ended - first.detected_at).total_seconds() if first and is_timed else None,
        runtime_s=(entries.end - entries.begin).total_seconds() if entries.begin and entries.end else None,
        lines=entries.count,
    )
