# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The only way that state changes: record, then fold, then let the waiting know."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime

from relight.events import Event
from relight.ports import AuditLog, AuditUnavailable, Clock
from service.projection import Projection

_REPLAY_BATCH = 5_000


class Bell:
    """Wakes coroutines from any thread; used by long polls, which must not occupy a thread each."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()

    @contextmanager
    def listening(self) -> Iterator[asyncio.Event]:
        """An event that is set by any `ring` from now on: listen first, look second, then wait."""
        listener = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._listeners.add(listener)
        try:
            yield listener[1]
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def ring(self) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for loop, event in listeners:
            with suppress(RuntimeError):  # the loop of a caller that has gone
                loop.call_soon_threadsafe(event.set)


class Journal:
    """The audit log and the state folded from it, changed by one thread at a time.

    Who decides holds `lock`; who only reads holds `view`, which is never held while the disk is waited for.
    Both may be taken together in the order lock, view.

    Errors: AuditUnavailable from `record`; then nothing was folded and nothing may be said.
    """

    def __init__(self, audit: AuditLog, clock: Clock) -> None:
        self.audit = audit
        self.clock = clock
        self.lock = threading.RLock()
        self.view = threading.RLock()
        self.state = Projection()
        self.bell = Bell()
        self.replayed = 0
        self.refused_at: datetime | None = None
        self.listeners: list[Callable[[Event], None]] = []
        self.timers: list[Callable[[float], None]] = []

    def now(self) -> datetime:
        return self.clock.now()

    def replay(self) -> int:
        """Fold everything recorded that was not folded yet; how many events that were."""
        folded = 0
        with self.lock:
            while batch := self.audit.read(after=self.state.position, limit=_REPLAY_BATCH):
                with self.view:
                    for stored in batch:
                        self.state.apply(stored.position, stored.event)
                folded += len(batch)
            self.replayed = self.state.position
        return folded

    def record(self, *events: Event) -> tuple[int, ...]:
        """Make the events durable, all or none, and only then part of the state."""
        if not events:
            return ()
        with self.lock:
            positions = self._durable(events)
            with self.view:
                for position, event in zip(positions, events, strict=True):
                    self.state.apply(position, event)
        self.bell.ring()
        for listener in self.listeners:
            for event in events:
                listener(event)
        return positions

    def _durable(self, events: tuple[Event, ...]) -> tuple[int, ...]:
        begun = time.perf_counter()
        try:
            positions = self.audit.append(events)
        except AuditUnavailable:
            self.refused_at = self.clock.now()
            raise
        self.refused_at = None
        for timer in self.timers:
            timer(time.perf_counter() - begun)
        return positions
