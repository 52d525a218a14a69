# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How far each log has been read: the cursors, kept in a file that survives any crash."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

HEAD_BYTES = 256
_VERSION = 1


class CursorsUnreadable(ValueError):
    """The cursor file holds something else; the message names it and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place in one file: `offset` bytes are done, the next line is `number` + 1.

    Identity is device, inode and a digest of the first bytes: inodes are used again, and a file that was
    copied over keeps its inode but not its head. `head_bytes` says how many bytes the digest covers, since
    a young file may be shorter. `is_open` marks a place inside a line that was too long and was split, or
    that a progress bar goes on rewriting.
    """

    path: str
    device: int
    inode: int
    head: str
    head_bytes: int
    offset: int = 0
    number: int = 0
    is_compressed: bool = False
    is_finished: bool = False

    @property
    def key(self) -> str:
        return f"{self.device}:{self.inode}"

    def moved(self, offset: int, number: int, *, is_finished: bool = False) -> Cursor:
        return replace(self, offset=offset, number=number, is_finished=is_finished)


class CursorStore:
    """Cursors in one JSON file, replaced whole and synced: after a crash the old or the new one is there.

    Errors: CursorsUnreadable if the file is damaged or of another version; OSError if it can't be written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, Cursor]:
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            return {}
        try:
            said = json.loads(text)
            if said["version"] != _VERSION:
                raise ValueError(f"version {said['version']!r}, expected {_VERSION}")
            return {cursor.key: cursor for cursor in (Cursor(**one) for one in said["cursors"])}
        except (ValueError, KeyError, TypeError) as why:
            raise CursorsUnreadable(
                f"{self._path}: {why}; move the file away to read all logs again from their beginning"
            ) from why

    def save(self, cursors: Iterable[Cursor]) -> None:
        """Durable once this returns."""
        data = json.dumps({"version": _VERSION, "cursors": [asdict(c) for c in cursors]}, separators=(",", ":"))
        fresh = self._path.with_name(self._path.name + ".new")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(descriptor, data.encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
