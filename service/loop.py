# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Drives detectors: hands them what arrives, asks them what silence means, and records what they claim."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Protocol

import structlog

from relight.events import DetectorFailed
from relight.ports import AuditUnavailable, Detector
from relight.types import (
    NO_FAILURE,
    Anomaly,
    AttemptId,
    AttemptState,
    Attribution,
    Evidence,
    LogLine,
    NodeName,
    Observation,
    Rank,
    SchedulerState,
    Severity,
    Tier,
)
from service.advisor import Advisor
from service.journal import Journal
from service.records import AttemptRecord
from service.verdicts import asked_anomaly

log = structlog.get_logger(__name__)
ATTRIBUTE_EVERY = timedelta(seconds=10)
FORGET_AFTER = timedelta(hours=6)
JUDGED_A_TICK = 50
MAX_FAILURES = 5
_NEVER = (datetime.min.replace(tzinfo=UTC), 0)
_FAILED = frozenset({AttemptState.FAILED, AttemptState.NODE_FAILED, AttemptState.TIMED_OUT})
_LOUD = frozenset({Severity.ERROR, Severity.CRITICAL})


class Collector(Protocol):
    """What the service needs of the crash detector."""

    name: str

    def observe_lines(self, attempt: AttemptId, lines: Sequence[LogLine]) -> int: ...
    def observe_scheduler(self, seen: SchedulerState) -> None: ...
    def place_ranks(self, attempt: AttemptId, rank_to_node: dict[Rank, NodeName]) -> None: ...
    def attempts(self) -> tuple[AttemptId, ...]: ...
    def matched(self, attempt: AttemptId) -> int: ...
    def attribution(self, attempt: AttemptId) -> tuple[Attribution, tuple[Evidence, ...]]: ...
    def anomaly(self, attempt: AttemptId, at: datetime) -> Anomaly | None: ...
    def forget(self, attempt: AttemptId) -> None: ...


class Loop:
    """Observations in, recorded anomalies and attributions out; time enters by `tick`.

    Not to be called but by holders of `lock`, which is taken before that of the journal: matching a batch
    of lines takes long, and readers of the state must not wait for it.

    A detector that raises is recorded as failed and, after five times, left out: its silence is unknown,
    not healthy. Nothing a detector does stops the others or the API.
    """

    def __init__(self, journal: Journal, collector: Collector, detectors: Sequence[Detector] = ()) -> None:
        self._journal = journal
        self._collector = collector
        self._detectors = list(detectors)
        self._failures: dict[str, int] = {}
        self._ended: set[AttemptId] = set()
        self._judged: dict[AttemptId, tuple[datetime, int]] = {}
        self._advisor: Advisor | None = None
        self.listeners: list[Callable[[Observation], None]] = []
        self.lock = threading.RLock()

    def serve(self, advisor: Advisor) -> None:
        """Who records what is found; bound late, since the advisor asks this loop for attributions."""
        self._advisor = advisor

    def remember(self, attempts: Iterable[AttemptRecord], now: datetime) -> None:
        """After a start, before `serve`: where ranks run and how attempts ended, without judging anew."""
        for attempt in attempts:
            if attempt.ended_at is None or now - attempt.ended_at < FORGET_AFTER:
                self.place(attempt)

    @property
    def failing(self) -> tuple[str, ...]:
        """Detectors that raised, so that their silence says nothing."""
        return tuple(sorted(self._failures))

    # -------------------------------------------------------------- observations

    def observe(self, seen: Observation) -> None:
        """Hand one observation to every detector and record what they claim."""
        for listener in self.listeners:
            listener(seen)
        if isinstance(seen, SchedulerState):
            self._collector.observe_scheduler(seen)
        for detector in tuple(self._detectors):
            found = self._guarded(detector, lambda d=detector: d.observe(seen), _attempt_of(seen))  # type: ignore[misc]
            self._record(found)

    def observe_lines(self, attempt: AttemptId, lines: Sequence[LogLine]) -> None:
        """Take in lines; the first claim of an attempt is judged at once, what follows at the next tick."""
        self._collector.observe_lines(attempt, lines)
        for line in lines if self._detectors else ():
            self.observe(line)
        if attempt not in self._judged:
            self._judge(attempt, self._journal.now())

    def place(self, attempt: AttemptRecord) -> None:
        """Tell the collector where ranks run and how the scheduler says it ended."""
        placed = attempt.detail("rank_to_node") or {}
        if placed:
            ranks = {Rank(int(rank)): NodeName(node) for rank, node in placed.items()}
            self._collector.place_ranks(attempt.id, ranks)
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
            self._judge(attempt.id, self._journal.now(), is_forced=seen.state in _FAILED)

    def attribution(self, attempt: AttemptId) -> Attribution | None:
        """By all that was seen since the start, or None if that was nothing."""
        if attempt not in self._ended and attempt not in self._collector.attempts():
            return None
        return self._collector.attribution(attempt)[0]

    # -------------------------------------------------------------- time

    def tick(self, now: datetime) -> None:
        """What time alone brings: overdue silence, late claims, and memory to be freed."""
        with self.lock:
            for detector in tuple(self._detectors):
                self._record(self._guarded(detector, lambda d=detector: d.overdue(now), None))  # type: ignore[misc]
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
        self._judged[attempt] = (now, matched)
        is_loud = said.failure != NO_FAILURE and said.root is not None and said.root.severity in _LOUD
        anomaly = self._collector.anomaly(attempt, now) if is_loud else None
        if anomaly is None and is_forced:
            anomaly = asked_anomaly(self._journal.state.attempts[attempt], said, now)
        self._advisor.attribute(attempt, anomaly)
        return True

    def _forget_if_over(self, attempt: AttemptId, now: datetime) -> None:
        known = self._journal.state.attempts.get(attempt)
        if known is not None and known.ended_at is not None and now - known.ended_at >= FORGET_AFTER:
            self._collector.forget(attempt)
            self._judged.pop(attempt, None)
            self._ended.discard(attempt)
            for detector in self._detectors:
                detector.forget(attempt)

    def _record(self, found: Sequence[Anomaly]) -> None:
        if self._advisor is None:
            return
        for anomaly in found:
            is_known = anomaly.attempt in self._journal.state.attempts
            if is_known and anomaly.tier is Tier.CONFIRMED:  # a suspicion opens no incident
                self._advisor.attribute(anomaly.attempt, anomaly)

    def _guarded(
        self, detector: Detector, call: Callable[[], tuple[Anomaly, ...]], attempt: AttemptId | None
    ) -> tuple[Anomaly, ...]:
        try:
            return call()
        except Exception as why:  # noqa: BLE001 -- a plugin may raise anything; it is put on record below
            self._failed(detector, why, attempt)
            return ()

    def _failed(self, detector: Detector, why: Exception, attempt: AttemptId | None) -> None:
        failures = self._failures.get(detector.name, 0) + 1
        self._failures[detector.name] = failures
        is_out = failures >= MAX_FAILURES
        if is_out:
            self._detectors.remove(detector)
        log.error("detector_failed", detector=detector.name, failures=failures, error=repr(why))
        self._journal.record(
            DetectorFailed(
                at=self._journal.now(),
                detector=detector.name,
                error=repr(why)[:500],
                failures=failures,
                is_disabled=is_out,
                attempt=attempt,
            )
        )


def _attempt_of(seen: Observation) -> AttemptId | None:
    return getattr(seen, "attempt", None)
