# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which logs are read now: those of the attempts that run, from their first line to some time after their end."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import structlog

from relight.ports import ProbeReading, ProbeSays
from relight.types import AttemptId, LogLine
from service.config import Follow
from service.journal import Journal
from service.line_intake import FOLLOWED
from service.observing import Intake
from service.records import AttemptRecord

log = structlog.get_logger(__name__)
PLACES_KEPT = timedelta(hours=6)
STUCK_AFTER_POLLS = 5
STUCK_AFTER_S = 10.0
_NOT_YET = "not there"


class Tail(Protocol):
    """What reads the files: `service.adapters.log_tail`."""

    @property
    def troubles(self) -> Mapping[str, str]: ...
    def tick(self, now: datetime) -> int: ...
    def lag_s(self, now: datetime) -> float: ...
    def rest(self, attempt: AttemptId) -> frozenset[str]: ...
    def forget(self, paths: Collection[str]) -> None: ...


@dataclass(frozen=True, slots=True)
class Status:
    """How following stood after the last look: read by other threads, so replaced whole."""

    at: datetime | None = None
    lag_s: float = 0.0
    followed: frozenset[AttemptId] = frozenset()
    blind: Mapping[AttemptId, str] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)


class FollowedLogs:
    """Keeps the tail on the files that attempts name as theirs, and its findings in the intake.

    Errors: what the tail and the intake raise; the next look brings exactly the same lines again.
    """

    def __init__(self, journal: Journal, settings: Follow) -> None:
        self._journal = journal
        self._settings = settings
        self._tail: Tail | None = None
        self._follow: Callable[[AttemptId, str], None] = _nobody
        self._paths: dict[AttemptId, tuple[str, ...]] = {}
        self._resting: dict[str, datetime] = {}
        self._finished: set[AttemptId] = set()
        self._refused: dict[str, str] = {}
        self.status = Status()

    def use(self, tail: Tail, follow: Callable[[AttemptId, str], None]) -> None:
        """The files to read from; `follow` raises ValueError for a path that is not allowed."""
        self._tail, self._follow = tail, follow

    def look(self) -> int:
        """Read what is new of all files, then begin with those that are new; how many lines that brought."""
        if self._tail is None:
            return 0
        now = self._journal.now()
        delivered = self._tail.tick(now)
        with self._journal.view:
            attempts = sorted(self._journal.state.attempts.values(), key=lambda one: one.position)
        for attempt in attempts:
            self._consider(attempt, now)
        self._let_go(now)
        self._note(now)
        return delivered

    def _consider(self, attempt: AttemptRecord, now: datetime) -> None:
        if self._tail is None or attempt.id in self._finished:
            return
        linger = timedelta(seconds=self._settings.linger_s)
        if attempt.ended_at is not None and now - attempt.ended_at > linger:
            if self._paths.pop(attempt.id, None) is not None:
                until = now + PLACES_KEPT
                self._resting.update(dict.fromkeys(self._tail.rest(attempt.id), until))
            self._finished.add(attempt.id)
            return
        wanted = tuple(attempt.detail("log_paths") or ())
        fresh = [path for path in wanted if path not in self._paths.get(attempt.id, ())]
        if not fresh:
            return
        self._paths[attempt.id] = (*self._paths.get(attempt.id, ()), *fresh)
        for path in fresh:
            self._resting.pop(path, None)
            try:
                self._follow(attempt.id, path)
            except ValueError as why:
                self._refused[path] = str(why)
                log.warning("log_path_refused", attempt=attempt.id, path=path, why=str(why))

    def _let_go(self, now: datetime) -> None:
        over = [path for path, until in self._resting.items() if now >= until]
        if over and self._tail is not None:
            self._tail.forget(over)
            for path in over:
                del self._resting[path]

    def _note(self, now: datetime) -> None:
        assert self._tail is not None
        troubles = {path: why for path, why in self._tail.troubles.items() if why != _NOT_YET}
        blind = {
            attempt: f"{path}: {troubles[path]}"
            for attempt, paths in self._paths.items()
            for path in paths
            if path in troubles
        }
        self.status = Status(now, self._tail.lag_s(now), frozenset(self._paths), blind, dict(self._refused))

    @property
    def troubles(self) -> list[str]:
        """What readiness should say: logs that can't be read, in few words."""
        blind, refused = self.status.blind, self.status.refused
        said = [f"{len(blind)} attempts have unreadable logs, as {next(iter(blind.values()))}"] if blind else []
        return said + ([f"{len(refused)} log paths are refused, as {next(iter(refused.values()))}"] if refused else [])


class LagProbe:
    """Holds any verdict on a hang while it is we who don't read: the silence is ours then."""

    name = "log_lag"

    def __init__(self, status: Callable[[], Status], settings: Follow) -> None:
        self._status = status
        self._max_lag_s = settings.max_lag_s
        self._stuck_s = max(STUCK_AFTER_S, STUCK_AFTER_POLLS * settings.poll_every_s)

    def read(self, attempt: AttemptId, now: datetime) -> ProbeReading:
        status = self._status()
        if attempt not in status.followed or status.at is None:
            return ProbeReading(probe=self.name, says=ProbeSays.UNKNOWN, reason="its logs are not followed")
        away_s = (now - status.at).total_seconds()
        if away_s > self._stuck_s:
            return self._hold(f"logs were last looked at {away_s:.0f} s ago")
        if status.lag_s > self._max_lag_s:
            return self._hold(f"reading is {status.lag_s:.0f} s behind")
        if attempt in status.blind:
            return self._hold(status.blind[attempt])
        return ProbeReading(probe=self.name, says=ProbeSays.UNKNOWN)

    def _hold(self, reason: str) -> ProbeReading:
        return ProbeReading(probe=self.name, says=ProbeSays.HOLD, reason=reason)


def delivery(intake: Intake) -> Callable[[AttemptId, Sequence[LogLine]], object]:
    """Hands a file's lines to the intake, which returns once they are on record."""

    def deliver(_: AttemptId, lines: Sequence[LogLine]) -> object:
        place = f"{lines[0].attempt}\0{lines[0].file}\0{lines[0].number}\0{lines[-1].number}"
        digest = hashlib.sha256(place.encode("utf-8", "surrogatepass")).digest()
        return intake.accept_lines(lines, digest, FOLLOWED, "relight")

    return deliver


def _nobody(_: AttemptId, path: str) -> None:
    raise ValueError(f"{path}: no log folder is allowed; set follow.roots")
