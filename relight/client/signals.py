# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a rank has to say, in the few words that cost it nothing, and as the API's JSON."""

from __future__ import annotations

import json
import math
import os
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from relight.client.settings import Settings


class Said(NamedTuple):
    """One signal as the training loop leaves it: a payload's name, its fields, and when (Unix seconds).

    The fields stay a plain dict here; turning them into JSON is the sender's work.
    """

    kind: str
    at: float
    fields: Mapping[str, Any]


@dataclass(slots=True)
class Counts:
    """What became of the signals: each ends in exactly one of the first three; `errors` are failed sendings."""

    sent: int = 0
    dropped: int = 0
    refused: int = 0
    errors: int = 0


class SignalQueue:
    """A bounded queue between the training loop and the sender; when full it drops the oldest, and counts.

    Frequent signals (timings, heartbeats) and rare ones (progress, checkpoints) are kept apart, so that
    a flood of the first can't push out the second. `deque` makes each step atomic without a lock, so
    the training loop never waits for the sender; only the count of what is dropped has one, for an instant.
    """

    def __init__(self, limit: int, counts: Counts) -> None:
        self._rare: deque[Said] = deque()
        self._frequent: deque[Said] = deque()
        self._limit = limit
        self._counting = threading.Lock()
        self._counts = counts

    def __len__(self) -> int:
        return len(self._rare) + len(self._frequent)

    def put(self, said: Said, *, is_rare: bool = False) -> None:
        lane = self._rare if is_rare else self._frequent
        lane.append(said)
        if len(lane) > self._limit:
            self._drop_oldest(lane)

    def take(self, most: int) -> list[Said]:
        """At most `most` signals, rare ones first."""
        taken: list[Said] = []
        for lane in (self._rare, self._frequent):
            while lane and len(taken) < most:
                taken.append(lane.popleft())
        return taken

    def _drop_oldest(self, lane: deque[Said]) -> None:
        try:
            lane.popleft()
        except IndexError:  # the sender was quicker
            return
        with self._counting:
            self._counts.dropped += 1


class Envelope:
    """Puts identity and a key that is unique over processes and forks around each signal."""

    def __init__(self, settings: Settings) -> None:
        self._about: dict[str, Any] = {
            "source": f"relight.client:rank{settings.rank}",
            "attempt_id": settings.attempt,
            "rank": settings.rank,
        }
        if settings.node is not None:
            self._about["node"] = settings.node
        self._key = f"{settings.rank}-{os.getpid()}-{os.urandom(6).hex()}"
        self._number = 0

    def seal(self, said: Said) -> str:
        """One line of JSON, as POST /v1/signals takes each item."""
        self._number += 1
        item = {
            **self._about,
            "source_event_id": f"{self._key}-{self._number}",
            "event_time": moment(said.at),
            said.kind: _finite(said.fields),
        }
        return json.dumps(item, separators=(",", ":"), allow_nan=False)


def batch_of(items: Iterable[str], cluster: str | None) -> bytes:
    """The body of a request. Items are joined as text: encoding them at once would hold the interpreter."""
    head = f'{{"cluster_id":{json.dumps(cluster)},' if cluster else "{"
    return f'{head}"signals":[{",".join(items)}]}}'.encode()


def moment(at: float) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _finite(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is unknown or no number: JSON has no NaN, and an unknown value is not a zero."""
    return {
        name: value
        for name, value in fields.items()
        if value is not None and not (isinstance(value, float) and not math.isfinite(value))
    }
