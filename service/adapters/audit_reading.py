# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Recorded events read back from an audit log or from its Parquet export, in order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from relight.events import Event, from_json
from relight.ports import AuditLog
from service.adapters.audit_export import FILE_NAME

BATCH = 2_000


def recorded_events(source: Path, open_log: Callable[[Path], AuditLog]) -> Iterator[list[Event]]:
    """Batches of events; a folder is one that `relight audit export` wrote.

    Errors: OSError for a file that can't be read, AuditUnavailable for a log that is in use.
    """
    if source.is_dir():
        source = source / FILE_NAME
    if source.suffix == ".parquet":
        yield from _exported(source)
        return
    log, position = open_log(source), 0
    try:
        while batch := log.read(after=position, limit=BATCH):
            position = batch[-1].position
            yield [stored.event for stored in batch]
    finally:
        log.close()


def _exported(path: Path) -> Iterator[list[Event]]:
    import pyarrow.parquet

    with pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(BATCH, columns=["payload"]):
            yield [from_json(json.loads(one)) for one in batch.column(0).to_pylist()]
