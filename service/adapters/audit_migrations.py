# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Bring a DuckDB file to the schema of this program: numbered SQL files, applied once, never back."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

import duckdb

FOLDER = Path(__file__).parent / "migrations"
_NAME = re.compile(r"(\d{4})_(\w+)\.sql")
_LEDGER = """
    CREATE TABLE IF NOT EXISTS schema_migration (
        number INTEGER NOT NULL, name VARCHAR NOT NULL, sha256 VARCHAR NOT NULL)
"""


class AuditFileRefused(RuntimeError):
    """The audit file can't be used as it is; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    number: int
    name: str
    sql: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.sql.encode()).hexdigest()


def shipped(folder: Path = FOLDER) -> tuple[Migration, ...]:
    """The migrations of this program, in order; ValueError unless they count 1, 2, 3 …"""
    found = []
    for path in sorted(folder.glob("*.sql")):
        if (match := _NAME.fullmatch(path.name)) is None:
            raise ValueError(f"{path.name}: name a migration like 0002_what_it_does.sql")
        sql = path.read_text(encoding="utf-8")
        found.append(Migration(number=int(match[1]), name=match[2], sql=sql))
    numbers = [one.number for one in found]
    if numbers != list(range(1, len(found) + 1)):
        raise ValueError(f"migrations must count 1, 2, 3 …, got {numbers}")
    return tuple(found)


def pending(connection: duckdb.DuckDBPyConnection, known: tuple[Migration, ...], file: str) -> tuple[Migration, ...]:
    """The migrations that `file` lacks; AuditFileRefused for a file of a newer or another program."""
    applied = _applied(connection)
    newest = max((number for number, _, _ in applied), default=0)
    if newest > len(known):
        raise AuditFileRefused(
            f"the audit file has schema {newest}, this Relight knows up to {len(known)}: "
            f"run the newer Relight, or put back {kept_before(file, len(known) + 1)}, made before the migration"
        )
    for (number, name, sha256), migration in zip(applied, known, strict=False):
        if (number, sha256) != (migration.number, migration.sha256):
            raise AuditFileRefused(
                f"migration {number} ({name}) was applied with SHA-256 {sha256}, "
                f"this Relight ships {migration.sha256}: install the Relight that made the file"
            )
    return known[len(applied) :]


def kept_before(file: str, number: int) -> str:
    """The name of the copy that is made before a migration."""
    return f"{file}.before-{number:04}"


def apply(connection: duckdb.DuckDBPyConnection, migration: Migration) -> None:
    """Apply one migration, wholly or not at all."""
    connection.execute(_LEDGER)
    connection.begin()
    try:
        connection.execute(migration.sql)
        connection.execute(
            "INSERT INTO schema_migration VALUES (?, ?, ?)",
            [migration.number, migration.name, migration.sha256],
        )
        connection.commit()
    except duckdb.Error as why:
        connection.rollback()
        raise AuditFileRefused(f"migration {migration.number} ({migration.name}) failed: {why}") from why


def _applied(connection: duckdb.DuckDBPyConnection) -> list[tuple[int, str, str]]:
    tables = connection.execute("SELECT table_name FROM duckdb_tables()").fetchall()
    if ("schema_migration",) not in tables:
        return []
    return connection.execute("SELECT number, name, sha256 FROM schema_migration ORDER BY number").fetchall()
