# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What is acknowledged stays, whatever the disk does; what can't be kept is refused."""

from __future__ import annotations

import errno
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event as Flag

import duckdb
import pyarrow as pa
import pytest

from relight.events import AuditRepaired, Repair
from relight.ports import AuditFilter, AuditUnavailable
from relight.testing.audit import failure
from service.adapters.audit_store import commit_batch
from service.adapters.clock import SystemClock
from service.adapters.duckdb_audit import AuditOptions, DuckDBAuditLog

REPAIRED = AuditFilter(kinds=("audit.repaired",))


class Disk:
    """A disk that can be full, for the database, the spill file or both."""

    def __init__(self) -> None:
        self.is_full_for_database = False
        self.is_full_for_spill = False
        self.loses_the_answer = False
        self.bytes_before_full = 0

    def commit(self, connection: duckdb.DuckDBPyConnection, batch: pa.Table) -> None:
        if self.is_full_for_database:
            raise duckdb.IOException("Could not write file: No space left on device")
        commit_batch(connection, batch)
        if self.loses_the_answer:
            raise duckdb.IOException("Could not fsync file: Input/output error")

    def write(self, file: int, content: bytes) -> int:
        if self.is_full_for_spill and self.bytes_before_full == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = os.write(file, content[: self.bytes_before_full] if self.is_full_for_spill else content)
        self.bytes_before_full -= written if self.is_full_for_spill else 0
        return written

    def log(self, path: Path, *, retry_s: float = 3600.0) -> DuckDBAuditLog:
        options = AuditOptions(commit=self.commit, write=self.write, retry_s=retry_s)
        return DuckDBAuditLog(path, SystemClock(), options)


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.duckdb"


def numbers(log: DuckDBAuditLog) -> list[int]:
    return [stored.position for stored in log.read()]


def test_a_failed_commit_is_spilled_acknowledged_and_readable_at_once(path: Path, disk: Disk) -> None:
    log = disk.log(path)
    log.append([failure(1)])
    disk.is_full_for_database = True
    assert log.append([failure(2), failure(3)]) == (2, 3)
    assert [stored.event for stored in log.read()] == [failure(1), failure(2), failure(3)]
    assert [one.position for one in log.read(where=AuditFilter(since=failure(3).at))] == [3]
    assert log.verify(log.head()).events == 3
    log.close()


def test_a_key_that_was_spilled_still_records_once(path: Path, disk: Disk) -> None:
    log = disk.log(path)
    disk.is_full_for_database = True
    first = log.record_once("key", failure(1))
    second = log.record_once("key", failure(2))
    assert (second.position, second.event, second.is_new) == (first.position, failure(1), False)
    log.close()


def test_spilled_events_are_folded_back_in_order_once_the_database_takes_them(path: Path, disk: Disk) -> None:
    log = disk.log(path, retry_s=0.0)
    disk.is_full_for_database = True
    log.append([failure(1)])
    log.append([failure(2)])
    disk.is_full_for_database = False
    log.append([failure(3)])
    assert log.verify().is_sound
    kept = [stored for stored in log.read() if not isinstance(stored.event, AuditRepaired)]
    assert [stored.event for stored in kept] == [failure(1), failure(2), failure(3)]
    (repaired,) = log.read(where=REPAIRED)
    assert isinstance(repaired.event, AuditRepaired)
    assert (repaired.event.repair, repaired.event.first, repaired.event.last) == (
        Repair.SPILL_FOLDED_BACK,
        1,
        2,
    )
    log.close()
    with duckdb.connect(str(path), read_only=True) as file:
        assert file.execute("SELECT count(*), max(position) FROM event").fetchall() == [(4, 4)]


def test_spilled_events_are_folded_back_by_the_next_start(path: Path, disk: Disk) -> None:
    log = disk.log(path)
    disk.is_full_for_database = True
    log.append([failure(1), failure(2)])
    log.close()
    again = Disk().log(path)
    assert [one.repair for one in again.repairs] == [Repair.SPILL_FOLDED_BACK]
    assert [stored.event for stored in again.read(limit=2)] == [failure(1), failure(2)]
    assert again.verify().is_sound
    again.close()


def test_a_start_on_a_full_disk_keeps_the_spill_and_goes_on_spilling(path: Path, disk: Disk) -> None:
    log = disk.log(path)
    disk.is_full_for_database = True
    log.append([failure(1)])
    log.close()
    again = disk.log(path)
    assert again.append([failure(2)]) == (2,)
    again.close()
    disk.is_full_for_database = False
    last = disk.log(path)
    assert [stored.event for stored in last.read(limit=2)] == [failure(1), failure(2)]
    last.close()


@pytest.mark.parametrize("bytes_before_full", [0, 1, 100])
def test_when_neither_can_be_written_nothing_is_acknowledged(path: Path, disk: Disk, bytes_before_full: int) -> None:
    log = disk.log(path)
    log.append([failure(1)])
    head = log.head()
    disk.is_full_for_database = disk.is_full_for_spill = True
    disk.bytes_before_full = bytes_before_full
    with pytest.raises(AuditUnavailable, match=r"neither .* No space left") as refused:
        log.append([failure(2)])
    assert refused.value.retry_after_s > 0
    assert log.head() == head
    disk.is_full_for_spill = False
    assert log.append([failure(3)]) == (2,)
    log.close()
    again = Disk().log(path)
    assert [stored.event for stored in again.read(limit=2)] == [failure(1), failure(3)]
    assert again.verify().is_sound
    again.close()


def test_a_commit_that_succeeded_without_saying_so_is_not_recorded_twice(path: Path, disk: Disk) -> None:
    log = disk.log(path, retry_s=0.0)
    disk.loses_the_answer = True
    assert log.append([failure(1)]) == (1,)
    disk.loses_the_answer = False
    log.append([failure(2)])
    assert log.verify().is_sound
    assert sum(stored.event == failure(1) for stored in log.read()) == 1
    log.close()


def test_a_refused_event_that_reached_the_database_after_all_breaks_no_chain(path: Path, disk: Disk) -> None:
    log = disk.log(path)
    disk.loses_the_answer = disk.is_full_for_spill = True
    with pytest.raises(AuditUnavailable):
        log.append([failure(1)])
    disk.loses_the_answer = disk.is_full_for_spill = False
    assert log.append([failure(2)]) == (2,)
    assert log.verify().is_sound
    assert numbers(log) == [1, 2]
    log.close()


def test_the_spill_is_bounded(path: Path, disk: Disk) -> None:
    options = AuditOptions(commit=disk.commit, max_unfolded=2, retry_s=3600.0)
    log = DuckDBAuditLog(path, SystemClock(), options)
    disk.is_full_for_database = True
    log.append([failure(1), failure(2)])
    with pytest.raises(AuditUnavailable, match="free disk space"):
        log.append([failure(3)])
    log.close()


def test_a_full_queue_refuses_with_a_hint_when_to_retry(path: Path) -> None:
    is_committing, may_commit = Flag(), Flag()

    def slow_commit(connection: duckdb.DuckDBPyConnection, batch: pa.Table) -> None:
        is_committing.set()
        may_commit.wait(30)
        commit_batch(connection, batch)

    log = DuckDBAuditLog(
        path, SystemClock(), AuditOptions(commit=slow_commit, group_rows=1, queue_rows=2, linger_s=0.0)
    )
    with ThreadPoolExecutor(2) as callers:
        committing = callers.submit(log.append, [failure(1)])
        assert is_committing.wait(30)
        queue = log._queue
        waiting = callers.submit(log.append, [failure(2), failure(3)])
        while not queue._rows:
            pass
        with pytest.raises(AuditUnavailable, match="retry") as refused:
            log.append([failure(4)])
        may_commit.set()
        assert (committing.result(30), waiting.result(30)) == ((1,), (2, 3))
    assert refused.value.retry_after_s >= 1.0
    log.close()


def test_many_callers_share_commits_and_each_gets_its_own_places(path: Path) -> None:
    groups: list[int] = []

    def counting_commit(connection: duckdb.DuckDBPyConnection, batch: pa.Table) -> None:
        groups.append(batch.num_rows)
        commit_batch(connection, batch)

    log = DuckDBAuditLog(path, SystemClock(), AuditOptions(commit=counting_commit))
    with ThreadPoolExecutor(16) as callers:
        places = dict(zip(range(200), callers.map(lambda n: log.append([failure(n)]), range(200)), strict=True))
    stored = {one.position: one.event for one in log.read()}
    assert all(stored[position] == failure(number) for number, (position,) in places.items())
    assert sorted(stored) == list(range(1, 201))
    assert len(groups) < 200
    log.close()


def test_one_key_from_many_callers_is_recorded_once(path: Path) -> None:
    log = Disk().log(path)
    with ThreadPoolExecutor(8) as callers:
        answers = list(callers.map(lambda n: log.record_once("key", failure(n)), range(24)))
    assert sum(answer.is_new for answer in answers) == 1
    assert len({(answer.position, answer.event) for answer in answers}) == 1
    log.close()


def test_an_unexpected_fault_of_the_writer_is_answered_and_not_waited_for(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[str] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: faults.append(str(args.exc_value)))

    def broken_commit(connection: duckdb.DuckDBPyConnection, batch: pa.Table) -> None:
        raise ZeroDivisionError("a bug")

    log = DuckDBAuditLog(path, SystemClock(), AuditOptions(commit=broken_commit))
    with pytest.raises(AuditUnavailable, match="writer died"):
        log.append([failure(1)])
    with pytest.raises(AuditUnavailable, match="ZeroDivisionError"):
        log.append([failure(2)])
    log.close()
    assert faults == ["a bug"]


def test_the_spill_file_holds_one_json_array_a_record(path: Path, disk: Disk) -> None:
    log = disk.log(path)
    disk.is_full_for_database = True
    log.append([failure(1)])
    (line,) = path.with_name("audit.duckdb.spill.jsonl").read_text().splitlines()
    assert json.loads(line)[0:3:2] == [1, "detector.failed"]
    log.close()
