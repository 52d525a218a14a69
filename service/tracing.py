# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the audit log to a trace collector: a recovery's parts are told once they are durable, also over a restart."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from relight.events import AnomalyDetected, AttributionMade, IncidentOpened
from relight.ports import AuditFilter, AuditLog, StoredEvent
from relight.types import AttemptId, IncidentId
from service.tracing_spans import Span, spans

NAME = "traces"
BATCH = 500
MAX_SENT = 256
MAX_STORIES = 2_000
MAX_EVENTS = 1_000
_WAITS = tuple(timedelta(seconds=one) for one in (1, 2, 5, 15, 60))


class Receipt(StrEnum):
    """What a collector made of a batch: refused ones are given up, unreached ones are sent again."""

    TAKEN = "exported"
    REFUSED = "dropped"
    UNREACHED = "retried"


class Keeping(Protocol):
    """Where progress lasts over a restart."""

    def position(self, channel: str) -> int | None: ...
    def reached(self, channel: str, position: int) -> None: ...


@dataclass(slots=True, kw_only=True)
class RecoveryTraces:
    """Sends what is over of each recovery; `look` is called again and again by one thread of its own.

    A collector that is down costs nobody else's time and no span: reading stops while `max_pending` wait, and
    goes on from there. A first start begins with what is recorded from then on.
    """

    audit: AuditLog
    keeping: Keeping
    send: Callable[[Sequence[Span]], Receipt]
    told: Callable[[str, int], object]
    max_pending: int = 2_048
    _pending: deque[Span] = field(default_factory=deque, init=False)
    _stories: OrderedDict[IncidentId, list[StoredEvent]] = field(default_factory=OrderedDict, init=False)
    _incident_of: dict[AttemptId, IncidentId] = field(default_factory=dict, init=False)
    _failures: int = field(default=0, init=False)
    _not_before: datetime | None = field(default=None, init=False)
    _read: int = field(init=False)
    _saved: int = field(init=False)

    def __post_init__(self) -> None:
        known = self.keeping.position(NAME)
        self._read = self._saved = self.audit.head().position if known is None else known
        if known is None:
            self.keeping.reached(NAME, self._read)

    def look(self, now: datetime) -> int:
        """Take in what was recorded, send what is due; how many spans the collector took."""
        self._take_in()
        taken = 0
        while self._pending and (self._not_before is None or now >= self._not_before):
            batch = [self._pending[number] for number in range(min(MAX_SENT, len(self._pending)))]
            receipt = self.send(batch)
            self.told(receipt.value, len(batch))
            if receipt is Receipt.UNREACHED:
                self._not_before = now + _WAITS[min(self._failures, len(_WAITS) - 1)]
                self._failures += 1
                break
            self._failures, self._not_before = 0, None
            for _ in batch:
                self._pending.popleft()
            taken += len(batch) if receipt is Receipt.TAKEN else 0
            self._take_in()
        self._save()
        return taken

    def _take_in(self) -> None:
        while len(self._pending) < self.max_pending and (batch := self.audit.read(after=self._read, limit=BATCH)):
            for stored in batch:
                self._pending.extend(self._ended_by(stored))
            self._read = batch[-1].position

    def _ended_by(self, stored: StoredEvent) -> list[Span]:
        incident = self._incident(stored)
        if incident is None:
            return []
        story = self._stories.pop(incident, None)
        if story is None or isinstance(stored.event, IncidentOpened):
            story = self._recalled(incident, stored)
        is_worth_keeping = len(story) < MAX_EVENTS or not isinstance(stored.event, AnomalyDetected)
        if is_worth_keeping and (not story or story[-1].position < stored.position):
            story.append(stored)
        self._stories[incident] = story
        self._forget()
        return [one for one in spans(incident, story) if one.position == stored.position]

    def _incident(self, stored: StoredEvent) -> IncidentId | None:
        event = stored.event
        incident: IncidentId | None = getattr(event, "incident", None)
        if incident is None and isinstance(event, AttributionMade):
            return self._incident_of.get(event.attempt)
        return incident

    def _recalled(self, incident: IncidentId, stored: StoredEvent) -> list[StoredEvent]:
        """What was recorded of it up to now, with the attributions of its attempt."""
        until = stored.position
        own = [one for one in self.audit.read(0, MAX_EVENTS, AuditFilter(incident=incident)) if one.position <= until]
        opened = next((one.event for one in own if isinstance(one.event, IncidentOpened)), None)
        if opened is None:
            return own
        self._incident_of[opened.attempt] = incident
        made = self.audit.read(0, MAX_EVENTS, AuditFilter(attempt=opened.attempt, kinds=(AttributionMade.kind,)))
        by_position = {one.position: one for one in (*own, *made) if one.position <= until}
        return [by_position[position] for position in sorted(by_position)]

    def _forget(self) -> None:
        """The stories not heard of for longest; one that goes on after all is read again."""
        while len(self._stories) > MAX_STORIES:
            incident, story = self._stories.popitem(last=False)
            for one in story:
                if isinstance(one.event, IncidentOpened) and self._incident_of.get(one.event.attempt) == incident:
                    del self._incident_of[one.event.attempt]

    def _save(self) -> None:
        position = self._pending[0].position - 1 if self._pending else self._read
        if position != self._saved:
            self.keeping.reached(NAME, position)
            self._saved = position
