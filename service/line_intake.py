# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Log lines of many attempts: told from repetitions, recorded, and only then shown to whoever judges them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import structlog

from relight.events import Event, SignalAccepted
from relight.ports import AuditUnavailable
from relight.shape import StatedShape
from relight.types import AttemptId, LogLine, WorkloadId
from service import course
from service.allocations import spelled
from service.config import Ingest
from service.dedup import SeenLately
from service.drafts import readdressed
from service.fresh_lines import FreshLines, key_of, whole_key
from service.holding import REFUSED, Addressee, Batch, Holding
from service.journal import Journal
from service.loop import Loop
from service.read_lines import ReadLines
from service.records import TRAINS_WITH, AttemptRecord
from service.step_tally import StepTally
from service.told_lines import OWED, TOLD, worth_telling

log = structlog.get_logger(__name__)
FOLLOWED = "follow"


@dataclass(frozen=True, slots=True)
class Held:
    """What became of lines whose attempt was not known; `refusal` says why `refused` of them are not held."""

    held: int = 0
    accepted: int = 0
    duplicates: int = 0
    refused: int = 0
    refusal: str = ""


@dataclass(slots=True)
class _Asked:
    """A batch whose sender waits for an answer."""

    lines: Sequence[LogLine]
    batch: bytes
    source: str
    actor: str
    told: tuple[int, int] = (0, 0)
    why: Exception | None = None
    is_done: bool = False


@dataclass(frozen=True, slots=True)
class _Arrival:
    """The new lines of a batch, and when they came."""

    fresh: FreshLines
    duplicates: int
    batch: bytes
    source: str
    actor: str
    at: datetime


class LineIntake:
    """Takes in lines by batches; nothing is answered as accepted before what must last is recorded.

    Batches that come while one is being recorded are recorded together, whoever gets the lock first doing the work
    of all: many senders then wait for the disk once and not one after the other.
    Errors: AuditUnavailable, and then no key counts as seen, so that sending again works.
    """

    def __init__(self, journal: Journal, loop: Loop, settings: Ingest, holding: Holding) -> None:
        self._journal = journal
        self._loop = loop
        self._seen = SeenLately(timedelta(seconds=settings.dedup_window_s), settings.dedup_keys)
        self._tally = StepTally()
        self._waiting: deque[_Asked] = deque()
        self.holding = holding

    def accept(self, lines: Sequence[LogLine], batch: bytes, source: str, actor: str) -> tuple[int, int]:
        """How many lines were new, and how many are behind what was seen of their file already.

        A line is told from its repetition by its number in the file, else by its time and its count among equal
        ones; lines with neither are told apart by their batch alone.
        """
        asked = _Asked(lines, batch, source, actor)
        self._waiting.append(asked)
        with self._loop.lock:
            while not asked.is_done:  # those before it may be of the same job, and are taken by themselves
                self._take_together()
        if asked.why is not None:
            raise asked.why
        return asked.told

    def _take_together(self) -> None:
        """Everything that waits for the lock and is of different jobs, with one wait for the disk for all of it."""
        group: list[_Asked] = []
        jobs: set[WorkloadId | AttemptId] = set()
        while self._waiting:
            own = self._jobs_of(self._waiting[0].lines)
            if group and not jobs.isdisjoint(own):
                break
            jobs |= own
            group.append(self._waiting.popleft())
        try:
            self._take_in([self._arrival(one) for one in group])
            why: Exception | None = None
        except Exception as fault:  # noqa: BLE001 -- each of them raises it in its own thread
            why = fault
        for one in group:
            one.why, one.is_done = why, True

    def _jobs_of(self, lines: Sequence[LogLine]) -> set[WorkloadId | AttemptId]:
        attempts = self._journal.state.attempts
        return {attempts[name].seen.workload for name in {line.attempt for line in lines} if name in attempts}

    def _arrival(self, asked: _Asked) -> _Arrival:
        fresh = FreshLines(self._seen, self._journal.state.numbers)
        fresh.take(asked.lines, asked.batch)
        asked.told = (fresh.count, len(asked.lines) - fresh.count)
        return _Arrival(fresh, asked.told[1], asked.batch, asked.source, asked.actor, self._journal.now())

    def _take_in(self, arrivals: Sequence[_Arrival]) -> None:
        now = self._journal.now()
        read = [
            (one, attempt, self._loop.read(own, one.at))
            for one in arrivals
            for attempt, own in one.fresh.by_attempt.items()
        ]
        with self._journal.lock:
            self._journal.record(
                *(event for one, attempt, own in read for event in self._arrived(one, attempt, own, now))
            )
        for one in arrivals:
            for key in one.fresh.keys:
                self._seen.add(key, now)
        for _, attempt, own in read:
            self._loop.observe_lines(attempt, own)

    def _arrived(self, arrival: _Arrival, attempt: AttemptId, read: ReadLines, now: datetime) -> list[Event]:
        state = self._journal.state
        known = state.attempts[attempt]
        counts = self.counts(attempt, read, arrival.source)
        is_first = attempt == next(iter(arrival.fresh.by_attempt))
        return [
            SignalAccepted(
                at=now,
                source=arrival.source,
                accepted=len(read.lines),
                duplicates=arrival.duplicates if is_first else 0,
                digest=arrival.batch.hex(),
                attempt=attempt,
                workload=known.seen.workload,
                cluster=known.seen.cluster,
                actor=arrival.actor,
                counts=counts,
            ),
            *course.after_progress(state, known, counts.get("step"), counts.get("checkpoint_step"), now),
        ]

    def counts(self, attempt: AttemptId, read: ReadLines, source: str) -> dict[str, Any]:
        """What a batch of lines adds to an attempt: how many, up to which number of which file, and progress.

        A followed file that an earlier attempt wrote to goes on with its numbers, which leaves no gap.
        """
        known = self._journal.state.numbers.get(attempt, {})
        files: dict[str, int] = {}
        gaps, file, before = 0, None, 0
        for line in read.lines:
            number = line.number
            if line.file != file:
                file = line.file
                before = files.get(file, known.get(file, number - 1 if source == FOLLOWED else 0))
            gaps += number > before + 1
            before = files[file] = max(number, before)
        stated = list(read.stated)
        steps = (one for one in stated if not isinstance(one, StatedShape))
        counts = {"lines": len(read.lines), "files": files, **self._tally.counts(attempt, steps)}
        counts |= self.shape_counts(attempt, (one for one in stated if isinstance(one, StatedShape)))
        if source != FOLLOWED and read.marks is not None:
            known_told = self._journal.state.told
            told, owed = worth_telling(
                read.lines, read.marks, read.progress, known_told.room(attempt), known_told.owed(attempt)
            )
            counts |= {TOLD: told, OWED: owed} if told else {}
        return {**counts, "gaps": gaps} if gaps else counts

    def shape_counts(self, attempt: AttemptId, said: Iterable[StatedShape]) -> dict[str, Any]:
        """What the job stated of its shape, as far as that is not on record yet."""
        known = self._journal.state.attempts.get(attempt)
        whole: StatedShape | None = None
        for one in said:
            whole = one.after(whole)
        if whole is None or known is None:
            return {}
        news = {name: value for name, value in whole.as_json().items() if known.shape.get(name) != value}
        return {TRAINS_WITH: news} if news else {}

    # -------------------------------------------------------------- lines of attempts that are not known

    def hold(
        self, lines: Mapping[Addressee, Sequence[LogLine]], batch: bytes, source: str, actor: str
    ) -> dict[Addressee, Held]:
        """Keep lines until their attempt is registered; one that is by now takes its own at once."""
        told: dict[Addressee, Held] = {}
        with self._loop.lock:
            now, seen = self._journal.now(), FreshLines(self._seen, self.holding.numbers, is_final=False)
            kept: list[Batch] = []
            size = 0
            for to, own in lines.items():
                if (attempt := self._attempt_of(to)) is not None:
                    record = self._journal.state.attempts[attempt]
                    new, old = self.accept([_claimed(one, record) for one in own], _own(batch, to), source, actor)
                    told[to] = Held(accepted=new, duplicates=old)
                    continue
                fresh = seen.taken(own, batch)
                one = Batch(to=to, at=now, digest=batch, source=source, actor=actor, lines=fresh)
                refusal = self.holding.refusal(to, one.size, size) if fresh else ""
                told[to] = Held(
                    held=0 if refusal else len(fresh), duplicates=len(own) - len(fresh),
                    refused=len(fresh) if refusal else 0, refusal=refusal,
                )  # fmt: skip
                if fresh and not refusal:
                    kept.append(one)
                    size += one.size
            self.holding.hold(kept)
            self._remember(seen, kept, now)
            self.holding.told(REFUSED, sum(one.refused for one in told.values()))
        return told

    def _remember(self, seen: FreshLines, kept: Sequence[Batch], now: datetime) -> None:
        """Only what is held counts as seen: what was refused may come again."""
        for one in kept:
            for key in seen.keys_of[one.to.place]:
                self._seen.add(key, now)

    def _attempt_of(self, to: Addressee) -> AttemptId | None:
        state = self._journal.state
        if to.attempt is None:
            return state.attempt_of_job(to.cluster, to.job or "", to.restart)
        known = state.attempts.get(AttemptId(to.attempt))
        return known.id if known is not None and to.is_meant_by(known.seen) else None

    def claim(self, attempt: AttemptRecord) -> int:
        """Hand over what waited for an attempt, in order and as of when it came; how many lines that were.

        Whatever can't be recorded now stays held and is handed over by `tend`.
        """
        with self._loop.lock:
            meant = [to for to in self.holding.addressees if to.is_meant_by(attempt.seen)]
            try:
                return self._handed_over(meant, attempt.id)
            except AuditUnavailable as why:
                log.warning("audit_unavailable", error=str(why))
                return 0

    def _handed_over(self, meant: Sequence[Addressee], attempt: AttemptId) -> int:
        record = self._journal.state.attempts[attempt]
        claimed, batches = 0, set[bytes]()
        told: dict[bytes, int] = {}
        for to in meant:
            for one in self.holding.batches(to):
                fresh = FreshLines(self._seen, self._journal.state.numbers, told)
                fresh.take([_claimed(line, record) for line in one.lines], _own(one.digest, to))
                self._take_in([_Arrival(fresh, 0, one.digest, one.source, one.actor, one.at)])
                claimed += fresh.count
                batches.add(one.digest)
        for digest in batches:
            self._seen.add(whole_key(digest, attempt), self._journal.now())
        for to in meant:
            self.holding.handed_over(to)
        return claimed

    def tend(self) -> None:
        """Claims that are still open, as after a start, and lines whose time is up."""
        with self._loop.lock:
            for to in self.holding.addressees:
                if (attempt := self._attempt_of(to)) is not None:
                    self._handed_over([to], attempt)
            self.holding.expire(self._journal.now())


def _claimed(line: LogLine, attempt: AttemptRecord) -> LogLine:
    """The line as its attempt's own, with the node as the attempt spells it."""
    return readdressed(line, attempt.id, spelled(line.node, attempt) if line.node is not None else None)


def _own(batch: bytes, to: Addressee) -> bytes:
    """One addressee's part of a batch: two of them may turn out to be the same attempt."""
    return key_of(batch.hex(), to.place)
