# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The loop outlives its detectors: one that raises is put on record and, in the end, left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

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
)
from service.dedup import SeenLately
from service.journal import Journal
from service.loop import MAX_FAILURES, Loop

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
BEAT = Heartbeat(attempt=AttemptId("a"), at=NOW, rank=Rank(0))


class At:
    def now(self) -> datetime:
        return NOW


class NoLines:
    """A collector that never sees anything."""

    name = "crash"

    def observe_lines(self, attempt: AttemptId, lines: Sequence[LogLine]) -> int:
        return 0

    def observe_scheduler(self, seen: SchedulerState) -> None:
        return

    def place_ranks(self, attempt: AttemptId, rank_to_node: dict[Rank, NodeName]) -> None:
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

    def anomaly(self, attempt: AttemptId, at: datetime) -> Anomaly | None:
        return None

    def forget(self, attempt: AttemptId) -> None:
        return


class Witness:
    """A detector that remembers what it was shown, and raises if told to."""

    def __init__(self, name: str, *, is_broken: bool = False) -> None:
        self.name = name
        self.is_broken = is_broken
        self.seen: list[Observation] = []

    def observe(self, seen: Observation) -> tuple[Anomaly, ...]:
        self.seen.append(seen)
        if self.is_broken:
            raise ZeroDivisionError("no ranks")
        return ()

    def overdue(self, now: datetime) -> tuple[Anomaly, ...]:
        return ()

    def forget(self, attempt: AttemptId) -> None:
        return

    def snapshot(self) -> Mapping[str, Any]:
        return {}

    def restore(self, state: Mapping[str, Any]) -> None:
        return


def test_a_detector_that_raises_is_recorded_left_out_and_stops_nobody() -> None:
    audit, broken, sound = MemoryAuditLog(), Witness("broken", is_broken=True), Witness("sound")
    loop = Loop(Journal(audit, At()), NoLines(), [broken, sound])
    for _ in range(MAX_FAILURES + 3):
        loop.observe(BEAT)
    assert (len(broken.seen), len(sound.seen)) == (MAX_FAILURES, MAX_FAILURES + 3)
    failures = [one.event() for one in audit.records]
    assert [one.failures for one in failures if isinstance(one, DetectorFailed)] == [1, 2, 3, 4, 5]
    assert [one.is_disabled for one in failures if isinstance(one, DetectorFailed)] == [False] * 4 + [True]
    assert loop.failing == ("broken",)


def test_keys_are_forgotten_by_age_and_by_number_oldest_first() -> None:
    seen = SeenLately(timedelta(seconds=10), keys=3)
    assert [seen.add(key, NOW) for key in (b"a", b"a", b"b", b"c")] == [True, False, True, True]
    assert seen.add(b"d", NOW)
    assert (b"a" in seen, b"b" in seen) == (False, True)
    later = NOW + timedelta(seconds=11)
    assert seen.add(b"b", later)
    assert b"c" not in seen
