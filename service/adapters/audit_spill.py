# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The JSONL file beside the audit database: the records since its last checkpoint.

Two uses. When a commit fails, the records are synced here instead and folded back later. When all is
well they are written here without a sync, which costs next to nothing: should a damaged write-ahead
log have to be set aside, the records it held are still here. Every line carries its hash, so a torn
or damaged line is known as such.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from relight.chain import Record

Write = Callable[[int, bytes], int]
_WIDTH = len(Record._fields)


class SpillFailed(OSError):
    """The records could not be written beside the database."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvage:
    """What a spill file held: records in order, and whether something unreadable followed them."""

    records: tuple[Record, ...] = ()
    size: int = 0
    is_torn: bool = False
    is_damaged: bool = False


def salvage(path: Path) -> Salvage:
    """Read a spill file up to the first line that is not a sound record.

    A last line without its newline is torn: the write was cut short, so nobody was told that it is
    durable. Anything else that can't be read is damage.
    """
    content = path.read_bytes() if path.exists() else b""
    records: list[Record] = []
    size = 0
    for line in content.splitlines(keepends=True):
        record = _parsed(line) if line.endswith(b"\n") else None
        if record is None:
            break
        records.append(record)
        size += len(line)
    rest = content[size:]
    is_torn = bool(rest) and b"\n" not in rest
    return Salvage(records=tuple(records), size=size, is_torn=is_torn, is_damaged=bool(rest) and not is_torn)


def _parsed(line: bytes) -> Record | None:
    try:
        columns = json.loads(line)
    except ValueError:
        return None
    if not isinstance(columns, list) or len(columns) != _WIDTH:
        return None
    record = Record(*columns)
    try:
        return record if record.digest() == record.hash else None
    except (TypeError, ValueError):
        return None


class Spill:
    """Appends records to the file; after a failed write it cuts the file back to what was whole."""

    def __init__(self, path: Path, *, size: int = 0, write: Write = os.write) -> None:
        self.path = path
        self.size = size
        self._write = write
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        os.ftruncate(self._file, size)
        os.lseek(self._file, size, os.SEEK_SET)
        self._sync_folder()
        self.is_whole = True

    def add(self, records: Sequence[Record], *, is_durable: bool) -> None:
        """Append the records, and sync them if `is_durable`. SpillFailed if they are not all there.

        Once records are missing here (`is_whole` is false), later ones are refused until `reset`:
        a file with a gap could not be folded back.
        """
        if not self.is_whole:
            raise SpillFailed(f"{self.path.name} misses records since an earlier failure")
        lines = "".join(json.dumps(record, ensure_ascii=True) + "\n" for record in records).encode()
        try:
            self._write_all(lines)
            if is_durable:
                os.fsync(self._file)
        except OSError as why:
            # Records that the caller now gives up may be absent; records that the database holds may not.
            self.is_whole = self._cut_back() and is_durable
            raise SpillFailed(f"{self.path.name}: {why}") from why
        self.size += len(lines)

    def give_up(self) -> None:
        """Say that the database holds records which this file lacks."""
        self.is_whole = False

    def reset(self) -> None:
        """Empty the file, once the database holds all of it in its own file."""
        self.size = 0
        self.is_whole = self._cut_back()

    def close(self) -> None:
        os.close(self._file)

    def _write_all(self, lines: bytes) -> None:
        while lines:
            lines = lines[self._write(self._file, lines) :]

    def _cut_back(self) -> bool:
        try:
            os.ftruncate(self._file, self.size)
            os.lseek(self._file, self.size, os.SEEK_SET)
            os.fsync(self._file)
        except OSError:
            return False
        return True

    def _sync_folder(self) -> None:
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
