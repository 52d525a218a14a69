# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the audit log to a channel: what was recorded is told at least once, also over a restart."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice
from typing import Protocol

from relight.ports import AuditLog
from service.notify.channels import Channel, Post
from service.notify.notice import Notice, Urgency, notice_of
from service.notify.outbox import Outbox, Reply, Waiting

BATCH = 500
MAX_POSTS = 50
_ORDER = (Urgency.INFO, Urgency.WARNING, Urgency.ERROR, Urgency.CRITICAL)


class Keeping(Protocol):
    """Where a channel's progress and what it gave up last over a restart."""

    def position(self, channel: str) -> int | None: ...
    def reached(self, channel: str, position: int) -> None: ...
    def bury(self, channel: str, one: Waiting) -> None: ...


@dataclass(slots=True, kw_only=True)
class Dispatcher:
    """Sends one channel's messages; `look` is called again and again by one thread.

    A receiver that is down costs its own messages' time and nothing else's. A new channel begins with what
    is recorded from now on. `muted` is asked about what is part of the state already: up to `folded`.
    """

    channel: Channel
    audit: AuditLog
    keeping: Keeping
    send: Callable[[Post], Reply]
    told: Callable[[str, str], object]
    least: Urgency = Urgency.INFO
    jitter: Callable[[], float] = lambda: 0.5
    muted: Callable[[Notice], bool] = lambda _: False
    folded: Callable[[], int] = lambda: sys.maxsize
    outbox: Outbox = field(init=False)
    _read: int = field(init=False)
    _saved: int = field(init=False)

    def __post_init__(self) -> None:
        self.outbox = Outbox(self._buried, self.jitter)
        known = self.keeping.position(self.channel.name)
        self._read = self.audit.head().position if known is None else known
        self._saved = self._read
        if known is None:
            self.keeping.reached(self.channel.name, self._read)

    def look(self, now: datetime) -> int:
        """Take in what was recorded, send what is due; how many messages were delivered."""
        self._take_in(now)
        delivered = sum(self._deliver(one, now) for one in islice(self.outbox.due(now), MAX_POSTS))
        self._save()
        return delivered

    def _take_in(self, now: datetime) -> None:
        while self.outbox.has_room:
            last = self.folded()
            batch = [one for one in self.audit.read(after=self._read, limit=BATCH) if one.position <= last]
            if not batch:
                return
            for stored in batch:
                notice = notice_of(stored.position, stored.event)
                if notice is None or not self._is_wanted(notice):
                    continue
                if self.muted(notice):
                    self.told(self.channel.name, "silenced")
                else:
                    self.outbox.add(notice, now)
            self._read = batch[-1].position

    def _deliver(self, one: Waiting, now: datetime) -> bool:
        post = self.channel.post(one.notice, now)
        reply = Reply(is_delivered=True) if post is None else self.send(post)
        is_delivered = self.outbox.settled(one, reply, now)
        if post is not None:
            self.told(self.channel.name, "delivered" if is_delivered else "failed")
        return is_delivered

    def _is_wanted(self, notice: Notice) -> bool:
        return notice.is_over or _ORDER.index(notice.urgency) >= _ORDER.index(self.least)

    def _buried(self, one: Waiting) -> None:
        self.keeping.bury(self.channel.name, one)
        self.told(self.channel.name, "given_up")

    def _save(self) -> None:
        low = self.outbox.low_water
        position = self._read if low is None else low
        if position != self._saved:
            self.keeping.reached(self.channel.name, position)
            self._saved = position
