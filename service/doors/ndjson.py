# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Log lines as one JSON object a line, read without a model per line; whose they are is settled once for all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson

from relight.types import AttemptId, LogLine, NodeName, Rank, Stream
from service.drafts import new_line
from service.holding import Addressee

MAX_TOLD_FAULTS = 100
JOB_NAMES = ("job_id", "SLURM_JOB_ID", "slurm.job.id")
RESTART_NAMES = ("restart_count", "SLURM_RESTART_COUNT", "slurm.job.restart_count")
_STREAMS = {one.value: one for one in Stream}

Resolve = Callable[[Addressee], AttemptId | None]
Whose = str | tuple[str, int | None]


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that can't be used, counted from 1 within the body."""

    line: int
    detail: str


@dataclass(frozen=True, slots=True)
class _Origin:
    """What lines of one writer have in common; `unclaimed` is whom they wait for if no attempt is known."""

    attempt: AttemptId
    file: str
    stream: Stream
    node: NodeName | None
    rank: Rank | None
    unclaimed: Addressee | None


@dataclass(slots=True)
class Reading:
    """The lines of one body: those of known attempts, those that wait for theirs, and what can't be used.

    `resolve` finds the attempt that an addressee means; it is asked once for each.
    """

    address: Callable[[str | None, str | None, int | None], Addressee]
    resolve: Resolve
    max_line_chars: int
    lines: list[LogLine] = field(default_factory=list)
    unclaimed: dict[Addressee, list[LogLine]] = field(default_factory=dict)
    places: dict[Addressee, int] = field(default_factory=dict)
    faults: list[Fault] = field(default_factory=list)
    rejected: int = 0
    broken: int = 0
    newest: datetime | None = None
    _origins: dict[tuple[Any, ...], _Origin] = field(default_factory=dict)
    _moments: dict[str, datetime] = field(default_factory=dict)

    def take(self, body: bytes) -> None:
        for number, said in self._decoded(body):
            try:
                self._take(number, said)
            except ValueError as why:
                self.reject(number, str(why))

    def reject(self, number: int, detail: str, count: int = 1) -> None:
        self.rejected += count
        if len(self.faults) < MAX_TOLD_FAULTS:
            self.faults.append(Fault(number, detail))

    def _decoded(self, body: bytes) -> Iterator[tuple[int, Any]]:
        """Each line's object with its number: all at once if all are sound, which takes half the time."""
        lines = body.removesuffix(b"\n").split(b"\n")
        try:
            objects = orjson.loads(b"[" + b",".join(lines) + b"]")
        except orjson.JSONDecodeError:
            objects = None
        if objects is not None and len(objects) == len(lines):
            yield from enumerate(objects, 1)
            return
        for number, raw in enumerate(lines, 1):
            if not raw.strip():
                continue
            try:
                yield number, orjson.loads(raw)
            except orjson.JSONDecodeError as why:
                self.broken += 1
                self.reject(number, f"not JSON: {why}")

    def _take(self, place: int, said: Any) -> None:
        if not isinstance(said, dict):
            raise ValueError(f"need an object, got {type(said).__name__}")
        get = said.get
        text, at = get("text"), get("at")
        if text.__class__ is not str:
            raise ValueError(f"text: need text, got {type(text).__name__}")
        if len(text) > self.max_line_chars:
            raise ValueError(f"text has {len(text)} characters, at most {self.max_line_chars}")
        if at is not None:
            at = self._moment(at)
            if self.newest is None or at > self.newest:
                self.newest = at
        number = get("number", 0)
        if number.__class__ is not int or not 0 <= number < 2**53:
            number = _whole(said, "number") or 0
        origin = self._origin(said)
        line = new_line(
            attempt=origin.attempt, file=origin.file, number=number, stream=origin.stream, text=text, at=at,
            node=origin.node, rank=origin.rank,
        )  # fmt: skip
        if origin.unclaimed is None:
            self.lines.append(line)
        else:
            self.unclaimed.setdefault(origin.unclaimed, []).append(line)
            self.places.setdefault(origin.unclaimed, place)

    # -------------------------------------------------------------- whose a line is

    def _origin(self, said: dict[str, Any]) -> _Origin:
        get = said.get
        whose, rank = get("attempt_id"), get("rank")
        if whose.__class__ is not str:
            whose = _job(said)
        if rank is not None and rank.__class__ is not int:
            rank = _whole(said, "rank")
        file, stream, node = get("file", "stdout"), get("stream", "application"), get("node") or None
        key = (whose, file, stream, node, rank)
        try:
            known = self._origins.get(key)
        except TypeError as why:
            raise ValueError(f"file, stream and node: need text ({why})") from why
        if known is None:
            known = self._origins[key] = self._made(whose, file, stream, node, _whole({"rank": rank}, "rank"))
        return known

    def _made(self, whose: Whose, file: Any, stream: Any, node: Any, rank: int | None) -> _Origin:
        if stream not in _STREAMS:
            raise ValueError(f"no stream {stream!r}, choose from {', '.join(_STREAMS)}")
        name = _text("file", file)[:1_000]
        where = NodeName(_text("node", node)[:253]) if node is not None else None
        to = self.address(whose, None, None) if isinstance(whose, str) else self.address(None, *whose)
        attempt = self.resolve(to)
        return _Origin(
            attempt if attempt is not None else to.place, name, _STREAMS[stream], where,
            Rank(rank) if rank is not None else None, None if attempt is not None else to,
        )  # fmt: skip

    def _moment(self, value: Any) -> datetime:
        """Lines of one moment are many, and reading a time takes longer than finding it again."""
        if not isinstance(value, str):
            raise ValueError(f"at: need RFC 3339 with a zone, got {value!r}")
        known = self._moments.get(value)
        if known is None:
            known = datetime.fromisoformat(value)
            if known.tzinfo is None:
                raise ValueError(f"at: need RFC 3339 with a zone, got {value!r}")
            known = self._moments[value] = known.astimezone(UTC)
        return known


def _job(said: dict[str, Any]) -> tuple[str, int | None]:
    """The job that a line names, and which of its runs, if it says so."""
    job = next((said[key] for key in JOB_NAMES if key in said), None)
    if not isinstance(job, str | int):
        raise ValueError("need attempt_id or job_id")
    return str(job), next((_whole(said, key) for key in RESTART_NAMES if key in said), None)


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key}: need text, got {type(value).__name__}")
    return value


def _whole(said: dict[str, Any], key: str) -> int | None:
    value = said.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53):
        return value
    raise ValueError(f"{key}: need a whole number from 0, got {value!r}")
