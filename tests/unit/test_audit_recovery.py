# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A damaged audit log opens where it can, and says what it had to mend; where it can't, it says why."""

from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pytest

from relight.events import Repair
from relight.ports import AuditFilter
from relight.testing.audit import failure, samples
from service.adapters.audit_migrations import AuditFileRefused, Migration, shipped
from service.adapters.clock import SystemClock
from service.adapters.duckdb_audit import AuditOptions, DuckDBAuditLog


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.duckdb"


def opened(path: Path, **options: object) -> DuckDBAuditLog:
    return DuckDBAuditLog(path, SystemClock(), AuditOptions(**options))  # type: ignore[arg-type]


def beside(path: Path, suffix: str) -> Path:
    return path.with_name(f"{path.name}.{suffix}")


def crashed(path: Path, folder: Path, events: int) -> Path:
    """A copy of the log's files as a power cut would leave them, with `events` in the write-ahead log."""
    log = opened(path)
    for number in range(1, events + 1):
        log.append([failure(number)])
    folder.mkdir()
    for file in path.parent.glob(f"{path.name}*"):
        shutil.copy2(file, folder / file.name)
    log.close()
    return folder / path.name


def tamper(path: Path, sql: str) -> None:
    with duckdb.connect(str(path)) as file:
        file.execute(sql)


def test_an_unreadable_write_ahead_log_is_set_aside_and_its_events_come_from_the_spill(
    path: Path, tmp_path: Path
) -> None:
    copy = crashed(path, tmp_path / "copy", events=20)
    wal = beside(copy, "wal")
    damaged = wal.read_bytes().replace(b"detector-10", b"detector-99", 1)
    assert damaged != wal.read_bytes()
    wal.write_bytes(damaged)
    log = opened(copy)
    assert [one.repair for one in log.repairs] == [Repair.WAL_QUARANTINED, Repair.SPILL_FOLDED_BACK]
    assert (copy.parent / log.repairs[0].kept_at).read_bytes() == damaged
    assert [stored.event for stored in log.read(limit=20)] == [failure(number) for number in range(1, 21)]
    assert log.verify().is_sound
    assert len(log.read(where=AuditFilter(kinds=("audit.repaired",)))) == 2
    log.close()


@pytest.mark.parametrize("part", range(1, 16))
def test_a_flipped_byte_anywhere_in_the_write_ahead_log_loses_no_event(path: Path, tmp_path: Path, part: int) -> None:
    # Where the byte holds a length, DuckDB takes the rest for torn and drops it without a word.
    copy = crashed(path, tmp_path / "copy", events=12)
    wal = beside(copy, "wal")
    content = bytearray(wal.read_bytes())
    content[len(content) * part // 16] ^= 0x01
    wal.write_bytes(content)
    log = opened(copy)
    assert [stored.event for stored in log.read(limit=12)] == [failure(number) for number in range(1, 13)]
    assert log.verify().is_sound
    log.close()


def test_events_that_neither_file_holds_any_more_are_named(path: Path, tmp_path: Path) -> None:
    copy = crashed(path, tmp_path / "copy", events=5)
    beside(copy, "wal").unlink()
    beside(copy, "spill.jsonl").unlink()
    log = opened(copy)
    (lost,) = log.repairs
    assert (lost.repair, lost.first, lost.last) == (Repair.TAIL_MISSING, 1, 5)
    log.close()


def test_a_crash_without_damage_needs_no_repair(path: Path, tmp_path: Path) -> None:
    log = opened(crashed(path, tmp_path / "copy", events=5))
    assert log.repairs == ()
    assert log.head().position == 5
    log.close()


def test_a_torn_last_line_of_the_spill_is_dropped_silently_as_nobody_was_told_of_it(path: Path, tmp_path: Path) -> None:
    copy = crashed(path, tmp_path / "copy", events=5)
    beside(copy, "wal").unlink()
    spill = beside(copy, "spill.jsonl")
    spill.write_bytes(spill.read_bytes()[:-10])
    beside(copy, "head").unlink()
    log = opened(copy)
    assert [one.repair for one in log.repairs] == [Repair.SPILL_FOLDED_BACK]
    assert [stored.event for stored in log.read(limit=4)] == [failure(number) for number in range(1, 5)]
    log.close()


def test_a_damaged_line_inside_the_spill_is_kept_aside_and_said(path: Path, tmp_path: Path) -> None:
    copy = crashed(path, tmp_path / "copy", events=5)
    beside(copy, "wal").unlink()
    spill = beside(copy, "spill.jsonl")
    damaged = spill.read_text().replace("detector-3", "detector-8")
    spill.write_text(damaged)
    log = opened(copy)
    repairs = {one.repair: one for one in log.repairs}
    assert set(repairs) == {Repair.SPILL_QUARANTINED, Repair.SPILL_FOLDED_BACK, Repair.TAIL_MISSING}
    assert (copy.parent / repairs[Repair.SPILL_QUARANTINED].kept_at).read_text() == damaged
    assert (repairs[Repair.TAIL_MISSING].first, repairs[Repair.TAIL_MISSING].last) == (3, 5)
    assert [stored.event for stored in log.read(limit=2)] == [failure(1), failure(2)]
    log.close()


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE event SET payload = replace(payload, 'detector-4', 'detector-5') WHERE position = 4",
        "UPDATE event SET attempt = 'another' WHERE position = 4",
        "UPDATE event SET occurred_at = occurred_at + INTERVAL 1 MICROSECOND WHERE position = 4",
        "UPDATE event SET kind = 'attempt.observed' WHERE position = 4",
        "UPDATE event SET key = 'claimed' WHERE position = 4",
        "UPDATE event SET hash = repeat('0', 64) WHERE position = 4",
        "DELETE FROM event WHERE position = 4",
        "UPDATE event SET position = 14 WHERE position = 4",
        "INSERT INTO event SELECT * FROM event WHERE position = 3",
    ],
)
def test_any_change_to_a_recorded_event_is_found_at_its_position_and_said_at_the_next_start(
    path: Path, change: str
) -> None:
    log = opened(path)
    log.append([failure(number) for number in range(1, 10)])
    log.close()
    tamper(path, change)
    log = opened(path)
    assert [one.repair for one in log.repairs] == [Repair.CHAIN_BROKEN]
    broken = log.verify().broken
    assert broken is not None
    assert broken.position == 4
    log.close()


def test_a_break_before_the_checked_tail_is_left_to_verify(path: Path) -> None:
    log = opened(path)
    log.append([failure(number) for number in range(1, 1_500)])
    log.close()
    tamper(path, "UPDATE event SET payload = '{}' WHERE position = 7")
    log = opened(path)
    assert log.repairs == ()
    broken = log.verify().broken
    assert broken is not None
    assert (broken.position, broken.reason) == (7, "the event was changed after it was recorded")
    log.close()


def test_a_database_with_its_tail_cut_is_noticed_by_the_remembered_head(path: Path) -> None:
    log = opened(path)
    log.append([failure(number) for number in range(1, 10)])
    head = log.head()
    log.close()
    tamper(path, "DELETE FROM event WHERE position > 6")
    log = opened(path)
    (lost,) = log.repairs
    assert (lost.repair, lost.first, lost.last) == (Repair.TAIL_MISSING, 7, 9)
    broken = log.verify(head).broken
    assert broken is not None
    assert broken.position == 8
    log.close()


def test_a_second_process_is_told_who_may_write(path: Path) -> None:
    log = opened(path)
    with pytest.raises(AuditFileRefused, match="open in another Relight process; only one may write"):
        opened(path)
    log.close()
    opened(path).close()


def test_a_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(AuditFileRefused, match=r"no folder .*nowhere"):
        opened(tmp_path / "nowhere" / "audit.duckdb")


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_bytes(b"not a database" * 1000)
    beside(path, "wal").write_bytes(b"nor a log")
    with pytest.raises(AuditFileRefused, match="with or without its write-ahead log"):
        opened(path)
    assert beside(path, "wal").read_bytes() == b"nor a log"


def test_a_new_file_can_be_read_by_the_previous_major_version(path: Path) -> None:
    opened(path).close()
    with duckdb.connect(str(path), read_only=True) as file:
        tags = file.execute("SELECT tags FROM duckdb_databases() WHERE path IS NOT NULL").fetchall()
    assert str(tags[0][0]["storage_version"]).startswith("v1.5.0")


def test_a_migration_is_applied_once_after_a_copy_was_made(path: Path) -> None:
    log = opened(path)
    log.append(samples())
    log.close()
    second = Migration(number=2, name="note", sql="CREATE TABLE note (text VARCHAR)")
    log = opened(path, migrations=(*shipped(), second))
    (migrated,) = log.repairs
    assert (migrated.repair, migrated.kept_at) == (Repair.MIGRATED, "audit.duckdb.before-0002")
    assert tuple(stored.event for stored in log.read(limit=5)) == samples()
    log.close()
    with duckdb.connect(str(beside(path, "before-0002")), read_only=True) as backup:
        assert backup.execute("SELECT count(*) FROM event").fetchall() == [(5,)]
    log = opened(path, migrations=(*shipped(), second))
    assert log.repairs == ()
    log.close()


def test_a_failing_migration_leaves_nothing_behind(path: Path) -> None:
    opened(path).close()
    bad = Migration(number=2, name="bad", sql="CREATE TABLE half (a INTEGER); SELECT no_such_column;")
    with pytest.raises(AuditFileRefused, match=r"migration 2 \(bad\) failed"):
        opened(path, migrations=(*shipped(), bad))
    with duckdb.connect(str(path), read_only=True) as file:
        assert ("half",) not in file.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    opened(path).close()


def test_a_file_of_a_newer_program_is_refused_with_the_way_out(path: Path) -> None:
    second = Migration(number=2, name="note", sql="CREATE TABLE note (text VARCHAR)")
    opened(path, migrations=(*shipped(), second)).close()
    with pytest.raises(
        AuditFileRefused, match=r"schema 2, this Relight knows up to 1: .*put back audit\.duckdb\.before-0002"
    ):
        opened(path)


def test_a_migration_that_was_edited_after_it_was_applied_is_refused(path: Path) -> None:
    opened(path).close()
    (first,) = shipped()
    edited = Migration(number=1, name=first.name, sql=first.sql + " ")
    with pytest.raises(AuditFileRefused, match="was applied with SHA-256"):
        opened(path, migrations=(edited,))


def test_migrations_count_without_gaps(tmp_path: Path) -> None:
    (tmp_path / "0001_a.sql").write_text("")
    (tmp_path / "0003_c.sql").write_text("")
    with pytest.raises(ValueError, match=r"count 1, 2, 3 …, got \[1, 3\]"):
        shipped(tmp_path)
