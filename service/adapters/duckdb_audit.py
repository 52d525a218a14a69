# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The audit log in DuckDB: one writer commits in groups, and nothing is acknowledged before it is durable."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from relight.chain import ChainWalk, Draft, draft, matches
from relight.events import AuditRepaired, Event
from relight.ports import (
    EVERYTHING,
    AuditFilter,
    AuditUnavailable,
    ChainBreak,
    Clock,
    Exported,
    Head,
    Recorded,
    StoredEvent,
    Verification,
)
from service.adapters.audit_export import export_parquet
from service.adapters.audit_head import FileLock, HeadFile
from service.adapters.audit_migrations import Migration, shipped
from service.adapters.audit_queue import GroupQueue, Request
from service.adapters.audit_recovery import Recovery, recover, spill_path
from service.adapters.audit_spill import Spill, Write
from service.adapters.audit_store import AuditStore, Commit, commit_batch
from service.adapters.audit_writer import AuditWriter, unanswered


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """How the log groups, bounds and retries; `commit` and `write` are where its bytes leave the process."""

    group_rows: int = 500
    linger_s: float = 0.05
    queue_rows: int = 20_000
    max_unfolded: int = 200_000
    checkpoint_bytes: int = 32 * 1024 * 1024
    retry_s: float = 1.0
    threads: int = 2
    memory_limit: str = ""
    migrations: tuple[Migration, ...] | None = None
    commit: Commit = commit_batch
    write: Write = os.write


class DuckDBAuditLog:
    """Thread-safe `AuditLog` over one DuckDB file, which it keeps to itself until `close`.

    Opening raises AuditFileRefused if another process has the file or a newer Relight made it, and
    leaves in `repairs` (and in the log) what it had to mend.
    """

    def __init__(self, path: Path | str, clock: Clock, options: AuditOptions | None = None) -> None:
        chosen = options or AuditOptions()
        self.path = Path(path)
        self._lock = FileLock(self.path.with_name(f"{self.path.name}.lock"))
        try:
            head_file = HeadFile(self.path.with_name(f"{self.path.name}.head"))
            recovery = self._recover(clock, chosen, head_file.read())
            spill = Spill(spill_path(self.path), size=recovery.spill_size, write=chosen.write)
        except BaseException:
            self._lock.release()
            raise
        self.repairs: tuple[AuditRepaired, ...] = tuple(recovery.repairs)
        self._store = recovery.store
        self._writer = AuditWriter(
            recovery,
            spill,
            head_file,
            clock,
            checkpoint_bytes=chosen.checkpoint_bytes,
            retry_s=chosen.retry_s,
            max_unfolded=chosen.max_unfolded,
        )
        self._retry_s = chosen.retry_s
        self._queue = GroupQueue(group_rows=chosen.group_rows, linger_s=chosen.linger_s, max_rows=chosen.queue_rows)
        self._writer.say(self.repairs)
        self._thread = threading.Thread(target=self._write_groups, name="audit-writer", daemon=True)
        self._thread.start()

    def append(self, events: Sequence[Event]) -> tuple[int, ...]:
        return tuple(one.position for one in self._submit([draft(event) for event in events]))

    def record_once(self, key: str, event: Event) -> Recorded:
        (recorded,) = self._submit([draft(event, key)])
        return recorded

    def read(self, after: int = 0, limit: int = 1000, where: AuditFilter = EVERYTHING) -> tuple[StoredEvent, ...]:
        # Taken before the database is read: a record folded back in between is then seen twice, not never.
        spilled = self._writer.unfolded
        with self._readable():
            records = self._store.select(after, limit, where)
        last = records[-1].position if records else after
        waiting = (record for record in spilled if record.position > last and matches(record, where))
        return tuple(record.stored() for record in [*records, *waiting][:limit])

    def head(self) -> Head:
        return self._writer.head

    def verify(self, anchor: Head | None = None) -> Verification:
        walk = ChainWalk(anchor=anchor)
        spilled = self._writer.unfolded
        with self._readable():
            rows = self._store.count()
            for page in self._store.pages():
                if not walk.see(page):
                    break
            seen = walk.events
        walk.see(record for record in spilled if record.position > walk.head.position)
        if walk.broken is None and seen < rows:
            walk.broken = ChainBreak(
                position=walk.head.position,
                expected=f"{seen} rows",
                found=f"{rows} rows",
                reason="a position was recorded more than once",
            )
        return walk.finish()

    def export(self, path: str, where: AuditFilter = EVERYTHING) -> Exported:
        """See AuditLog. Events that wait in the spill file for the database are not part of an export."""
        with self._readable():
            return export_parquet(self._store, Path(path), where)

    def close(self) -> None:
        self._queue.close("the audit log is closed")
        self._thread.join()

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        if not self._thread.is_alive():
            raise AuditUnavailable("the audit log is closed")
        try:
            yield
        except duckdb.Error as why:
            raise AuditUnavailable(f"the audit database can't be read: {why}") from why

    def _recover(self, clock: Clock, options: AuditOptions, remembered: Head | None) -> Recovery:
        def make() -> AuditStore:
            return AuditStore(
                self.path,
                threads=options.threads,
                memory_limit=options.memory_limit,
                commit=options.commit,
            )

        known = shipped() if options.migrations is None else options.migrations
        return recover(make, self.path, at=clock.now(), known=known, remembered=remembered)

    def _submit(self, drafts: Sequence[Draft]) -> tuple[Recorded, ...]:
        if not drafts:
            return ()
        request = Request(drafts=drafts)
        self._queue.put(request)
        return request.answer.result()

    def _write_groups(self) -> None:
        group: list[Request] | None = []
        try:
            while group is not None:
                if group:
                    self._writer.record(group)
                else:
                    self._writer.tend()
                group = self._queue.next_group(self._retry_s if self._writer.is_ailing else None)
            self._writer.finish()
        except BaseException as why:
            left = self._queue.close(f"the audit log's writer died of {type(why).__name__}: restart Relight")
            for request in unanswered([*(group or ()), *left]):
                request.answer.set_exception(AuditUnavailable("the audit log's writer died: restart Relight"))
            raise
        finally:
            self._lock.release()
