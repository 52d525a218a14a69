# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Held lines on disk: records appended to numbered files and synced before anybody is told that they are held."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from relight.ports import AuditUnavailable
from service.holding import Spot

_NAME = re.compile(r"(\d{12})\.held")


class HeldSegments:
    """One record a line in `folder`; a start goes on in a new file, behind what a crash may have torn.

    Errors: AuditUnavailable while the disk takes nothing: what is not durable is not held. OSError from a folder
            that can't be read at the start.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._current = max(self._segments(), default=0)
        self._file: int | None = None
        self._end = 0

    def append(self, records: Sequence[bytes]) -> list[Spot]:
        try:
            file, start = self._opened(), self._end
            self._written(file, b"".join(record + b"\n" for record in records), start)
        except OSError as why:
            raise AuditUnavailable(f"lines can't be held in {self._folder}: {why}") from why
        spots = []
        for record in records:
            spots.append(Spot(self._current, self._end, len(record)))
            self._end += len(record) + 1
        return spots

    def read(self, spot: Spot) -> bytes:
        try:
            with self._path(spot.segment).open("rb") as file:
                file.seek(spot.offset)
                return file.read(spot.length)
        except OSError as why:
            raise AuditUnavailable(f"held lines can't be read: {why}") from why

    def begin(self) -> int:
        self._close()
        self._current += 1
        return self._current

    def drop(self, segment: int) -> None:
        if segment == self._current:
            self._close()
        self._path(segment).unlink(missing_ok=True)

    def stored(self) -> Iterator[tuple[Spot, bytes]]:
        for segment in self._segments():
            offset = 0
            for record in self._path(segment).read_bytes().split(b"\n")[:-1]:
                yield Spot(segment, offset, len(record)), record
                offset += len(record) + 1

    # -------------------------------------------------------------- inside

    def _opened(self) -> int:
        if self._file is None:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if self._path(self._current).exists():
                self._current += 1
            self._file = os.open(self._path(self._current), os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            self._end = 0
            folder = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        return self._file

    @staticmethod
    def _written(file: int, data: bytes, start: int) -> None:
        """All of it or nothing: what a full disk took of it is taken back."""
        try:
            done = 0
            while done < len(data):
                done += os.pwrite(file, data[done:], start + done)
            os.fdatasync(file)
        except OSError:
            os.ftruncate(file, start)
            raise

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:012d}.held"

    def _segments(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return sorted(int(found[1]) for path in self._folder.iterdir() if (found := _NAME.fullmatch(path.name)))
