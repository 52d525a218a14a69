# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The loop outlives its detectors: one that raises is put on record and taken out, first for one attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from detectors.log_text import LogText
from relight.events import DetectorFailed
from relight.testing.audit import MemoryAuditLog
from relight.types import (
    CAUSE_NOT_IN_LOG,
    Anomaly,
    AttemptId,
    Attribution,
    Evidence,
    EvidenceStatus,
    FailureClass,
    Heartbeat,
    LogLine,
    NodeName,
    Observation,
    Rank,
    SchedulerState,
    StepProgress,
    Stream,
)
from service.dedup import SeenLately
from service.journal import Journal
from service.loop import Loop
from service.panel import MAX_FAILURES
from service.read_lines import ReadLines

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)


class At:
    def now(self) -> datetime:
        return NOW


class NoLines:
    """A collector that never sees anything."""

    name = "crash"

    def marks(self, raw: Sequence[bytes]) -> Mapping[int, bool]:
        return {}

    def observe_lines(
        self, attempt: AttemptId, lines: Sequence[LogLine], marks: Mapping[int, bool] | None = None
    ) -> int:
        return 0

    def observe_scheduler(self, seen: SchedulerState) -> None:
        return

    def place_ranks(self, attempt: AttemptId, rank_to_node: Mapping[Rank, NodeName]) -> None:
        return

    def use_rules(self, signatures: Any, progress: Any) -> None:
        return

    def attempts(self) -> tuple[AttemptId, ...]:
        return ()

    def matched(self, attempt: AttemptId) -> int:
        return 0

    def attribution(self, attempt: AttemptId) -> tuple[Attribution, tuple[Evidence, ...]]:
        said = Attribution(
            failure=CAUSE_NOT_IN_LOG,
            failure_class=FailureClass.UNKNOWN,
            evidence_status=EvidenceStatus.UNKNOWN,
        )
        return said, ()

    def logs(self, attempt: AttemptId) -> list[LogText]:
        return []

    def anomaly(self, attempt: AttemptId, at: datetime) -> Anomaly | None:
        return None

    def forget(self, attempt: AttemptId) -> None:
        return


class Witness:
    """A detector that remembers what it was shown, and raises if told to."""

    def __init__(self, name: str, *, is_broken: bool = False, refuses: bool = False) -> None:
        self.name = name
        self.is_broken, self.refuses = is_broken, refuses
        self.seen: list[Observation] = []
        self.forgotten: list[AttemptId] = []
        self.state: Mapping[str, Any] = {}

    def observe(self, seen: Observation) -> tuple[Anomaly, ...]:
        self.seen.append(seen)
        if self.is_broken:
            raise ZeroDivisionError("no ranks")
        return ()

    def overdue(self, now: datetime) -> tuple[Anomaly, ...]:
        return ()

    def forget(self, attempt: AttemptId) -> None:
        self.forgotten.append(attempt)

    def snapshot(self) -> Mapping[str, Any]:
        return self.state

    def restore(self, state: Mapping[str, Any]) -> None:
        if self.refuses:
            raise ValueError("another version")
        self.state = state


def beat(attempt: str) -> Heartbeat:
    return Heartbeat(attempt=AttemptId(attempt), at=NOW, rank=Rank(0))


def test_a_detector_that_raises_is_out_for_that_attempt_and_stops_nobody() -> None:
    audit, broken, sound = MemoryAuditLog(), Witness("broken", is_broken=True), Witness("sound")
    loop = Loop(Journal(audit, At()), NoLines(), [broken, sound])
    for _ in range(3):
        loop.observe(beat("a"))
    assert (len(broken.seen), broken.forgotten, len(sound.seen)) == (1, ["a"], 3)
    (failure,) = [one.event() for one in audit.records]
    assert isinstance(failure, DetectorFailed)
    assert (failure.attempt, failure.failures, failure.is_disabled) == ("a", 1, False)
    broken.is_broken = False
    loop.observe(beat("b"))
    assert len(broken.seen) == 2
    assert loop.failing == ("broken",)


def test_a_detector_that_raises_for_many_attempts_is_left_out_altogether() -> None:
    audit, broken = MemoryAuditLog(), Witness("broken", is_broken=True)
    loop = Loop(Journal(audit, At()), NoLines(), [broken])
    for number in range(MAX_FAILURES + 3):
        loop.observe(beat(f"a-{number}"))
    assert len(broken.seen) == MAX_FAILURES
    failures = [one.event() for one in audit.records]
    assert [one.is_disabled for one in failures if isinstance(one, DetectorFailed)] == [False] * 4 + [True]


def test_a_failure_that_cannot_be_recorded_still_stops_nobody() -> None:
    audit, broken, sound = MemoryAuditLog(), Witness("broken", is_broken=True), Witness("sound")
    loop = Loop(Journal(audit, At()), NoLines(), [broken, sound])
    audit.close()
    loop.observe(beat("a"))
    assert (len(sound.seen), loop.failing) == (1, ("broken",))


class Chooser(Witness):
    """A detector that has to see only some lines."""

    def __init__(self, name: str, *places: int, is_lost: bool = False) -> None:
        super().__init__(name)
        self.places, self.is_lost = places, is_lost

    def screen(self, lines: Sequence[LogLine], raw: Sequence[bytes]) -> Sequence[int]:
        if self.is_lost:
            raise IndexError("no such line")
        assert [line.text.encode() for line in lines] == list(raw)
        return self.places


def test_lines_and_what_they_state_come_in_order_to_those_who_have_to_see_them() -> None:
    every, some, none, lost = Witness("every"), Chooser("some", 2), Chooser("none"), Chooser("lost", is_lost=True)
    loop = Loop(Journal(MemoryAuditLog(), At()), NoLines(), [every, some, none, lost])
    attempt = AttemptId("a")
    lines = [
        LogLine(attempt=attempt, file="f", number=n, stream=Stream.APPLICATION, text=f"line {n}") for n in range(1, 4)
    ]
    step = StepProgress(attempt=attempt, at=NOW, step=7)
    loop.observe_lines(attempt, ReadLines(lines, [line.text.encode() for line in lines], {1: (step,)}))
    assert every.seen == [lines[0], lines[1], step, lines[2]]
    assert (some.seen, none.seen) == ([step, lines[2]], [step])
    assert (lost.seen, loop.failing) == ([], ("lost",))


def test_the_state_of_detectors_goes_over_a_restart_and_a_refused_one_begins_anew() -> None:
    first, second = Witness("one"), Witness("two")
    first.state, second.state = {"learnt": 7}, {"learnt": 8}
    states = Loop(Journal(MemoryAuditLog(), At()), NoLines(), [first, second]).snapshot()
    again, other = Witness("one"), Witness("two", refuses=True)
    Loop(Journal(MemoryAuditLog(), At()), NoLines(), [again, other]).restore(states)
    assert (again.state, other.state) == ({"learnt": 7}, {})


def test_keys_are_forgotten_by_age_and_by_number_oldest_first() -> None:
    seen = SeenLately(timedelta(seconds=10), keys=3)
    assert [seen.add(key, NOW) for key in (b"a", b"a", b"b", b"c")] == [True, False, True, True]
    assert seen.add(b"d", NOW)
    assert (b"a" in seen, b"b" in seen) == (False, True)
    later = NOW + timedelta(seconds=11)
    assert seen.add(b"b", later)
    assert b"c" not in seen
