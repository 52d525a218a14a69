# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Drives detectors: hands them what arrives, asks them what silence means, and records what they claim."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import structlog

from detectors.log_text import LogText
from relight.events import DetectorFailed
from relight.ports import AuditUnavailable, Detector
from relight.shape import StatedShape
from relight.types import (
    NO_FAILURE,
    Anomaly,
    AttemptId,
    AttemptState,
    Attribution,
    Evidence,
    IncidentId,
    LogLine,
    NodeName,
    Observation,
    Rank,
    SchedulerState,
    Severity,
    StepBatch,
    StepProgress,
    StepTiming,
)
from relight.watching import HangPolicy, opens_incident
from service.advisor import Advisor
from service.hang_terms import BoundPauses
from service.job_shapes import JobShapes
from service.journal import Journal
from service.panel import Panel
from service.read_lines import Reader, ReadLines, read_lines
from service.records import AttemptRecord
from service.verdicts import asked_anomaly

log = structlog.get_logger(__name__)
ATTRIBUTE_EVERY = timedelta(seconds=5)
FORGET_AFTER = timedelta(hours=6)
JUDGED_A_TICK = 50
HEALED_AFTER = timedelta(seconds=10)
HEALED_AFTER_STEPS = 3
UNRECORDED_KEPT = 10_000
_NEVER = (datetime.min.replace(tzinfo=UTC), 0)
_FAILED = frozenset({AttemptState.FAILED, AttemptState.NODE_FAILED, AttemptState.TIMED_OUT})
_LOUD = frozenset({Severity.ERROR, Severity.CRITICAL})


class Collector(Protocol):
    """What the service needs of the crash detector."""

    name: str

    def marks(self, raw: Sequence[bytes]) -> Mapping[int, bool]: ...
    def observe_lines(
        self, attempt: AttemptId, lines: Sequence[LogLine], marks: Mapping[int, bool] | None = None
    ) -> int: ...
    def observe_scheduler(self, seen: SchedulerState) -> None: ...
    def place_ranks(self, attempt: AttemptId, rank_to_node: Mapping[Rank, NodeName]) -> None: ...
    def use_rules(self, signatures: Any, progress: Any) -> None: ...
    def attempts(self) -> tuple[AttemptId, ...]: ...
    def matched(self, attempt: AttemptId) -> int: ...
    def attribution(self, attempt: AttemptId) -> tuple[Attribution, tuple[Evidence, ...]]: ...
    def logs(self, attempt: AttemptId) -> list[LogText]: ...
    def anomaly(self, attempt: AttemptId, at: datetime) -> Anomaly | None: ...
    def forget(self, attempt: AttemptId) -> None: ...


class Loop:
    """Observations in, recorded anomalies and attributions out; time enters by `tick`.

    Not to be called but by holders of `lock`, which is taken before that of the journal: matching a batch
    of lines takes long, and readers of the state must not wait for it.

    A detector that raises is recorded as failed and taken out for that attempt, see `Panel`: its silence is
    unknown, not healthy. Nothing a detector does stops the others or the API.
    """

    def __init__(
        self,
        journal: Journal,
        collector: Collector,
        detectors: Sequence[Detector] = (),
        reader: Reader | None = None,
        hangs: Callable[[], HangPolicy] | None = None,
    ) -> None:
        self._journal = journal
        self._collector = collector
        self._panel = Panel(detectors, self._failed)
        self._reader = reader
        self._shapes = JobShapes()
        self._pauses = BoundPauses(self._panel, hangs)
        self._reached: dict[AttemptId, int] = {}
        self._opened_at: dict[IncidentId, tuple[int, datetime]] = {}
        self._reconsidered: dict[AttemptId, datetime] = {}
        self._frozen: frozenset[AttemptId] = frozenset()
        self._ended: set[AttemptId] = set()
        self._judged: dict[AttemptId, tuple[datetime, int]] = {}
        self._unrecorded: deque[Anomaly] = deque(maxlen=UNRECORDED_KEPT)
        self._advisor: Advisor | None = None
        self.listeners: list[Callable[[Observation], None]] = []
        self.lock = threading.RLock()

    def serve(self, advisor: Advisor) -> None:
        """Who records what is found; bound late, since the advisor asks this loop for attributions."""
        self._advisor = advisor

    def remember(self, attempts: Iterable[AttemptRecord], now: datetime) -> None:
        """After a start, before `serve`: where ranks run, how attempts ended and what their lines claimed.

        Nothing is judged anew; what was taken in and not judged yet is, at the next tick.
        """
        for attempt in attempts:
            if attempt.ended_at is None or now - attempt.ended_at < FORGET_AFTER:
                self.place(attempt)
                if told := self._journal.state.told.lines(attempt.id):
                    self._collector.observe_lines(attempt.id, told)

    @property
    def failing(self) -> tuple[str, ...]:
        """Detectors that raised, so that their silence says nothing."""
        return self._panel.failing

    # -------------------------------------------------------------- rules and state

    def use_rules(self, signatures: Any, progress: Any) -> None:
        """Judge by a reloaded rule set from now on; lines that are kept are judged by it too."""
        with self.lock:
            self._collector.use_rules(signatures, progress)
            self._panel.use_rules(signatures, progress)
            if self._reader is not None:
                self._reader.use_rules(progress)

    def snapshot(self) -> dict[str, Any]:
        """What detectors have learnt, as JSON values; lines are not kept, their verdicts are on record."""
        with self.lock:
            return self._panel.snapshot()

    def restore(self, states: Mapping[str, Any]) -> None:
        with self.lock:
            self._panel.restore(states)

    # -------------------------------------------------------------- observations

    def observe(self, seen: Observation) -> None:
        """Hand one observation to every detector and record what they claim."""
        for listener in self.listeners:
            listener(seen)
        match seen:
            case SchedulerState() if seen.state.is_terminal:
                self._collector.observe_scheduler(seen)
            case StepProgress(is_completed=True) | StepTiming() | StepBatch() if seen.step is not None:
                self._reached[seen.attempt] = max(seen.step, self._reached.get(seen.attempt, seen.step))
            case _:
                pass
        self._record(self._panel.observe(seen))

    def read(self, lines: Sequence[LogLine], now: datetime) -> ReadLines:
        """The lines with the progress that they state, and where they claim something."""
        read = read_lines(self._reader, lines, now)
        return replace(read, marks=self._collector.marks(read.raw))

    def observe_lines(self, attempt: AttemptId, read: ReadLines) -> None:
        """Take in lines; the first claim of an attempt is judged at once, what follows at the next tick.

        A line that no detector has to see is the collector's alone; `listeners` are told of no lines.
        """
        self._collector.observe_lines(attempt, read.lines, read.marks)
        shown = self._panel.screened(attempt, read.lines, read.raw)
        for place in sorted(shown.keys() | read.progress.keys()):
            if place in shown:
                self._record(self._panel.show(read.lines[place], shown[place]))
            for seen in read.progress.get(place, ()):
                if isinstance(seen, StatedShape):
                    self.state_shape(seen)
                else:
                    self.observe(seen)
        if attempt not in self._judged:
            self._judge(attempt, self._journal.now())

    def introduce(self, attempt: AttemptRecord) -> None:
        """Tell everybody where ranks run and what the job trains with."""
        placed = attempt.detail("rank_to_node") or {}
        if placed:
            ranks = {Rank(int(rank)): NodeName(node) for rank, node in placed.items()}
            self._collector.place_ranks(attempt.id, ranks)
            self._panel.place_ranks(attempt.id, ranks)
        self._shape(attempt)
        self._pauses.tell([attempt])

    def place(self, attempt: AttemptRecord) -> None:
        """Introduce it, and pass on what the scheduler says of it."""
        self.introduce(attempt)
        seen = attempt.seen
        if seen.state.is_terminal:
            self._ended.add(seen.attempt)
        self.observe(
            SchedulerState(
                attempt=seen.attempt,
                at=seen.at,
                state=seen.state,
                reason=seen.reason,
                exit_code=seen.exit_code,
                signal=seen.signal,
                failed_nodes=seen.failed_nodes,
                actor=seen.actor,
            )
        )
        if seen.state.is_terminal:
            self._judge(attempt.id, self._journal.now(), is_forced=seen.state in _FAILED)

    def _shape(self, attempt: AttemptRecord) -> None:
        """Tell detectors what the job trains with, and where: baselines of the same shape carry over."""
        shape = self._shapes.news(attempt)
        if shape is not None:
            self.observe(shape)

    def state_shape(self, said: StatedShape) -> None:
        """The job says what it trains with; what was learnt with another batch or length holds no more."""
        self._shapes.state(said)
        known = self._journal.state.attempts.get(said.attempt)
        if known is not None:
            self._shape(known)

    def attribution(self, attempt: AttemptId) -> Attribution | None:
        """By all that was seen since the start, or None if that was nothing."""
        if attempt not in self._ended and attempt not in self._collector.attempts():
            return None
        return self._collector.attribution(attempt)[0]

    def examined(self, attempt: AttemptId) -> tuple[list[LogText], tuple[Evidence, ...], Attribution]:
        """The lines that are kept of an attempt, and what they were read as."""
        said, evidence = self._collector.attribution(attempt)
        return self._collector.logs(attempt), evidence, said

    # -------------------------------------------------------------- time

    def tick(self, now: datetime) -> None:
        """What time alone brings: overdue silence, late claims, and memory to be freed."""
        with self.lock:
            self._record(self._panel.overdue(now))
            self._review(now)
            waiting = sorted(self._collector.attempts(), key=lambda one: self._judged.get(one, _NEVER)[0])
        judged = 0
        for attempt in waiting:
            with self.lock:  # given back in between: a batch that arrives must not wait for all of them
                if judged < JUDGED_A_TICK and self._judge(attempt, now):
                    judged += 1
                self._forget_if_over(attempt, now)

    def run(self, stop: threading.Event, every_s: float, chores: Sequence[Callable[[], object]]) -> None:
        """Tick and do the chores until told to stop; a log that can't record is tried again next time."""
        while not stop.wait(every_s):
            try:
                self.tick(self._journal.now())
                for chore in chores:
                    chore()
            except AuditUnavailable as why:
                log.warning("audit_unavailable", error=str(why))

    # -------------------------------------------------------------- inside

    def _judge(self, attempt: AttemptId, now: datetime, *, is_forced: bool = False) -> bool:
        """True if the attempt was looked at: that costs too much to do for every line."""
        if self._advisor is None or attempt not in self._journal.state.attempts:
            return False
        matched = self._collector.matched(attempt)
        before = self._judged.get(attempt)
        if not is_forced:
            is_quiet = matched == (before[1] if before else 0)
            if is_quiet or (before is not None and now - before[0] < ATTRIBUTE_EVERY):
                return False
        said = self._collector.attribution(attempt)[0]
        is_loud = said.failure != NO_FAILURE and said.root is not None and said.root.severity in _LOUD
        anomaly = self._collector.anomaly(attempt, now) if is_loud else None
        if anomaly is None and is_forced:
            anomaly = asked_anomaly(self._journal.state.attempts[attempt], said, now)
        self._advisor.attribute(attempt, anomaly)
        self._judged[attempt] = (now, matched)
        return True

    def _forget_if_over(self, attempt: AttemptId, now: datetime) -> None:
        known = self._journal.state.attempts.get(attempt)
        if known is not None and known.ended_at is not None and now - known.ended_at >= FORGET_AFTER:
            self._forget(attempt)

    def _forget(self, attempt: AttemptId) -> None:
        self._collector.forget(attempt)
        self._panel.forget(attempt)
        if self._reader is not None:
            self._reader.forget(attempt)
        for store in (self._judged, self._reached, self._reconsidered):
            store.pop(attempt, None)
        self._shapes.forget(attempt)
        self._pauses.forget(attempt)
        self._ended.discard(attempt)

    def _record(self, found: Sequence[Anomaly]) -> None:
        """Put claims on record, and advise where a running job calls for it; what can't be recorded now is kept."""
        if self._advisor is None:
            return
        self._unrecorded.extend(found)
        while self._unrecorded:
            try:
                self._record_one(self._unrecorded[0], self._advisor)
            except AuditUnavailable as why:  # a detector tells it only once: at the next tick it is tried again
                log.warning("audit_unavailable", error=str(why))
                return
            self._unrecorded.popleft()

    def _record_one(self, anomaly: Anomaly, advisor: Advisor) -> None:
        if anomaly.attempt not in self._journal.state.attempts:
            return
        said = _by_our_clock(anomaly, self._journal.now())
        if opens_incident(said):
            advisor.attribute(said.attempt, said)
            advisor.volunteer(said.attempt)
        else:
            advisor.note(said)

    def _review(self, now: datetime) -> None:
        """What open incidents ask for: learning frozen, an end once training goes on, advice at a checkpoint."""
        if self._advisor is None:
            return
        state = self._journal.state
        self._pauses.tell(state.attempts[one] for one in self._pauses.attempts if one not in self._ended)
        live = {
            one.opened.attempt: one.id
            for one in state.incidents.values()
            if one.is_open and one.opened.attempt in state.attempts and one.opened.attempt not in self._ended
        }
        for attempt in self._frozen ^ live.keys():
            self._panel.freeze(attempt, attempt in live)
        self._frozen = frozenset(live)
        self._opened_at = {name: seen for name, seen in self._opened_at.items() if name in set(live.values())}
        for attempt, incident in live.items():
            if incident not in self._opened_at:
                self._advisor.volunteer(attempt)
            self._heal(attempt, incident, now)
            saved_at = state.attempts[attempt].checkpoint_at
            if saved_at is not None and self._reconsidered.get(attempt) != saved_at:
                self._reconsidered[attempt] = saved_at
                self._advisor.reconsider(attempt)
                self._advisor.volunteer(attempt)

    def _heal(self, attempt: AttemptId, incident: IncidentId, now: datetime) -> None:
        reached = self._reached.get(attempt, -1)
        before, asked_at = self._opened_at.setdefault(incident, (reached, now))
        is_on = reached >= before + HEALED_AFTER_STEPS and now - asked_at >= HEALED_AFTER
        if self._advisor is not None and is_on and not self._advisor.healed(attempt):
            self._opened_at[incident] = (before, now)  # its lines claim a failure: asking again costs much

    def attributor_failed(self, name: str, why: Exception, failures: int) -> None:
        """An attributor is judged like a detector: what it can't say is on record."""
        self._failed(f"attributor:{name}", why, None, failures, False)

    def _failed(
        self, detector: str, why: Exception, attempt: AttemptId | None, failures: int, is_disabled: bool
    ) -> None:
        try:
            self._journal.record(
                DetectorFailed(
                    at=self._journal.now(),
                    detector=detector,
                    error=repr(why)[:500],
                    failures=failures,
                    is_disabled=is_disabled,
                    attempt=attempt,
                )
            )
        except AuditUnavailable as unavailable:  # it is out all the same, and readiness says so
            log.warning("audit_unavailable", error=str(unavailable))


def _by_our_clock(anomaly: Anomaly, now: datetime) -> Anomaly:
    """An anomaly whose observations came with a sender's wrong clock: nothing is detected in the future."""
    ahead = anomaly.detected_at - now
    if ahead <= timedelta(0):
        return replace(anomaly, detected_at=now)
    return replace(anomaly, detected_at=now, onset_at=min(anomaly.onset_at - ahead, now))
