# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What arrives from outside: attempts, signals and log lines, known from repetitions and folded."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from relight.events import AttemptObserved, Event, SignalAccepted
from relight.shape import StatedShape
from relight.types import (
    AttemptId,
    ClusterId,
    Heartbeat,
    JobShape,
    LogLine,
    NodeEvent,
    Observation,
    SchedulerState,
    StepBatch,
    StepProgress,
    StepTiming,
)
from service import course
from service.config import Ingest
from service.dedup import SeenLately
from service.fresh_lines import key_of
from service.held_memory import HeldInMemory
from service.holding import Addressee, Holding, bounds_of
from service.journal import Journal
from service.line_intake import Held, LineIntake
from service.loop import Loop
from service.read_lines import ReadLines
from service.records import TRAINS_WITH, AttemptRecord
from service.refusals import Refused
from service.step_gathering import StepGathering

_Place = tuple[AttemptId, str]


class Fate(StrEnum):
    """What became of one item of a batch; only `failed` is worth sending again, after mending it."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One signal with the key that makes it safe to send twice.

    `rate` is what a throughput says, per second, and `shape` what a job says that it trains with: neither is an
    observation by itself.
    """

    source: str
    source_event_id: str
    attempt: AttemptId | None
    cluster: ClusterId
    observation: Observation | None
    kind: str
    rate: float | None = None
    shape: StatedShape | None = None


@dataclass(frozen=True, slots=True)
class ItemFate:
    fate: Fate
    detail: str = ""


class Intake:
    """Takes in observations; nothing is answered as accepted before what must last is recorded.

    Errors: AuditUnavailable, and then no key counts as seen, so that sending again works.
    """

    def __init__(self, journal: Journal, loop: Loop, settings: Ingest, holding: Holding | None = None) -> None:
        self._journal = journal
        self._loop = loop
        self._signals = SeenLately(timedelta(seconds=settings.dedup_window_s), settings.dedup_keys)
        if holding is None:
            holding = Holding(HeldInMemory(), bounds_of(settings))
        self.lines = LineIntake(journal, loop, settings, holding)
        self._steps = StepGathering()

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
                self._loop.introduce(fresh)
                self.lines.claim(fresh)
                self._loop.place(state.attempts[seen.attempt])
            return state.attempts[seen.attempt], True

    # -------------------------------------------------------------- signals

    def accept_signals(self, signals: Sequence[Signal], actor: str) -> list[ItemFate]:
        """One verdict for each signal, in order."""
        with self._loop.lock, self._journal.lock:
            now, state = self._journal.now(), self._journal.state
            verdicts, fresh, keys = list[ItemFate](), list[Signal](), set[bytes]()
            for signal in signals:
                key = key_of(signal.cluster, signal.source, signal.source_event_id)
                if key in self._signals or key in keys:
                    verdicts.append(ItemFate(Fate.DUPLICATE))
                elif signal.attempt is not None and signal.attempt not in state.attempts:
                    verdicts.append(ItemFate(Fate.FAILED, f"unknown attempt {signal.attempt!r}: PUT it first"))
                else:
                    keys.add(key)
                    fresh.append(signal)
                    verdicts.append(ItemFate(Fate.ACCEPTED))
            lines = self._logged(fresh, now)
            self._journal.record(*self._summaries(fresh, lines, verdicts, now, actor))
            for key in keys:
                self._signals.add(key, now)
            self._fold(fresh, lines, now)
            return verdicts

    def _logged(self, fresh: Sequence[Signal], now: datetime) -> dict[AttemptId, ReadLines]:
        """The log lines among signals, numbered, each with the progress that it states."""
        lines: dict[AttemptId, list[LogLine]] = {}
        highest: dict[_Place, int] = {}
        for signal in fresh:
            if isinstance(seen := signal.observation, LogLine):
                place = (seen.attempt, seen.file)
                known = highest.get(place, self._journal.state.numbers.get(seen.attempt, {}).get(seen.file, 0))
                number = seen.number if seen.number > 0 else known + 1
                highest[place] = max(number, known)
                lines.setdefault(seen.attempt, []).append(replace(seen, number=number))
        return {attempt: self._loop.read(own, now) for attempt, own in lines.items()}

    def _fold(self, fresh: Sequence[Signal], lines: Mapping[AttemptId, ReadLines], now: datetime) -> None:
        state = self._journal.state
        for attempt, read in lines.items():
            self._loop.observe_lines(attempt, read)
        seen_steps = list[Observation]()
        for signal in fresh:
            match signal.observation:
                case None if signal.shape is not None:
                    self._loop.state_shape(signal.shape)
                case None:
                    if signal.attempt is not None and signal.rate is not None:
                        self._steps.rated(signal.attempt, signal.rate)
                case SchedulerState() as seen:
                    self.put_attempt(_restated(state.attempts[seen.attempt].seen, seen, now))
                case LogLine():
                    pass
                case StepProgress(is_completed=True) as seen:
                    attempt_record = state.attempts[seen.attempt]
                    events = course.after_progress(state, attempt_record, seen.step, seen.checkpoint_step, now)
                    self._journal.record(*events)
                    seen_steps.append(seen)
                case seen:
                    seen_steps.append(seen)
        for seen in self._steps.gathered(seen_steps, now, self._world_size):
            self._loop.observe(seen)

    def _world_size(self, attempt: AttemptId) -> int | None:
        placed = self._journal.state.attempts[attempt].detail("rank_to_node")
        return len(placed) if placed else None

    def _summaries(
        self,
        fresh: Sequence[Signal],
        lines: Mapping[AttemptId, ReadLines],
        verdicts: Sequence[ItemFate],
        now: datetime,
        actor: str,
    ) -> list[Event]:
        """One event for each attempt and source of a batch: counted, with what the fold needs, not copied."""
        groups: dict[tuple[AttemptId | None, ClusterId, str], list[Signal]] = {}
        for signal in fresh:
            groups.setdefault((signal.attempt, signal.cluster, signal.source), []).append(signal)
        fates = Counter(verdict.fate for verdict in verdicts)
        told = set[AttemptId]()
        events = list[Event]()
        for index, ((attempt, cluster, source), own) in enumerate(groups.items()):
            counts = _counts(own)
            if attempt is not None:
                counts |= self.lines.shape_counts(attempt, (one.shape for one in own if one.shape is not None))
            if attempt is not None and attempt in lines and attempt not in told:
                told.add(attempt)
                _join(counts, self.lines.counts(attempt, lines[attempt], source))
            events.append(
                SignalAccepted(
                    at=now,
                    source=source,
                    accepted=len(own),
                    duplicates=fates[Fate.DUPLICATE] if index == 0 else 0,
                    refused=fates[Fate.FAILED] if index == 0 else 0,
                    attempt=attempt,
                    cluster=cluster,
                    actor=actor,
                    counts=counts,
                )
            )
        return events

    # -------------------------------------------------------------- log lines

    def accept_lines(self, lines: Sequence[LogLine], batch: bytes, source: str, actor: str) -> tuple[int, int]:
        """How many lines were new, and how many were known: see `LineIntake.accept`."""
        return self.lines.accept(lines, batch, source, actor)

    def hold_lines(
        self, lines: Mapping[Addressee, Sequence[LogLine]], batch: bytes, source: str, actor: str
    ) -> dict[Addressee, Held]:
        """Lines whose attempt is not registered yet, kept for it: see `LineIntake.hold`."""
        return self.lines.hold(lines, batch, source, actor)


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
                told = {"node": seen.node, "code": seen.code, "is_fatal": seen.is_fatal}
                nodes.append(told | {"at": seen.at.isoformat()})
            case StepProgress() | StepTiming() | StepBatch() | JobShape() | Heartbeat() | SchedulerState() | LogLine():
                pass
            case None:
                pass
    return {**counts, "node_events": nodes} if nodes else counts


def _join(counts: dict[str, Any], more: Mapping[str, Any]) -> None:
    """Progress that lines state joins what signals said of the same attempt: the furthest counts."""
    for name, value in more.items():
        is_reached = name in {"step", "checkpoint_step"} and name in counts
        joined = {**counts.get(name, {}), **value} if name == TRAINS_WITH else value
        counts[name] = max(counts[name], value) if is_reached else joined
