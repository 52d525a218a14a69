# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Follows the logs of running jobs by polling, and never loses or doubles a line over a restart."""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from relight.types import AttemptId, LogLine, NodeName, Rank, Stream
from service.adapters.log_cursor import HEAD_BYTES, Cursor, CursorStore
from service.adapters.log_roots import LogRoots, PathRefused

MAX_LINE_BYTES = 64_000
BYTES_PER_TICK = 1 << 20
SPLIT_MARK = " […line continues]"
PARTIAL_AFTER_S = 30.0
_CHUNK = 1 << 16
_GZIP_MAGIC = b"\x1f\x8b"
_REWRITE_SHAPE = re.compile(rb"[\d.:%,?-]+|[#=>\s|]+|\xe2[\x94-\x96].")


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A log that is to be followed, and who writes it."""

    attempt: AttemptId
    path: str
    stream: Stream = Stream.APPLICATION
    node: NodeName | None = None
    rank: Rank | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """Lines of one attempt, and the places to remember once they are durable."""

    attempt: AttemptId
    lines: tuple[LogLine, ...]
    cursors: tuple[Cursor, ...]


@dataclass(slots=True)
class _Open:
    """One followed file between two ticks."""

    log: Followed
    cursor: Cursor | None = None
    older: list[str] = field(default_factory=list)
    refused: str = ""
    grown_at: datetime | None = None
    size: int = -1


class LogTail:
    """Polls files, since no notification tells of writes made on another host.

    `tick` reads what is new and hands each attempt's lines to `deliver`, which returns once they are durable;
    only then are the cursors stored. If it raises, or if we die in between, the same lines are read again with
    the same file and number, by which a receiver knows them: nothing is lost, nothing counts twice.

    Shapes: at most `bytes_per_tick` of a file in a tick; lines longer than 64,000 bytes come in marked parts.
    Units:  bytes; `LogLine.number` counts the lines delivered of one file identity, rewrites of a progress
            bar included (of those that look alike only the last is delivered).
    Errors: what `deliver` and the cursor store raise; a file that can't be read is noted in `troubles`.
    """

    def __init__(
        self,
        roots: LogRoots,
        store: CursorStore,
        deliver: Callable[[AttemptId, Sequence[LogLine]], object],
        *,
        bytes_per_tick: int = BYTES_PER_TICK,
    ) -> None:
        self._roots, self._store, self._deliver = roots, store, deliver
        self._bytes_per_tick = bytes_per_tick
        self._known = store.load()
        self._files: dict[str, _Open] = {}
        self._behind_since: datetime | None = None

    # -------------------------------------------------------------- what is followed

    def follow(self, log: Followed) -> None:
        """Begin or go on with a file. Errors: PathRefused if it lies outside of the allowed folders."""
        self._roots.check(log.path)
        if log.path not in self._files:
            known = [c for c in self._known.values() if c.path == log.path and not c.is_finished]
            self._files[log.path] = _Open(log, known[-1] if known else None)

    def unfollow(self, attempt: AttemptId) -> None:
        """Let go of a finished attempt's files and forget their places."""
        for path in [p for p, f in self._files.items() if f.log.attempt == attempt]:
            del self._files[path]
            self._known = {key: c for key, c in self._known.items() if c.path != path}
        self._store.save(self._known.values())

    @property
    def troubles(self) -> dict[str, str]:
        """Files that can't be read now, and why: their silence says nothing."""
        return {path: file.refused for path, file in self._files.items() if file.refused}

    def lag_s(self, now: datetime) -> float:
        """Since when more was waiting in the files than was read."""
        return (now - self._behind_since).total_seconds() if self._behind_since is not None else 0.0

    # -------------------------------------------------------------- one tick

    def tick(self, now: datetime) -> int:
        """Read, deliver, remember; returns how many lines were delivered."""
        delivered, is_behind = 0, False
        for file in list(self._files.values()):
            batch, has_more = self._read(file, now)
            is_behind = is_behind or has_more
            if batch is None:
                continue
            if batch.lines:
                self._deliver(batch.attempt, batch.lines)
                delivered += len(batch.lines)
            self._remember(file, batch.cursors)
        self._behind_since = (self._behind_since or now) if is_behind else None
        return delivered

    def _remember(self, file: _Open, cursors: Iterable[Cursor]) -> None:
        for cursor in cursors:
            self._known[cursor.key] = cursor
            file.cursor = None if cursor.is_finished else cursor
        self._store.save(self._known.values())

    def _read(self, file: _Open, now: datetime) -> tuple[Batch | None, bool]:
        try:
            descriptor = self._opened(file)
        except FileNotFoundError:
            file.refused = "not there"
            return None, False
        except (PathRefused, OSError) as why:
            file.refused = str(why)
            return None, False
        try:
            return self._read_open(file, descriptor, now)
        except OSError as why:  # a stale handle of a network file system: try again at the next tick
            file.refused = str(why)
            return None, False
        finally:
            os.close(descriptor)

    def _opened(self, file: _Open) -> int:
        """The file that our cursor speaks of, even under another name; else what bears the name now."""
        descriptor = self._roots.open(file.log.path)
        file.refused = ""
        cursor = file.cursor
        if cursor is None or _is_same(cursor, descriptor):
            return descriptor
        rotated = self._rotated(cursor)
        if rotated is not None:
            os.close(descriptor)
            return rotated
        file.cursor = None  # truncated, replaced, or gone with its last lines: begin anew
        return descriptor

    def _rotated(self, cursor: Cursor) -> int | None:
        """Our file under its new name, for its last lines."""
        for path, inode in self._roots.siblings(cursor.path):
            if inode != cursor.inode or path == cursor.path:
                continue
            try:
                descriptor = self._roots.open(path)
            except (PathRefused, OSError):
                continue
            if _is_same(cursor, descriptor):
                return descriptor
            os.close(descriptor)
        return None

    def _read_open(self, file: _Open, descriptor: int, now: datetime) -> tuple[Batch | None, bool]:
        status = os.fstat(descriptor)
        cursor = file.cursor or self._begun(file.log.path, descriptor, status)
        is_current = self._is_named(file.log.path, status)
        data = _contents(descriptor, cursor, self._bytes_per_tick)
        if status.st_size != file.size or file.grown_at is None:
            file.size, file.grown_at = status.st_size, now
        is_at_end = len(data) < self._bytes_per_tick
        is_quiet = is_at_end and (now - file.grown_at).total_seconds() >= PARTIAL_AFTER_S
        pieces, used = _lines(data, is_complete=is_at_end and (not is_current or is_quiet))
        lines = tuple(_line(file.log, cursor.number + i, text) for i, text in enumerate(pieces, 1))
        is_finished = is_at_end and not is_current
        moved = _headed(cursor, descriptor).moved(cursor.offset + used, cursor.number + len(lines), is_finished=is_finished)
        if moved == cursor and file.cursor is not None:
            return None, False
        return Batch(file.log.attempt, lines, (moved,)), not is_at_end or is_finished

    def _is_named(self, path: str, status: os.stat_result) -> bool:
        try:
            descriptor = self._roots.open(path)
        except (PathRefused, OSError):
            return False
        try:
            named = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino)

    def _begun(self, path: str, descriptor: int, status: os.stat_result) -> Cursor:
        head = os.pread(descriptor, HEAD_BYTES, 0)
        key = f"{status.st_dev}:{status.st_ino}"
        known = self._known.get(key)
        if known is not None and known.path == path and _is_same(known, descriptor):
            return known
        return Cursor(
            path=path, device=status.st_dev, inode=status.st_ino, head=_digest(head), head_bytes=len(head),
            number=self._numbered(path), is_compressed=head[:2] == _GZIP_MAGIC,
        )  # fmt: skip

    def _numbered(self, path: str) -> int:
        """Numbers go on over a rotation or truncation: a receiver tells lines by path and number."""
        return max((c.number for c in self._known.values() if c.path == path), default=0)


# ------------------------------------------------------------------ bytes and lines


def _digest(head: bytes) -> str:
    return hashlib.blake2b(head, digest_size=12).hexdigest()


def _is_same(cursor: Cursor, descriptor: int) -> bool:
    """The same file, at least as long as what was read of it, with the same beginning."""
    status = os.fstat(descriptor)
    if (status.st_dev, status.st_ino) != (cursor.device, cursor.inode):
        return False
    if not cursor.is_compressed and status.st_size < cursor.offset:
        return False
    head = os.pread(descriptor, cursor.head_bytes, 0)
    return len(head) == cursor.head_bytes and _digest(head) == cursor.head


def _headed(cursor: Cursor, descriptor: int) -> Cursor:
    """The cursor with a digest over more of the head, once the file has grown."""
    if cursor.head_bytes >= HEAD_BYTES:
        return cursor
    head = os.pread(descriptor, HEAD_BYTES, 0)
    is_compressed = cursor.is_compressed or head[:2] == _GZIP_MAGIC
    return replace(cursor, head=_digest(head), head_bytes=len(head), is_compressed=is_compressed)


def _contents(descriptor: int, cursor: Cursor, limit: int) -> bytes:
    if cursor.is_compressed:
        return _unpacked(descriptor, cursor.offset, limit)
    return os.pread(descriptor, limit, cursor.offset)


def _unpacked(descriptor: int, skip: int, limit: int) -> bytes:
    """`limit` bytes behind the first `skip` unpacked ones; damage ends the text where it begins."""
    out, position, done = bytearray(), 0, 0
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    while len(out) < limit:
        packed = os.pread(descriptor, _CHUNK, position)
        if not packed:
            break
        position += len(packed)
        while packed:
            try:
                text = unpacker.decompress(packed, _CHUNK)
            except zlib.error:
                return bytes(out[:limit])
            done += len(text)
            out += text[max(0, skip - (done - len(text))) :]
            if len(out) >= limit:
                break
            packed = unpacker.unconsumed_tail
            if unpacker.eof:
                packed, unpacker = unpacker.unused_data, zlib.decompressobj(zlib.MAX_WBITS | 16)
            elif not packed and not text:
                break
    return bytes(out[:limit])


def _lines(data: bytes, *, is_complete: bool) -> tuple[list[bytes], int]:
    """Whole lines and rewrites out of a piece of a file, and how many bytes they took.

    A carriage return ends a rewrite: a progress bar that never ends its line still shows progress. A pair of
    carriage return and line feed may be cut between two reads, so a return at the very end waits.
    """
    pieces: list[bytes] = []
    used = 0
    while used < len(data):
        end, width = _line_end(data, used)
        if end < 0 and len(data) - used >= MAX_LINE_BYTES or end - used > MAX_LINE_BYTES:
            end, width = used + MAX_LINE_BYTES, 0
            pieces.append(data[used:end] + SPLIT_MARK.encode())
        elif end < 0:
            if is_complete:
                pieces.append(data[used:])
                used = len(data)
            break
        else:
            _keep(pieces, data[used:end], is_rewrite=data[end : end + 1] == b"\r" and width == 1)
        used = end + width
    return [p for p in pieces if p is not _REWRITTEN], used


_REWRITTEN = b"\r"


def _line_end(data: bytes, start: int) -> tuple[int, int]:
    feed, back = data.find(b"\n", start), data.find(b"\r", start)
    if back < 0 or (0 <= feed < back):
        return feed, 1
    if back + 1 == len(data):
        return -1, 0
    return back, 2 if data[back + 1 : back + 2] == b"\n" else 1


def _keep(pieces: list[bytes], text: bytes, *, is_rewrite: bool) -> None:
    """Of rewrites that look alike only the last stays: a bar of 100,000 steps is no log of 100,000 lines."""
    if is_rewrite and not text.strip():
        return
    if pieces and is_rewrite and _shape(pieces[-1]) == _shape(text):
        pieces[-1] = text
        return
    pieces.append(text)


def _shape(text: bytes) -> bytes:
    return _REWRITE_SHAPE.sub(b"", text[:400])


def _line(log: Followed, number: int, text: bytes) -> LogLine:
    return LogLine(
        attempt=log.attempt, file=log.path, number=number, stream=log.stream,
        text=text.decode("utf-8", "replace"), node=log.node, rank=log.rank,
    )  # fmt: skip
