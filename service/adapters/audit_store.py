# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The DuckDB file under the audit log: create it, insert into it, read from it."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa

from relight.chain import ENTITIES, GENESIS, Record, microseconds
from relight.ports import EVERYTHING, AuditFilter, Head
from service.adapters import audit_migrations
from service.adapters.audit_migrations import Migration

# Files of this version open in DuckDB 1.5 as well as in 2.x, so a way back exists.
STORAGE_VERSION = "v1.5.0"
# The log checkpoints by itself, when it can also cut the spill; DuckDB must not do so in between.
_NO_AUTOMATIC_CHECKPOINT = "SET wal_autocheckpoint = '4GB'"
_TYPES = {"position": pa.int64(), "at_us": pa.timestamp("us"), "schema": pa.int32()}
_ARROW = pa.schema([(name, _TYPES.get(name, pa.string())) for name in Record._fields])
_COLUMNS = ", ".join("epoch_us(occurred_at)" if name == "at_us" else name for name in Record._fields)

Commit = Callable[[duckdb.DuckDBPyConnection, "pa.Table"], None]


def commit_batch(connection: duckdb.DuckDBPyConnection, batch: pa.Table) -> None:
    """Insert a batch in one transaction. Returns once DuckDB has synced its log to the disk."""
    connection.begin()
    connection.register("batch", batch)
    connection.execute("INSERT INTO event SELECT * FROM batch")
    connection.unregister("batch")
    connection.commit()


def connect(path: Path, *, threads: int = 2, memory_limit: str = "") -> duckdb.DuckDBPyConnection:
    """Open the file, creating it with our storage version if it does not exist."""
    if not path.exists():
        _create(path)
    connection = duckdb.connect(str(path))
    connection.execute(f"SET threads = {int(threads)}")
    if memory_limit:
        connection.execute("SET memory_limit = ?", [memory_limit])
    connection.execute(_NO_AUTOMATIC_CHECKPOINT)
    return connection


def _create(path: Path) -> None:
    name = str(path).replace("'", "''")
    with duckdb.connect() as nowhere:
        nowhere.execute(f"ATTACH '{name}' AS made (STORAGE_VERSION '{STORAGE_VERSION}')")
        nowhere.execute("DETACH made")


class AuditStore:
    """One connection for the writer, a cursor of its own for every reader."""

    def __init__(self, path: Path, *, threads: int = 2, memory_limit: str = "", commit: Commit = commit_batch) -> None:
        self.path = path
        self._threads, self._memory_limit = threads, memory_limit
        self._commit = commit
        self._lock = threading.Lock()
        self._connection = self._connect()

    def _connect(self) -> duckdb.DuckDBPyConnection:
        return connect(self.path, threads=self._threads, memory_limit=self._memory_limit)

    def migrate(self, known: tuple[Migration, ...]) -> tuple[Migration, ...]:
        """Apply what the file lacks, after a copy of it was made beside it; returns what was applied."""
        todo = audit_migrations.pending(self._connection, known, self.path.name)
        if todo and todo[0].number > 1:
            self._back_up(todo[0].number)
        for migration in todo:
            audit_migrations.apply(self._connection, migration)
        if todo:
            self.checkpoint()
        return todo

    def insert(self, records: Sequence[Record]) -> None:
        """Make the records durable, all or none; duckdb.Error or OSError if that failed."""
        columns = zip(*records, strict=True)
        arrays = [pa.array(values, one.type) for values, one in zip(columns, _ARROW, strict=True)]
        try:
            self._commit(self._connection, pa.Table.from_arrays(arrays, schema=_ARROW))
        except (duckdb.Error, OSError):
            with contextlib.suppress(duckdb.Error):
                self._connection.rollback()
            raise

    def head(self) -> Head:
        """The last record's position and hash."""
        sql = "SELECT position, hash FROM event WHERE position = (SELECT max(position) FROM event)"
        found = self._fetch(sql, [])
        return Head(position=found[0][0], hash=found[0][1]) if found else GENESIS

    def count(self) -> int:
        """The number of rows, whatever their positions say."""
        return int(self._fetch("SELECT count(*) FROM event", [])[0][0])

    def select(self, after: int, limit: int, where: AuditFilter = EVERYTHING) -> list[Record]:
        """At most `limit` records behind `after` that the filter asks for, in order."""
        if where == EVERYTHING and (records := self._span(after, after + limit)):
            return records[:limit]
        condition, values = conditions(where)
        sql = f"SELECT {_COLUMNS} FROM event WHERE position > ? AND {condition} ORDER BY position LIMIT ?"  # noqa: S608
        return [Record(*row) for row in self._fetch(sql, [after, *values, limit])]

    def pages(self, after: int = 0, size: int = 20_000) -> Iterator[list[Record]]:
        """All records behind `after`, in order, a page at a time; two of one position share a page."""
        while page := self._span(after, after + size) or self.select(after, size):
            yield page
            after = page[-1].position

    def by_key(self, keys: Sequence[str]) -> dict[str, Record]:
        """The records that were made under these keys."""
        if not keys:
            return {}
        # Placeholders are answered from the index; a join with an unnested list would scan the table.
        marks = ", ".join("?" * len(keys))
        rows = self._fetch(f"SELECT {_COLUMNS} FROM event WHERE key IN ({marks})", keys)  # noqa: S608
        return {str(record.key): record for record in (Record(*row) for row in rows)}

    def _span(self, after: int, last: int) -> list[Record]:
        # Bounding the positions spares the sort of all that follows, which DuckDB does for a bare LIMIT.
        sql = f"SELECT {_COLUMNS} FROM event WHERE position > ? AND position <= ? ORDER BY position"  # noqa: S608
        return [Record(*row) for row in self._fetch(sql, [after, last])]

    @contextlib.contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection of one's own to the open file, to be used by one thread."""
        with self._lock:
            cursor = self._connection.cursor()
        try:
            yield cursor
        finally:
            cursor.close()

    def checkpoint(self) -> None:
        """Move DuckDB's write-ahead log into the file and sync it."""
        self._connection.execute("CHECKPOINT")

    def revive(self) -> None:
        """Open the file anew if DuckDB has given up on it, as it does after some I/O errors."""
        try:
            self.head()
        except duckdb.Error:
            with self._lock:
                self._connection.close()
                self._connection = self._connect()

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _fetch(self, sql: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        with self.cursor() as cursor:
            return cursor.execute(sql, values).fetchall()

    def _back_up(self, number: int) -> None:
        self.checkpoint()
        self.close()
        shutil.copy2(self.path, self.path.with_name(audit_migrations.kept_before(self.path.name, number)))
        self._connection = self._connect()


def conditions(where: AuditFilter) -> tuple[str, list[object]]:
    """The filter as an SQL condition with its values; our own column names, the caller's values bound."""
    parts: list[str] = ["TRUE"]
    values: list[object] = []
    if where.kinds:
        parts.append(f"kind IN ({', '.join('?' * len(where.kinds))})")
        values.extend(where.kinds)
    for comparison, moment in ((">=", where.since), ("<", where.until)):
        if moment is not None:
            parts.append(f"occurred_at {comparison} make_timestamp(?)")
            values.append(microseconds(moment))
    for name in ENTITIES:
        if (wanted := getattr(where, name)) is not None:
            parts.append(f"{name} = ?")
            values.append(str(wanted))
    return " AND ".join(parts), values
