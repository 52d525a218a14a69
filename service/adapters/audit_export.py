# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Write the audit log to Parquet while it stays in use: the door for notebooks, which can't open its file."""

from __future__ import annotations

import os
from pathlib import Path

from relight.chain import Record
from relight.ports import EVERYTHING, AuditFilter, Exported, Head
from service.adapters.audit_store import AuditStore, conditions

FILE_NAME = "events.parquet"
_COLUMNS = ", ".join("occurred_at" if name == "at_us" else name for name in Record._fields)


def export_parquet(store: AuditStore, folder: Path, where: AuditFilter = EVERYTHING) -> Exported:
    """Write `events.parquet` into `folder`: complete or not at all, replacing an older export.

    The columns are those of the log, `payload` being each event's JSON; the file's metadata names the
    head of the log at that moment, so an export can serve as a remembered head.
    """
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / f".{FILE_NAME}.{os.getpid()}.unfinished"
    head = store.head()
    condition, values = conditions(where)
    rows = f"FROM event WHERE position <= {head.position} AND {condition}"
    try:
        with store.cursor() as cursor:
            target = str(unfinished).replace("'", "''")
            metadata = f"{{head_position: '{head.position}', head_hash: '{head.hash}'}}"
            cursor.execute(
                f"COPY (SELECT {_COLUMNS} {rows} ORDER BY position) TO '{target}' (FORMAT parquet, "
                f"COMPRESSION zstd, KV_METADATA {metadata})",
                values,
            )
            counted = cursor.execute(f"SELECT count(*), min(position), max(position) {rows}", values)
            events, first, last = counted.fetchall()[0]
        _publish(unfinished, folder / FILE_NAME)
    finally:
        unfinished.unlink(missing_ok=True)
    return Exported(
        path=str(folder / FILE_NAME),
        events=events,
        first=first,
        last=last,
        head=Head(position=head.position, hash=head.hash),
    )


def _publish(unfinished: Path, target: Path) -> None:
    for path in (unfinished, unfinished.parent):
        file = os.open(path, os.O_RDONLY)
        try:
            os.fsync(file)
        finally:
            os.close(file)
        if path is unfinished:
            unfinished.replace(target)
