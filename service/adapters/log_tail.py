# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Follows the logs of running jobs by polling, and neither loses nor doubles a line over a restart."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from relight.types import AttemptId, LogLine, NodeName, Rank, Stream
from service.adapters.log_cursor import Cursor, CursorStore, cursor_of, is_same, with_longer_head
from service.adapters.log_pieces import lines_of, unpacked
from service.adapters.log_roots import LogRoots, PathRefused

BYTES_PER_TICK = 1 << 20
BYTES_IN_FLIGHT = 16 << 20
PARTIAL_AFTER_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A log that is to be followed, and who writes it."""

    attempt: AttemptId
    path: str
    stream: Stream = Stream.APPLICATION
    node: NodeName | None = None
    rank: Rank | None = None


@dataclass(slots=True)
class _File:
    """One followed file between two ticks."""

    log: Followed
    cursor: Cursor | None = None
    trouble: str = ""
    size: int = -1
    grown_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class _Take:
    """What one look at a file brought: lines, the place behind them, and whether more waits."""

    file: _File
    lines: tuple[LogLine, ...]
    before: Cursor
    after: Cursor
    has_more: bool


class LogTail:
    """Polls files, since no notification tells of writes made on another host.

    A tick reads what is new, stores how far it is about to deliver, hands each file's lines to `deliver`, which
    returns once they are durable, and only then stores them as done. If we die or `deliver` raises in between,
    exactly the same lines come again, with the same file and number, by which a receiver knows them.

    Shapes: at most `bytes_per_tick` of a file in a tick; lines longer than 64,000 bytes come in marked parts.
    Units:  bytes; `LogLine.number` counts the lines delivered of a path, over rotations too.
    Errors: what `deliver` and the store raise; a file that can't be read is noted in `troubles`.
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
        self._files: dict[str, _File] = {}
        self._behind_since: datetime | None = None

    # -------------------------------------------------------------- what is followed

    def follow(self, log: Followed) -> None:
        """Begin or go on with a file, which need not exist yet. Errors: PathRefused if it is not allowed.

        A file that an earlier attempt was followed by belongs to the new one from the next tick on: a job that
        is requeued goes on with the same file.
        """
        self._roots.check(log.path)
        if log.path in self._files:
            self._files[log.path].log = log
        else:
            own = [c for c in self._known.values() if c.path == log.path and not c.is_finished]
            self._files[log.path] = _File(log, own[-1] if own else None)

    def rest(self, attempt: AttemptId) -> frozenset[str]:
        """Read a finished attempt's files no more, but remember the places: the next attempt may go on there."""
        gone = frozenset(path for path, file in self._files.items() if file.log.attempt == attempt)
        self._files = {path: file for path, file in self._files.items() if path not in gone}
        return gone

    def forget(self, paths: Collection[str]) -> None:
        """Forget the places in files that nobody follows."""
        gone = set(paths) - self._files.keys()
        self._known = {key: c for key, c in self._known.items() if c.path not in gone}
        self._store.save(self._known.values())

    def unfollow(self, attempt: AttemptId) -> None:
        """Let go of a finished attempt's files and forget their places."""
        self.forget(self.rest(attempt))

    @property
    def troubles(self) -> dict[str, str]:
        """Files that can't be read now, and why: their silence says nothing."""
        return {path: file.trouble for path, file in self._files.items() if file.trouble}

    def lag_s(self, now: datetime) -> float:
        """For how long more has been waiting in the files than was read."""
        return (now - self._behind_since).total_seconds() if self._behind_since is not None else 0.0

    # -------------------------------------------------------------- one tick

    def tick(self, now: datetime) -> int:
        """Read, deliver, remember; returns how many lines were delivered."""
        delivered, is_behind = 0, False
        for takes in self._groups(now):
            delivered += self._commit(takes)
            is_behind = is_behind or any(take.has_more for take in takes)
        self._behind_since = (self._behind_since or now) if is_behind else None
        return delivered

    def _groups(self, now: datetime) -> Iterator[list[_Take]]:
        """Files together, so that many share one write to disk, but never too much text at once."""
        group: list[_Take] = []
        size = 0
        for file in list(self._files.values()):
            take = self._take(file, now)
            if take is None:
                continue
            group.append(take)
            size += take.after.offset - take.before.offset
            if size >= BYTES_IN_FLIGHT:
                yield group
                group, size = [], 0
        if group:
            yield group

    def _commit(self, takes: Sequence[_Take]) -> int:
        self._store_all(take.before for take in takes)
        for take in takes:
            take.file.cursor = take.before
        for take in takes:
            if take.lines:
                self._deliver(take.file.log.attempt, take.lines)
        self._store_all(take.after for take in takes)
        for take in takes:
            take.file.cursor = None if take.after.is_finished else take.after
        return sum(len(take.lines) for take in takes)

    def _store_all(self, cursors: Iterable[Cursor]) -> None:
        for cursor in cursors:
            if cursor.is_finished:  # only the newest of a path's finished files is needed, for its number
                finished = [k for k, c in self._known.items() if c.path == cursor.path and c.is_finished]
                for key in finished:
                    del self._known[key]
            self._known[cursor.key] = cursor
        self._store.save(self._known.values())

    # -------------------------------------------------------------- one file

    def _take(self, file: _File, now: datetime) -> _Take | None:
        try:
            descriptor = self._opened(file)
        except FileNotFoundError:
            file.trouble = "not there"
            return None
        except (PathRefused, OSError) as why:
            file.trouble = str(why)
            return None
        try:
            return self._read(file, descriptor, now)
        except OSError as why:  # a stale handle of a network file system: the next tick opens it anew
            file.trouble = str(why)
            return None
        finally:
            os.close(descriptor)

    def _opened(self, file: _File) -> int:
        """The file that our cursor speaks of, even under another name; else what bears the name now."""
        cursor = file.cursor
        descriptor = self._roots.open(file.log.path) if cursor is None else self._current_or_rotated(file, cursor)
        file.trouble = ""
        return descriptor

    def _current_or_rotated(self, file: _File, cursor: Cursor) -> int:
        try:
            descriptor = self._roots.open(cursor.path)
        except FileNotFoundError:
            rotated = self._rotated(file, cursor)
            if rotated is None:
                raise
            return rotated
        if is_same(cursor, descriptor):
            return descriptor
        rotated = self._rotated(file, cursor)
        if rotated is not None:
            os.close(descriptor)
            return rotated
        file.cursor = None  # truncated, or replaced and its last lines gone: begin anew
        return descriptor

    def _rotated(self, file: _File, cursor: Cursor) -> int | None:
        """Our file under its new name, perhaps packed meanwhile, for its last lines."""
        for path in self._roots.siblings(cursor.path):
            try:
                descriptor = self._roots.open(path)
            except (PathRefused, OSError):
                continue
            if is_same(cursor, descriptor):
                return descriptor
            packed = cursor.packed_as(descriptor, unpacked) if path.endswith(".gz") else None
            if packed is not None:
                self._known.pop(cursor.key, None)
                file.cursor = packed
                return descriptor
            os.close(descriptor)
        return None

    def _read(self, file: _File, descriptor: int, now: datetime) -> _Take | None:
        size = os.fstat(descriptor).st_size
        cursor = file.cursor or self._begun(file.log.path, descriptor)
        if cursor.is_compressed and size == file.size and cursor.is_drained:
            return None
        if size != file.size or file.grown_at is None:
            file.size, file.grown_at = size, now
        is_current = self._is_named(file.log.path, cursor)
        limit = cursor.pending or self._bytes_per_tick
        data = _contents(descriptor, cursor, limit)
        is_at_end = len(data) < limit
        is_quiet = (now - file.grown_at).total_seconds() >= PARTIAL_AFTER_S
        is_complete = cursor.is_pending_complete if cursor.pending else is_at_end and (is_quiet or not is_current)
        texts, used = lines_of(data, is_complete=is_complete)
        is_finished = is_at_end and not is_current and not cursor.pending
        if used == 0 and not is_finished and cursor.key in self._known:
            return None
        fresh = with_longer_head(cursor, descriptor)
        after = fresh.done(used, len(texts), is_finished=is_finished, is_drained=is_at_end)
        lines = tuple(_line(file.log, cursor.number + i, text) for i, text in enumerate(texts, 1))
        before = fresh.about_to_deliver(used, is_complete=is_complete)
        return _Take(file, lines, before, after, has_more=not is_at_end or is_finished)

    def _is_named(self, path: str, cursor: Cursor) -> bool:
        """False once another file, or none, bears the name."""
        try:
            descriptor = self._roots.open(path)
        except (PathRefused, OSError):
            return False
        try:
            named = os.fstat(descriptor)
        finally:
            os.close(descriptor)
        return (named.st_dev, named.st_ino) == (cursor.device, cursor.inode)

    def _begun(self, path: str, descriptor: int) -> Cursor:
        fresh = cursor_of(path, descriptor)
        known = self._known.get(fresh.key)
        if known is not None and known.path == path and is_same(known, descriptor):
            return known
        # Numbers go on over a rotation: a receiver tells lines by path and number.
        return fresh.numbered_from(max((c.number for c in self._known.values() if c.path == path), default=0))


def _contents(descriptor: int, cursor: Cursor, limit: int) -> bytes:
    if cursor.is_compressed:
        return unpacked(descriptor, cursor.offset, limit)
    return os.pread(descriptor, limit, cursor.offset)


def _line(log: Followed, number: int, text: bytes) -> LogLine:
    return LogLine(
        attempt=log.attempt, file=log.path, number=number, stream=log.stream,
        text=text.decode("utf-8", "replace"), node=log.node, rank=log.rank,
    )  # fmt: skip
