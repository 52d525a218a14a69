# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Files beside the audit database: the lock that keeps a second process out, and the remembered head."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from relight.ports import Head
from service.adapters.audit_migrations import AuditFileRefused

_HASH_DIGITS = 64


class FileLock:
    """Held as long as the process lives, whatever ends it."""

    def __init__(self, path: Path) -> None:
        if not path.parent.is_dir():
            raise AuditFileRefused(f"no folder {path.parent} for the audit file: create it or change its path")
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as why:
            os.close(self._file)
            raise AuditFileRefused(
                f"{path.with_suffix('').name} is open in another Relight process; only one may write: "
                "stop it, or read through its API or a Parquet export"
            ) from why

    def release(self) -> None:
        os.close(self._file)


class HeadFile:
    """Remembers the last acknowledged position and hash, to notice a database that lost its tail.

    Written behind the database and not synced, so it may lag but never lead. Someone who can change
    the database can change this too: against people, remember the head on another machine.
    """

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def read(self) -> Head | None:
        """The remembered head, or None if there is none or it is unreadable."""
        words = os.pread(self._file, 128, 0).split()
        if len(words) != 2 or not words[0].isdigit() or len(words[1]) != _HASH_DIGITS:
            return None
        return Head(position=int(words[0]), hash=words[1].decode("ascii", "replace"))

    def write(self, head: Head) -> None:
        os.pwrite(self._file, f"{head.position:020} {head.hash}\n".encode(), 0)

    def close(self) -> None:
        try:
            os.fsync(self._file)
        finally:
            os.close(self._file)
