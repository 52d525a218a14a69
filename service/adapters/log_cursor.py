# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How far each log has been read: the cursors, kept in a file that survives any crash."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

HEAD_BYTES = 256
_VERSION = 1
_GZIP_MAGIC = b"\x1f\x8b"


class CursorsUnreadable(ValueError):
    """The cursor file holds something else; the message names it and the way out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """A place in one file: `offset` bytes are done, the next line is `number` + 1.

    Identity is device, inode and a digest of the first bytes: inodes are used again, and a file that is
    copied over keeps its inode but not its head. `head_bytes` says how many bytes the digest covers, since a
    young file may be shorter. `pending` bytes behind `offset` were handed on but are not known to be durable:
    after a crash exactly these come again. In a gzip file, `offset` counts unpacked bytes.
    """

    path: str
    device: int
    inode: int
    head: str
    head_bytes: int
    offset: int = 0
    number: int = 0
    pending: int = 0
    is_pending_complete: bool = False
    is_compressed: bool = False
    is_finished: bool = False
    is_drained: bool = False

    @property
    def key(self) -> str:
        return f"{self.device}:{self.inode}"

    def numbered_from(self, number: int) -> Cursor:
        return replace(self, number=number)

    def about_to_deliver(self, used: int, *, is_complete: bool) -> Cursor:
        return replace(self, pending=used, is_pending_complete=is_complete)

    def done(self, used: int, lines: int, *, is_finished: bool, is_drained: bool) -> Cursor:
        return replace(
            self, offset=self.offset + used, number=self.number + lines, pending=0, is_pending_complete=False,
            is_finished=is_finished, is_drained=is_drained,
        )  # fmt: skip

    def packed_as(self, descriptor: int, unpack: Callable[[int, int, int], bytes]) -> Cursor | None:
        """The same place in a gzip file, if that holds what was read here before it was packed."""
        if self.is_compressed or self.head_bytes == 0:
            return None
        if digest(unpack(descriptor, 0, self.head_bytes)) != self.head:
            return None
        return replace(
            cursor_of(self.path, descriptor), offset=self.offset, number=self.number, pending=self.pending,
            is_pending_complete=self.is_pending_complete,
        )  # fmt: skip


def digest(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=12).hexdigest()


def cursor_of(path: str, descriptor: int) -> Cursor:
    """The beginning of an open file."""
    status, head = os.fstat(descriptor), os.pread(descriptor, HEAD_BYTES, 0)
    return Cursor(
        path=path, device=status.st_dev, inode=status.st_ino, head=digest(head), head_bytes=len(head),
        is_compressed=head[:2] == _GZIP_MAGIC,
    )  # fmt: skip


def is_same(cursor: Cursor, descriptor: int) -> bool:
    """The file that the cursor speaks of: at least as long as what was read of it, with the same beginning."""
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != (cursor.device, cursor.inode):
        return False
    if not cursor.is_compressed and status.st_size < cursor.offset:
        return False
    head = os.pread(descriptor, cursor.head_bytes, 0)
    return len(head) == cursor.head_bytes and digest(head) == cursor.head


def with_longer_head(cursor: Cursor, descriptor: int) -> Cursor:
    """The cursor with a digest over more of the head, once the file has grown."""
    if cursor.head_bytes >= HEAD_BYTES:
        return cursor
    now = cursor_of(cursor.path, descriptor)
    return replace(cursor, head=now.head, head_bytes=now.head_bytes, is_compressed=now.is_compressed)


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
