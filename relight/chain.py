# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The hash chain over the audit log: how an event becomes a record, and where a chain is broken.

A record's hash is SHA-256(prev_hash ‖ header ‖ payload), all three as ASCII: `header` is the canonical
JSON array of the record's columns, `payload` the canonical JSON of its event. Changing any column of
any record breaks the chain there. A cut tail leaves a sound, shorter chain: only a head that was
remembered elsewhere (the anchor) tells it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from relight.events import Event, from_json, to_json
from relight.jsonform import MalformedJson, canonical_json
from relight.ports import AuditFilter, ChainBreak, Head, StoredEvent, Verification

GENESIS = Head(position=0, hash="0" * 64)
ENTITIES = ("cluster", "workload", "attempt", "incident", "recommendation", "node", "actor")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class Record(NamedTuple):
    """One row of the log, in the order of its columns; a tuple, as millions are read."""

    position: int
    at_us: int
    kind: str
    schema: int
    cluster: str | None
    workload: str | None
    attempt: str | None
    incident: str | None
    recommendation: str | None
    node: str | None
    actor: str | None
    key: str | None
    payload: str
    prev_hash: str
    hash: str

    @property
    def head(self) -> Head:
        return Head(position=self.position, hash=self.hash)

    def digest(self) -> str:
        """The hash that this record's columns, payload and `prev_hash` ought to have."""
        header = canonical_json(self[:12])
        return hashlib.sha256(f"{self.prev_hash}{header}{self.payload}".encode()).hexdigest()

    def stored(self) -> StoredEvent:
        return StoredEvent(position=self.position, event=self.event(), hash=self.hash, key=self.key)

    def event(self) -> Event:
        return from_json(json.loads(self.payload))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A record that has no place in the chain yet; all that can fail has been done."""

    event: Event
    unplaced: Record

    @property
    def key(self) -> str | None:
        return self.unplaced.key

    def seal(self, head: Head) -> Record:
        """The record that follows `head`."""
        placed = self.unplaced._replace(position=head.position + 1, prev_hash=head.hash)
        return placed._replace(hash=placed.digest())


def draft(event: Event, key: str | None = None) -> Draft:
    """Prepare an event for recording; MalformedJson if it has no JSON form or its ids no UTF-8 form."""
    said = to_json(event)
    try:
        payload = canonical_json(said)
    except (TypeError, ValueError) as why:
        raise MalformedJson(f"{event.kind} has no JSON form: {why}") from why
    entities = {name: _column(event, name) for name in ENTITIES}
    unplaced = Record(
        position=0,
        at_us=microseconds(event.at),
        kind=event.kind,
        schema=event.schema,
        key=None if key is None else _writable("key", key),
        payload=payload,
        prev_hash="",
        hash="",
        **entities,
    )
    return Draft(event=event, unplaced=unplaced)


def microseconds(at: datetime) -> int:
    """Microseconds since 1970 in UTC; MalformedJson for a naive datetime."""
    if at.tzinfo is None:
        raise MalformedJson(f"need an aware datetime, got {at.isoformat()} without a zone; add tzinfo=UTC")
    return (at - _EPOCH) // _MICROSECOND


def _column(event: Event, name: str) -> str | None:
    value = getattr(event, name, None)
    return _writable(name, str(value)) if value else None


def _writable(name: str, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as why:
        raise MalformedJson(f"{name} {value!r} is no valid text; ids must be Unicode without surrogates") from why
    return value


class ChainWalk:
    """Follows records in order and stops counting at the first that does not hold."""

    def __init__(self, start: Head = GENESIS, anchor: Head | None = None) -> None:
        self.head = start
        self.events = 0
        self.broken: ChainBreak | None = None
        self._anchor = anchor

    def see(self, records: Iterable[Record]) -> bool:
        """Check the records against the chain so far; False from the first break on."""
        for record in records:
            self.broken = self.broken or self._break_at(record)
            if self.broken:
                return False
            self.head = record.head
            self.events += 1
        return self.broken is None

    def finish(self) -> Verification:
        """The verdict once all records were seen."""
        anchor = self._anchor
        if self.broken is None and anchor is not None and anchor.position > self.head.position:
            self.broken = ChainBreak(
                position=self.head.position + 1,
                expected=f"events up to {anchor.position}",
                found=f"the end, after {self.head.position}",
                reason="the tail is missing: the remembered head lies beyond the last event",
            )
        return Verification(events=self.events, head=self.head, broken=self.broken)

    def _break_at(self, record: Record) -> ChainBreak | None:
        due = self.head.position + 1
        if record.position != due:
            return ChainBreak(
                position=due,
                expected=str(due),
                found=str(record.position),
                reason="positions are not in order",
            )
        checks = [
            (self.head.hash, record.prev_hash, "does not follow the event before it"),
            (record.digest(), record.hash, "the event was changed after it was recorded"),
        ]
        if self._anchor is not None and self._anchor.position == due:
            checks.append((self._anchor.hash, record.hash, "the remembered head has another hash here"))
        for expected, found, reason in checks:
            if expected != found:
                return ChainBreak(position=due, expected=expected, found=found, reason=reason)
        return None


def matches(record: Record, where: AuditFilter) -> bool:
    """True if the record is one that the filter asks for."""
    since = None if where.since is None else microseconds(where.since)
    until = None if where.until is None else microseconds(where.until)
    if (since is not None and record.at_us < since) or (until is not None and record.at_us >= until):
        return False
    if where.kinds and record.kind not in where.kinds:
        return False
    wanted = ((name, getattr(where, name)) for name in ENTITIES)
    return all(value is None or getattr(record, name) == value for name, value in wanted)
