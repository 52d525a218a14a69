# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The controller's own memory: small JSON documents and an intent log, durable before a verb is sent."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any


class StoreUnusable(RuntimeError):
    """The file can't be read or written; what can't be recorded must not be done."""


class Store:
    """Documents by (kind, key), and a log of intents and outcomes in order.

    Every call is durable when it returns, except within `together`, which is durable at its end.
    Errors: StoreUnusable.
    """

    def __init__(self, path: str) -> None:
        try:
            self._db = sqlite3.connect(path, isolation_level=None, timeout=5, check_same_thread=False)
            self._db.executescript(
                "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;"
                "CREATE TABLE IF NOT EXISTS document (kind TEXT, key TEXT, body TEXT NOT NULL,"
                " PRIMARY KEY (kind, key));"
                "CREATE TABLE IF NOT EXISTS entry (id INTEGER PRIMARY KEY, at TEXT NOT NULL, subject TEXT NOT NULL,"
                " step TEXT NOT NULL, phase TEXT NOT NULL, detail TEXT NOT NULL);"
            )
        except sqlite3.Error as why:
            raise StoreUnusable(f"{path}: {why}") from why
        self.path = path

    def get(self, kind: str, key: str) -> dict[str, Any] | None:
        row = self._run("SELECT body FROM document WHERE kind = ? AND key = ?", kind, key).fetchone()
        return None if row is None else json.loads(row[0])

    def all(self, kind: str) -> Iterator[tuple[str, dict[str, Any]]]:
        rows = self._run("SELECT key, body FROM document WHERE kind = ? ORDER BY key", kind).fetchall()
        return ((key, json.loads(body)) for key, body in rows)

    def put(self, kind: str, key: str, body: Mapping[str, Any]) -> None:
        text = json.dumps(body, sort_keys=True)
        self._run("INSERT INTO document VALUES (?, ?, ?) ON CONFLICT (kind, key) DO UPDATE SET body = ?3",
                  kind, key, text)  # fmt: skip

    def drop(self, kind: str, key: str) -> None:
        self._run("DELETE FROM document WHERE kind = ? AND key = ?", kind, key)

    def log(self, at: str, subject: str, step: str, phase: str, detail: Mapping[str, Any]) -> None:
        """An intent before a verb, or what came of it."""
        self._run("INSERT INTO entry (at, subject, step, phase, detail) VALUES (?, ?, ?, ?, ?)",
                  at, subject, step, phase, json.dumps(detail, sort_keys=True))  # fmt: skip

    def entries(self, subject: str | None = None) -> list[tuple[str, str, str, str, dict[str, Any]]]:
        rows = self._run("SELECT at, subject, step, phase, detail FROM entry"
                         " WHERE ?1 IS NULL OR subject = ?1 ORDER BY id", subject).fetchall()  # fmt: skip
        return [(at, who, step, phase, json.loads(detail)) for at, who, step, phase, detail in rows]

    @contextmanager
    def together(self) -> Iterator[None]:
        """Several changes as one: all are kept or none."""
        self._run("BEGIN")
        try:
            yield
        except BaseException:
            self._run("ROLLBACK")
            raise
        self._run("COMMIT")

    def close(self) -> None:
        self._db.close()

    def _run(self, sql: str, *values: Any) -> sqlite3.Cursor:
        try:
            return self._db.execute(sql, values)
        except sqlite3.Error as why:
            raise StoreUnusable(f"{self.path}: {why}") from why
