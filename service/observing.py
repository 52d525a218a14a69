# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What arrives from outside: attempts, signals and log lines, known from repetitions and folded."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from relight.events import AttemptObserved, Event, SignalAccepted
from relight.types import (
    AttemptId,
    ClusterId,
    Heartbeat,
    LogLine,
    NodeEvent,
    Observation,
    SchedulerState,
    StepProgress,
    StepTiming,
)
from service import course
from service.config import Ingest
from service.dedup import SeenLately
from service.journal import Journal
from service.loop import Loop
from service.records import AttemptRecord
from service.refusals import Refused

_Place = tuple[AttemptId, str]


class Fate(StrEnum):
    """What became of one item of a batch; only `failed` is worth sending again, after mending it."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal with the key that makes it safe to send twice."""

    source: str
    source_event_id: str
    attempt: AttemptId | None
    cluster: ClusterId
    observation: Observation | None
    kind: str
    rate: float | None = None


@dataclass(frozen=True, slots=True)
class ItemFate:
    fate: Fate
    detail: str = ""


class Intake:
    """Takes in observations; nothing is answered as accepted before what must last is recorded.

    Errors: AuditUnavailable, and then no key counts as seen, so that sending again works.
    """

    def __init__(self, journal: Journal, loop: Loop, settings: Ingest) -> None:
        self._journal = journal
        self._loop = loop
        window = timedelta(seconds=settings.dedup_window_s)
        self._signals = SeenLately(window, settings.dedup_keys)
        self._lines = SeenLately(window, settings.dedup_keys)
        self._numbers: dict[_Place, int] = {}

    # -------------------------------------------------------------- attempts

    def put_attempt(self, seen: AttemptObserved) -> tuple[AttemptRecord, bool]:
        """Upsert; an older look changes nothing, and an equal one is not recorded again."""
        with self._loop.lock, self._journal.lock:
            state = self._journal.state
            known = state.attempts.get(seen.attempt)
            if known is not None and _owner(known.seen) != _owner(seen):
                raise Refused("invalid", f"attempt {seen.attempt!r} belongs to {_owner(known.seen)}")
            if known is not None and _observed_at(seen) < known.observed_at:
                return known, False
            if known is None or _content(known.seen) != _content(seen):
                self._journal.record(seen)
                fresh = state.attempts[seen.attempt]
                self._journal.record(*course.after_observation(state, fresh, seen.at))
                self._loop.place(fresh)
            return state.attempts[seen.attempt], True

    # -------------------------------------------------------------- signals

    def accept_signals(self, signals: Sequence[Signal], actor: str) -> list[ItemFate]:
        """One verdict for each signal, in order."""
        with self._loop.lock, self._journal.lock:
            now, state = self._journal.now(), self._journal.state
            verdicts, fresh, keys = list[ItemFate](), list[Signal](), set[bytes]()
            for signal in signals:
                key = _key(signal.cluster, signal.source, signal.source_event_id)
                if key in self._signals or key in keys:
                    verdicts.append(ItemFate(Fate.DUPLICATE))
                elif signal.attempt is not None and signal.attempt not in state.attempts:
                    verdicts.append(ItemFate(Fate.FAILED, f"unknown attempt {signal.attempt!r}: PUT it first"))
                else:
                    keys.add(key)
                    fresh.append(signal)
                    verdicts.append(ItemFate(Fate.ACCEPTED))
            self._journal.record(*_summaries(fresh, verdicts, now, actor))
            for key in keys:
                self._signals.add(key, now)
            self._fold(fresh, now)
            return verdicts

    def _fold(self, fresh: Sequence[Signal], now: datetime) -> None:
        state = self._journal.state
        for signal in fresh:
            match signal.observation:
                case None:
                    continue
                case SchedulerState() as seen:
                    self.put_attempt(_restated(state.attempts[seen.attempt].seen, seen, now))
                    continue
                case LogLine() as seen:
                    place = (seen.attempt, seen.file)
                    number = seen.number if seen.number > 0 else self._numbers.get(place, 0) + 1
                    self._numbers[place] = max(number, self._numbers.get(place, 0))
                    self._loop.observe_lines(seen.attempt, [replace(seen, number=number)])
                    continue
                case StepProgress(is_completed=True) as seen:
                    attempt = state.attempts[seen.attempt]
                    events = course.after_progress(state, attempt, seen.step, seen.checkpoint_step, now)
                    self._journal.record(*events)
                case _:
                    pass
            self._loop.observe(signal.observation)

    # -------------------------------------------------------------- log lines

    def accept_lines(self, lines: Sequence[LogLine], batch: bytes, source: str, actor: str) -> tuple[int, int]:
        """How many lines were new, and how many are behind what was seen of their file already.

        A line is told from its repetition by its number in the file, else by its time; lines with neither
        are told apart by their batch alone, since a program may print the same words twice.
        """
        with self._loop.lock:
            now = self._journal.now()
            fresh = _Fresh(self._lines, self._numbers)
            fresh.take(lines, batch)
            state = self._journal.state
            events = [
                SignalAccepted(
                    at=now,
                    source=source,
                    accepted=len(own),
                    duplicates=len(lines) - fresh.count if index == 0 else 0,
                    digest=batch.hex(),
                    attempt=attempt,
                    workload=state.attempts[attempt].seen.workload,
                    cluster=state.attempts[attempt].seen.cluster,
                    actor=actor,
                    counts={"lines": len(own)},
                )
                for index, (attempt, own) in enumerate(fresh.by_attempt.items())
            ]
            self._journal.record(*events)
            self._numbers.update(fresh.numbers)
            for key in fresh.keys:
                self._lines.add(key, now)
            for attempt, own in fresh.by_attempt.items():
                self._loop.observe_lines(attempt, own)
            return fresh.count, len(lines) - fresh.count


class _Fresh:
    """The lines of a batch that were not seen before; what it learns counts only once it is on record."""

    def __init__(self, seen: SeenLately, numbers: Mapping[_Place, int]) -> None:
        self._seen = seen
        self._known = numbers
        self.numbers: dict[_Place, int] = {}
        self.keys: set[bytes] = set()
        self.by_attempt: dict[AttemptId, list[LogLine]] = {}
        self.count = 0

    def take(self, lines: Sequence[LogLine], batch: bytes) -> None:
        whole = b"batch" + batch
        is_repeated = whole in self._seen
        self.keys.add(whole)
        for line in lines:
            if line.number > 0:
                self._take_numbered(line)
            elif line.at is not None:
                self._take_timed(line)
            elif not is_repeated:
                self._keep(line)

    def _take_numbered(self, line: LogLine) -> None:
        place = (line.attempt, line.file)
        if line.number > self._highest(place):
            self.numbers[place] = line.number
            self._add(line)

    def _take_timed(self, line: LogLine) -> None:
        who = (str(line.node), str(line.rank))
        at = line.at.isoformat() if line.at is not None else ""
        key = _key(line.attempt, line.file, *who, at, line.text)
        if key not in self._seen and key not in self.keys:
            self.keys.add(key)
            self._keep(line)

    def _keep(self, line: LogLine) -> None:
        """Lines that come without a number are counted as they arrive."""
        place = (line.attempt, line.file)
        self.numbers[place] = self._highest(place) + 1
        self._add(replace(line, number=self.numbers[place]))

    def _highest(self, place: _Place) -> int:
        found = self.numbers.get(place)
        return self._known.get(place, 0) if found is None else found

    def _add(self, line: LogLine) -> None:
        self.by_attempt.setdefault(line.attempt, []).append(line)
        self.count += 1


def _observed_at(seen: AttemptObserved) -> datetime:
    return datetime.fromisoformat(seen.detail["observed_at"])


def _restated(known: AttemptObserved, seen: SchedulerState, now: datetime) -> AttemptObserved:
    """The attempt as known, with the state that a scheduler's event reports."""
    return replace(
        known,
        at=now,
        state=seen.state,
        reason=seen.reason or known.reason,
        exit_code=known.exit_code if seen.exit_code is None else seen.exit_code,
        signal=known.signal if seen.signal is None else seen.signal,
        failed_nodes=seen.failed_nodes or known.failed_nodes,
        actor=seen.actor or known.actor,
        detail={**known.detail, "observed_at": seen.at.isoformat()},
    )


def _owner(seen: AttemptObserved) -> str:
    return f"workload {seen.workload} of cluster {seen.cluster}"


def _content(seen: AttemptObserved) -> tuple[object, ...]:
    """What an observation says, whenever it was made."""
    detail = {key: value for key, value in seen.detail.items() if key != "observed_at"}
    return (seen.state, seen.workload, seen.cluster, seen.attempt_index, seen.nodes, seen.failed_nodes,
            seen.reason, seen.exit_code, seen.signal, seen.actor, dict(seen.scheduler), detail)  # fmt: skip


def _key(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()


def _summaries(fresh: Sequence[Signal], verdicts: Sequence[ItemFate], now: datetime, actor: str) -> list[Event]:
    """One event for each attempt and source of a batch: counted, with what the fold needs, not copied."""
    groups: dict[tuple[AttemptId | None, ClusterId, str], list[Signal]] = {}
    for signal in fresh:
        groups.setdefault((signal.attempt, signal.cluster, signal.source), []).append(signal)
    fates = Counter(verdict.fate for verdict in verdicts)
    return [
        SignalAccepted(
            at=now,
            source=source,
            accepted=len(own),
            duplicates=fates[Fate.DUPLICATE] if index == 0 else 0,
            refused=fates[Fate.FAILED] if index == 0 else 0,
            attempt=attempt,
            cluster=cluster,
            actor=actor,
            counts=_counts(own),
        )
        for index, ((attempt, cluster, source), own) in enumerate(groups.items())
    ]


def _counts(signals: Sequence[Signal]) -> dict[str, Any]:
    counts: dict[str, Any] = dict(Counter(signal.kind for signal in signals))
    nodes = list[dict[str, Any]]()
    for signal in signals:
        match signal.observation:
            case StepProgress(is_completed=True) as seen:
                for name, reached in (("step", seen.step), ("checkpoint_step", seen.checkpoint_step)):
                    if reached is not None:
                        counts[name] = max(reached, counts.get(name, reached))
            case NodeEvent() as seen:
                nodes.append({"node": seen.node, "code": seen.code, "is_fatal": seen.is_fatal})
            case StepProgress() | StepTiming() | Heartbeat() | SchedulerState() | LogLine() | None:
                pass
    return {**counts, "node_events": nodes} if nodes else counts
