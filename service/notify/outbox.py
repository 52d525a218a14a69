# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a channel still has to send: in order, tried again with patience, given up after a day."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from service.notify.notice import Notice

FIRST_WAIT = timedelta(seconds=2)
LONGEST_WAIT = timedelta(minutes=15)
GIVEN_UP_AFTER = timedelta(hours=24)
MAX_WAITING = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What came of one attempt. `is_final`: the receiver said that trying again would not help."""

    is_delivered: bool
    is_final: bool = False
    why: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    notice: Notice
    since: datetime
    due: datetime
    tries: int = 0
    why: str = ""


@dataclass(slots=True)
class Outbox:
    """The messages of one channel that are not delivered yet; holds no more than ten thousand.

    `jitter` spreads retries, from 0 to 1. `dead` is called with what was given up.
    """

    dead: Callable[[Waiting], object]
    jitter: Callable[[], float] = lambda: 0.5
    _waiting: OrderedDict[int, Waiting] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < MAX_WAITING

    def add(self, notice: Notice, now: datetime) -> None:
        """A message from long ago is not news: it counts from its own time."""
        since = min(notice.at, now)
        self._waiting.setdefault(notice.position, Waiting(notice=notice, since=since, due=now))

    def due(self, now: datetime) -> Iterator[Waiting]:
        """What is to be tried now. A matter's later message waits for its earlier one."""
        held = set[str]()
        for one in tuple(self._waiting.values()):
            if one.notice.subject in held:
                continue
            if one.due <= now:
                yield one
                if one.notice.position not in self._waiting:
                    continue
            held.add(one.notice.subject)

    def settled(self, one: Waiting, reply: Reply, now: datetime) -> bool:
        """Take in what came of an attempt; True if the message is delivered."""
        place = one.notice.position
        if reply.is_delivered:
            self._waiting.pop(place, None)
            return True
        tried = replace(one, tries=one.tries + 1, why=reply.why)
        if reply.is_final or now - one.since >= GIVEN_UP_AFTER:
            self._waiting.pop(place, None)
            self.dead(tried)
            return False
        wait = min(FIRST_WAIT * 2 ** min(one.tries, 16), LONGEST_WAIT) * (0.5 + self.jitter())
        if reply.retry_after_s is not None:
            wait = max(wait, timedelta(seconds=min(reply.retry_after_s, LONGEST_WAIT.total_seconds())))
        self._waiting[place] = replace(tried, due=now + wait)
        return False

    @property
    def low_water(self) -> int | None:
        """The position before which everything is settled, None if nothing waits."""
        return min(self._waiting) - 1 if self._waiting else None
