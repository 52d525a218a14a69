# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From a Parquet export back to an audit log that a service can start from; proved link by link on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet

from relight.chain import ChainWalk, Record
from relight.events import UnknownEvent
from relight.jsonform import MalformedJson
from relight.ports import Head
from service.adapters.audit_head import FileLock, HeadFile
from service.adapters.audit_migrations import AuditFileRefused, shipped
from service.adapters.audit_recovery import spill_path
from service.adapters.audit_store import AuditStore
from service.backup import BackupDamaged

_ROWS = 20_000
_FOREIGN = (pa.ArrowException, KeyError, ValueError, OSError)


def proved(export: Path) -> Head:
    """The head that the export's events lead to, all of them from the first.

    Errors: BackupDamaged for an export that is filtered, changed, cut or unreadable.
    """
    walk = ChainWalk()
    for page in _pages(export):
        _see(walk, page)
    _require_end(walk, export)
    return walk.head


def restored(export: Path, path: Path, meant: Head) -> Head:
    """Make a new audit log at `path` from the export, which must end at `meant`; whole or not at all.

    Errors: BackupDamaged, and AuditFileRefused if there is a log already or another process has it.
    """
    for one in (path, path.with_name(f"{path.name}.wal"), spill_path(path)):
        if one.exists():
            raise AuditFileRefused(f"{one} exists; move it and all that stands beside it away first")
    fresh = path.with_name(f".{path.name}.restoring")
    lock = FileLock(path.with_name(f"{path.name}.lock"))
    try:
        fresh.unlink(missing_ok=True)
        head = _filled(export, fresh)
        if head != meant:
            raise BackupDamaged(f"the record ends at {head.position}:{head.hash}, which is not what was backed up")
        head_file = HeadFile(path.with_name(f"{path.name}.head"))
        head_file.write(head)
        head_file.close()
        fresh.replace(path)
    except duckdb.Error as why:
        raise AuditFileRefused(f"{path} can't be written: {why}") from why
    finally:
        fresh.unlink(missing_ok=True)
        lock.release()
    return head


def _filled(export: Path, fresh: Path) -> Head:
    store, walk = AuditStore(fresh), ChainWalk()
    try:
        store.migrate(shipped())
        for page in _pages(export):
            _see(walk, page)
            _require_known(page)
            store.insert(page)
        store.checkpoint()
    finally:
        store.close()
    _require_end(walk, export)
    return walk.head


def _pages(export: Path) -> Iterator[list[Record]]:
    try:
        with pyarrow.parquet.ParquetFile(export) as file:
            for batch in file.iter_batches(_ROWS):
                columns = [_column(batch, name) for name in Record._fields]
                yield [Record(*row) for row in zip(*columns, strict=True)]
    except _FOREIGN as why:
        raise BackupDamaged(f"{export} is not a whole export of an audit log: {why}") from why


def _column(batch: pa.RecordBatch, name: str) -> list[object]:
    if name != "at_us":
        found: list[object] = batch.column(name).to_pylist()
        return found
    moments: list[object] = batch.column("occurred_at").cast(pa.timestamp("us")).cast(pa.int64()).to_pylist()
    return moments


def _see(walk: ChainWalk, page: list[Record]) -> None:
    if not walk.see(page) and walk.broken is not None:
        broken = walk.broken
        raise BackupDamaged(f"the export does not hold the whole record: position {broken.position}: {broken.reason}")


def _require_known(page: list[Record]) -> None:
    for record in page:
        try:
            record.event()
        except UnknownEvent as why:
            raise AuditFileRefused(f"the backup is of a newer Relight: {why}") from why
        except (MalformedJson, ValueError) as why:
            raise BackupDamaged(f"the event at position {record.position} can't be read: {why}") from why


def _require_end(walk: ChainWalk, export: Path) -> None:
    with pyarrow.parquet.ParquetFile(export) as file:
        said = file.schema_arrow.metadata or {}
    end = f"{walk.head.position}:{walk.head.hash}"
    meant = f"{said.get(b'head_position', b'').decode()}:{said.get(b'head_hash', b'').decode()}"
    if end != meant:
        raise BackupDamaged(f"the export ends at {end}, and was made at {meant}: it does not hold the whole record")
