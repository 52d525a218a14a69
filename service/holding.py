# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Lines that came before their job was registered: held within bounds, durably, until it is or their time is up."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import structlog

from relight.events import AttemptObserved
from relight.types import AttemptId, ClusterId, LogLine, NodeName, Rank, Stream
from service.config import Ingest
from service.drafts import new_line

log = structlog.get_logger(__name__)
HANDED_OVER, EXPIRED, REFUSED, HELD = "handed_over", "expired", "refused", "held"
ANY_CLUSTER = ClusterId("")
MAX_ADDRESSEES = 10_000
_LINE_OVERHEAD = 64


@dataclass(frozen=True, slots=True)
class Addressee:
    """Whom a line is for, as its sender named him: an attempt, or a job of a cluster and perhaps one of its runs."""

    cluster: ClusterId
    attempt: str | None = None
    job: str | None = None
    restart: int | None = None

    @property
    def place(self) -> AttemptId:
        """Stands for the attempt in a line as long as that is not known; no attempt's own name looks like it."""
        return AttemptId("\0".join(("unclaimed", self.cluster, *(str(part) for part in self._parts))))

    @property
    def _parts(self) -> tuple[object, ...]:
        return (self.attempt,) if self.attempt is not None else (self.job, self.restart)

    def __str__(self) -> str:
        return f"attempt {self.attempt!r}" if self.attempt is not None else f"job {self.job!r}"

    def is_meant_by(self, seen: AttemptObserved) -> bool:
        if self.cluster not in (ANY_CLUSTER, seen.cluster):
            return False
        if self.attempt is not None:
            return seen.attempt == self.attempt
        run = seen.scheduler.get("restart_count", seen.attempt_index)
        return str(seen.scheduler.get("job_id")) == self.job and self.restart in (None, run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Lines of one addressee as they came together."""

    to: Addressee
    at: datetime
    digest: bytes
    source: str
    actor: str
    lines: Sequence[LogLine]

    @property
    def size(self) -> int:
        """What it counts for; bytes of text, and something for every line's own sake."""
        return sum(len(line.text) + len(line.file) + _LINE_OVERHEAD for line in self.lines)


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a stored batch lies."""

    segment: int
    offset: int
    length: int


class HoldStore(Protocol):
    """An append-only store in segments: what `append` returned for is still there after a crash."""

    def append(self, records: Sequence[bytes]) -> list[Spot]:
        """Store all, durably; where each lies. Errors: AuditUnavailable, and then none counts as stored."""
        ...

    def read(self, spot: Spot) -> bytes: ...
    def begin(self) -> int:
        """Whatever follows goes to a new segment, whose number this is."""
        ...

    def drop(self, segment: int) -> None: ...
    def stored(self) -> Iterator[tuple[Spot, bytes]]:
        """Everything that was stored and not dropped, in order; a torn last record is left out."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """How long and how much is held: bytes of one addressee, and of all."""

    age: timedelta
    bytes_each: int
    bytes_total: int


def bounds_of(settings: Ingest) -> Bounds:
    age = timedelta(seconds=settings.hold_s)
    return Bounds(age=age, bytes_each=settings.hold_bytes_per_job, bytes_total=settings.hold_bytes)


@dataclass(frozen=True, slots=True)
class _Kept:
    spot: Spot
    at: datetime
    size: int
    lines: int


@dataclass(slots=True)
class _Waiting:
    to: Addressee
    batches: list[_Kept] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(one.size for one in self.batches)

    @property
    def lines(self) -> int:
        return sum(one.lines for one in self.batches)


class Holding:
    """Batches for attempts that are not known yet. Not thread-safe: its owner holds the lock of the loop.

    What is full refuses what is new and keeps what it took: a sender who was told "held" may rely on it for
    `age`. Segments turn over every half of that, so nothing lies here for longer than one and a half.
    Memory is a record for each batch; the lines themselves lie in the store.
    Errors: AuditUnavailable from `hold` if the store fails, and then nothing of it is held.
    """

    def __init__(self, store: HoldStore, bounds: Bounds) -> None:
        self._store, self.bounds = store, bounds
        self._waiting: dict[AttemptId, _Waiting] = {}
        self._begun: dict[int, datetime] = {}
        self._total = 0
        self.numbers: dict[AttemptId, dict[str, int]] = {}
        self.told: Callable[[str, int], object] = lambda _outcome, _count: None
        self._recover()

    def __len__(self) -> int:
        """How many lines are held."""
        return sum(one.lines for one in self._waiting.values())

    @property
    def bytes(self) -> int:
        return self._total

    @property
    def addressees(self) -> tuple[Addressee, ...]:
        return tuple(one.to for one in self._waiting.values())

    def refusal(self, to: Addressee, size: int, more: int = 0) -> str:
        """Why so many bytes can't be held for somebody, `more` being on their way for others; empty if they can."""
        known = self._waiting.get(to.place)
        if known is None and len(self._waiting) >= MAX_ADDRESSEES:
            return f"lines of {len(self._waiting)} unknown jobs are held already"
        if (known.size if known is not None else 0) + size > self.bounds.bytes_each:
            return f"at most {self.bounds.bytes_each} bytes are held for one unknown job"
        if self._total + size + more > self.bounds.bytes_total:
            return f"at most {self.bounds.bytes_total} bytes are held for unknown jobs"
        return ""

    def hold(self, batches: Sequence[Batch]) -> None:
        """Store batches that `refusal` had nothing against."""
        if not batches:
            return
        self._turn_over(batches[0].at)
        for spot, batch in zip(self._store.append([_record(one) for one in batches]), batches, strict=True):
            self._index(spot, batch)
            self.told(HELD, len(batch.lines))

    def batches(self, to: Addressee) -> Iterator[Batch]:
        """What is held for somebody, in the order in which it came."""
        waiting = self._waiting.get(to.place)
        for kept in tuple(waiting.batches) if waiting is not None else ():
            found = _batch(json.loads(self._store.read(kept.spot)))
            if isinstance(found, Batch):
                yield found

    def handed_over(self, to: Addressee) -> None:
        """His attempt has taken all of it, which is written down for the next start.

        Errors: AuditUnavailable; then lines may be handed over again, which changes nothing.
        """
        self._drop(to.place, HANDED_OVER)
        if self._waiting:
            self._store.append([json.dumps({"gone": to.place}).encode()])
        self._clear()

    def expire(self, now: datetime) -> int:
        """Let go of what nobody claimed in time; how many lines that were."""
        dropped = 0
        for place, one in list(self._waiting.items()):
            if now - one.batches[-1].at > self.bounds.age:
                dropped += self._drop(place, EXPIRED)
                continue
            old = [kept for kept in one.batches[:-1] if now - self._begun[kept.spot.segment] > 1.5 * self.bounds.age]
            if old:
                one.batches = one.batches[len(old) :]
                self._total -= sum(kept.size for kept in old)
                dropped += (lines := sum(kept.lines for kept in old))
                self.told(EXPIRED, lines)
        self._clear()
        return dropped

    # -------------------------------------------------------------- inside

    def _recover(self) -> None:
        last = datetime.min.replace(tzinfo=UTC)
        for spot, record in self._store.stored():
            try:
                found = _batch(json.loads(record))
            except (ValueError, KeyError, TypeError) as why:
                log.warning("held_lines_unreadable", segment=spot.segment, offset=spot.offset, why=repr(why))
                continue
            last = found.at if isinstance(found, Batch) else last
            self._begun.setdefault(spot.segment, last)
            self._index(spot, found)
        self._clear()

    def _index(self, spot: Spot, found: Batch | AttemptId) -> None:
        if not isinstance(found, Batch):
            self._drop(found, HANDED_OVER)
            return
        place, size = found.to.place, found.size
        self._waiting.setdefault(place, _Waiting(found.to)).batches.append(
            _Kept(spot, found.at, size, len(found.lines))
        )
        numbers = self.numbers.setdefault(place, {})
        for line in found.lines:
            numbers[line.file] = max(line.number, numbers.get(line.file, 0))
        self._begun.setdefault(spot.segment, found.at)
        self._total += size

    def _drop(self, place: AttemptId, outcome: str) -> int:
        gone = self._waiting.pop(place, None)
        self.numbers.pop(place, None)
        if gone is None:
            return 0
        self._total -= gone.size
        self.told(outcome, gone.lines)
        return gone.lines

    def _turn_over(self, at: datetime) -> None:
        if not self._begun or at - self._begun[max(self._begun)] > self.bounds.age / 2:
            self._begun[self._store.begin()] = at

    def _clear(self) -> None:
        """The oldest segments go once they hold nothing; in order, for a later one may say who took his lines."""
        used = {kept.spot.segment for one in self._waiting.values() for kept in one.batches}
        oldest = min(used) if used else max(self._begun, default=-1) + 1
        for segment in sorted(self._begun):
            if segment < oldest:
                self._store.drop(segment)
                del self._begun[segment]


def _record(batch: Batch) -> bytes:
    to = batch.to
    lines = [
        [one.file, one.number, one.stream, one.text, one.at.isoformat() if one.at is not None else None, one.node,
         one.rank] for one in batch.lines
    ]  # fmt: skip
    said = {
        "to": [to.cluster, to.attempt, to.job, to.restart], "at": batch.at.isoformat(), "digest": batch.digest.hex(),
        "source": batch.source, "actor": batch.actor, "lines": lines,
    }  # fmt: skip
    return json.dumps(said, separators=(",", ":")).encode()


def _batch(said: Mapping[str, Any]) -> Batch | AttemptId:
    """The batch of a record, or who has taken his."""
    if "gone" in said:
        return AttemptId(said["gone"])
    to = Addressee(*said["to"])
    place = to.place
    return Batch(
        to=to, at=datetime.fromisoformat(said["at"]), digest=bytes.fromhex(said["digest"]), source=said["source"],
        actor=said["actor"], lines=[
            new_line(attempt=place, file=file, number=number, stream=Stream(stream), text=text,
                     at=datetime.fromisoformat(at) if at is not None else None,
                     node=NodeName(node) if node is not None else None, rank=Rank(rank) if rank is not None else None)
            for file, number, stream, text, at, node, rank in said["lines"]
        ],
    )  # fmt: skip
