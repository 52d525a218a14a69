# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The contract of every audit log, as tests to inherit, with an audit log in memory that keeps it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from relight.chain import GENESIS, ChainWalk, Record, draft, matches
from relight.events import (
    AnomalyDetected,
    DetectorFailed,
    Event,
    ExclusionAdded,
    ModeChanged,
    RecommendationApproved,
    ServiceStarted,
)
from relight.jsonform import MalformedJson
from relight.ports import (
    EVERYTHING,
    AuditFilter,
    AuditLog,
    AuditUnavailable,
    Exported,
    Head,
    Recorded,
    StoredEvent,
    Verification,
)
from relight.types import (
    Anomaly,
    AnomalyKind,
    AttemptId,
    ClusterId,
    Exclusion,
    IncidentId,
    LogRef,
    Mode,
    NodeName,
    RecommendationId,
    WorkloadId,
)

NOON = datetime(2026, 11, 2, 12, 0, 0, 123456, tzinfo=UTC)


class MemoryAuditLog:
    """An `AuditLog` that lasts as long as the process: for tests, and for one thread."""

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.exports: dict[str, tuple[StoredEvent, ...]] = {}
        self._positions: dict[str, int] = {}
        self._is_closed = False

    def append(self, events: Sequence[Event]) -> tuple[int, ...]:
        self._refuse_if_closed()
        drafts = [draft(event) for event in events]
        for one in drafts:
            self.records.append(one.seal(self.head()))
        last = len(self.records)
        return tuple(range(last - len(drafts) + 1, last + 1))

    def record_once(self, key: str, event: Event) -> Recorded:
        self._refuse_if_closed()
        if (position := self._positions.get(key)) is not None:
            return Recorded(position=position, event=self.records[position - 1].event(), is_new=False)
        record = draft(event, key).seal(self.head())
        self.records.append(record)
        self._positions[key] = record.position
        return Recorded(position=record.position, event=event)

    def read(self, after: int = 0, limit: int = 1000, where: AuditFilter = EVERYTHING) -> tuple[StoredEvent, ...]:
        self._refuse_if_closed()
        found = (record for record in self.records[after:] if matches(record, where))
        return tuple(record.stored() for _, record in zip(range(limit), found, strict=False))

    def head(self) -> Head:
        return self.records[-1].head if self.records else GENESIS

    def verify(self, anchor: Head | None = None) -> Verification:
        self._refuse_if_closed()
        walk = ChainWalk(anchor=anchor)
        walk.see(self.records)
        return walk.finish()

    def export(self, path: str, where: AuditFilter = EVERYTHING) -> Exported:
        """Keeps the events under `path` in `exports`; nothing is written."""
        events = self.read(limit=len(self.records), where=where)
        self.exports[path] = events
        first, last = (events[0].position, events[-1].position) if events else (None, None)
        return Exported(path=path, events=len(events), first=first, last=last, head=self.head())

    def close(self) -> None:
        self._is_closed = True

    def _refuse_if_closed(self) -> None:
        if self._is_closed:
            raise AuditUnavailable("the audit log is closed")


def failure(number: int, attempt: str = "attempt-1") -> DetectorFailed:
    """An event to record, `number` seconds after noon."""
    at = NOON + timedelta(seconds=number)
    return DetectorFailed(at=at, detector=f"detector-{number}", error="boom", attempt=AttemptId(attempt))


def samples() -> tuple[Event, ...]:
    """Events that between them fill every column, with text as hostile as logs can be."""
    crash = Anomaly(
        attempt=AttemptId("attempt-2"),
        kind=AnomalyKind.CRASH,
        detector="crash",
        onset_at=NOON,
        detected_at=NOON + timedelta(seconds=1),
        score=float("inf"),
        evidence=(LogRef(file="rank0.log", line=7),),
        summary="\x1b[31mred\x00 \ud83d half a pair, \u202e turned, 'quoted' \"twice\"\n",
    )
    exclusion = Exclusion(node=NodeName("node-7"), reason="XID 79", score=0.9, expires_at=NOON + timedelta(hours=24))
    return (
        ServiceStarted(at=NOON, version="0.1.0", cluster=ClusterId("north"), loaded={"packs": ["nccl"]}),
        AnomalyDetected(at=NOON, anomaly=crash, workload=WorkloadId("job"), incident=IncidentId("incident-1")),
        ExclusionAdded(at=NOON, exclusion=exclusion, recommendation=RecommendationId("recommendation-1")),
        RecommendationApproved(
            at=NOON + timedelta(minutes=1),
            recommendation=RecommendationId("recommendation-1"),
            generation=2,
            actor="zoë",
        ),
        ModeChanged(
            at=NOON + timedelta(minutes=2),
            scope="cluster",
            target="north",
            mode=Mode.ACT,
            actor="zoë",
            reason="trial is over",
        ),
    )


class AuditLogContract:
    """Inherit, and return a new empty log from `make`; `reopen` if the log outlives its process."""

    def make(self) -> AuditLog:
        raise NotImplementedError("return a new, empty audit log")

    def reopen(self, log: AuditLog) -> AuditLog:
        """The same log after a restart; logs that end with the process return themselves."""
        return log

    def export_folder(self) -> str:
        return "export"

    def test_an_empty_log_has_a_head_at_zero_and_is_sound(self) -> None:
        with closing(self.make()) as log:
            assert log.head() == GENESIS
            assert log.read() == ()
            assert log.append([]) == ()
            assert log.verify() == Verification(events=0, head=GENESIS)

    def test_positions_count_from_one_without_gaps(self) -> None:
        with closing(self.make()) as log:
            assert log.append([failure(1), failure(2)]) == (1, 2)
            assert log.append([failure(3)]) == (3,)
            assert log.record_once("key", failure(4)).position == 4
            assert log.head().position == 4

    def test_events_are_read_back_as_they_were_recorded(self) -> None:
        with closing(self.make()) as log:
            log.append(samples())
            assert tuple(stored.event for stored in log.read()) == samples()
            assert log.read()[-1].hash == log.head().hash

    def test_what_was_acknowledged_outlives_a_restart(self) -> None:
        log = self.make()
        log.append(samples())
        log.record_once("key", failure(1))
        before = log.read()
        with closing(self.reopen(log)) as again:
            assert again.read() == before
            assert again.record_once("key", failure(2)).event == failure(1)
            assert again.verify().is_sound

    def test_one_unrecordable_event_keeps_out_all_that_came_with_it(self) -> None:
        unrecordable = replace(failure(2), attempt=AttemptId("half \ud83d"))
        with closing(self.make()) as log:
            try:
                log.append([failure(1), unrecordable])
            except MalformedJson:
                assert log.head() == GENESIS
            else:
                raise AssertionError("an id without a UTF-8 form was accepted")

    def test_a_key_records_once_and_keeps_what_came_first(self) -> None:
        with closing(self.make()) as log:
            first = log.record_once("key", failure(1))
            second = log.record_once("key", failure(2))
            other = log.record_once("other key", failure(2))
        assert (first.is_new, second.is_new, other.is_new) == (True, False, True)
        assert (second.position, second.event) == (first.position, failure(1))
        assert other.position == 2

    def test_reading_goes_on_behind_a_position_and_stops_at_the_limit(self) -> None:
        with closing(self.make()) as log:
            log.append([failure(number) for number in range(1, 8)])
            assert [stored.position for stored in log.read(after=2, limit=3)] == [3, 4, 5]
            assert [stored.position for stored in log.read(after=6)] == [7]
            assert log.read(after=7) == ()

    def test_every_filter_keeps_what_it_names_and_nothing_else(self) -> None:
        wanted = {
            AuditFilter(kinds=("mode.changed", "service.started")): [1, 5],
            AuditFilter(cluster=ClusterId("north")): [1],
            AuditFilter(workload=WorkloadId("job")): [2],
            AuditFilter(attempt=AttemptId("attempt-2")): [2],
            AuditFilter(incident=IncidentId("incident-1")): [2],
            AuditFilter(node=NodeName("node-7")): [3],
            AuditFilter(recommendation=RecommendationId("recommendation-1")): [3, 4],
            AuditFilter(actor="zoë"): [4, 5],
            AuditFilter(actor="zoë", kinds=("mode.changed",)): [5],
            AuditFilter(since=NOON + timedelta(minutes=1)): [4, 5],
            AuditFilter(until=NOON + timedelta(minutes=2)): [1, 2, 3, 4],
            AuditFilter(since=NOON, until=NOON): [],
            AuditFilter(kinds=("no.such_kind",)): [],
        }
        with closing(self.make()) as log:
            log.append(samples())
            found = {where: [stored.position for stored in log.read(where=where)] for where in wanted}
        assert found == wanted

    def test_the_chain_holds_and_a_remembered_head_is_met(self) -> None:
        with closing(self.make()) as log:
            log.append(samples()[:2])
            remembered = log.head()
            log.append(samples()[2:])
            assert log.verify(remembered) == Verification(events=5, head=log.head())

    def test_a_remembered_head_beyond_the_end_tells_a_cut_tail(self) -> None:
        with closing(self.make()) as log:
            log.append([failure(1)])
            broken = log.verify(Head(position=3, hash="ab" * 32)).broken
        assert broken is not None
        assert broken.position == 2

    def test_a_remembered_head_with_another_hash_tells_a_rewritten_log(self) -> None:
        with closing(self.make()) as log:
            log.append([failure(1), failure(2)])
            broken = log.verify(Head(position=2, hash="ab" * 32)).broken
        assert broken is not None
        assert (broken.position, broken.expected) == (2, "ab" * 32)

    def test_an_export_holds_what_the_filter_names(self) -> None:
        with closing(self.make()) as log:
            log.append(samples())
            made = log.export(self.export_folder(), AuditFilter(actor="zoë"))
            assert (made.events, made.first, made.last, made.head) == (2, 4, 5, log.head())
            assert log.export(self.export_folder(), AuditFilter(actor="nobody")).first is None

    def test_a_closed_log_takes_nothing_and_says_so(self) -> None:
        log = self.make()
        log.close()
        for call in (lambda: log.append([failure(1)]), lambda: log.record_once("key", failure(1))):
            try:
                call()
            except AuditUnavailable as why:
                assert "closed" in str(why)
            else:
                raise AssertionError("a closed log accepted an event")
