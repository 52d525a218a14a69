# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the kernel asks of the world: the protocols that adapters and plugins implement."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol, runtime_checkable

from relight.attribute import AttemptFacts
from relight.events import Event
from relight.types import (
    Anomaly,
    AttemptId,
    Attribution,
    ClusterId,
    Evidence,
    IncidentId,
    LogLine,
    NodeName,
    Observation,
    Rank,
    RecommendationId,
    SchedulerState,
    WorkloadId,
)
from relight.watching import HangTerms


class Clock(Protocol):
    """The only source of the present; the core is handed what it says."""

    def now(self) -> datetime:
        """The present as an aware UTC datetime."""
        ...


# ------------------------------------------------------------------ audit log


class AuditUnavailable(RuntimeError):
    """The event is not durable, so nothing that rests on it may be said; try again after a while."""

    def __init__(self, why: str, *, retry_after_s: float = 1.0) -> None:
        super().__init__(why)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The last position and its hash; whoever remembers one can tell later that the tail was cut."""

    position: int
    hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """An event with its place in the log. `is_new` is false if the key had been used before."""

    position: int
    event: Event
    is_new: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event as it is read back."""

    position: int
    event: Event
    hash: str
    key: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which events to read; every field given must hold, `since` is inclusive and `until` is not."""

    kinds: tuple[str, ...] = ()
    since: datetime | None = None
    until: datetime | None = None
    cluster: ClusterId | None = None
    workload: WorkloadId | None = None
    attempt: AttemptId | None = None
    incident: IncidentId | None = None
    recommendation: RecommendationId | None = None
    node: NodeName | None = None
    actor: str | None = None


EVERYTHING = AuditFilter()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainBreak:
    """The first place where the chain does not hold."""

    position: int
    expected: str
    found: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What a walk over the chain found; `events` were sound before the end or the break."""

    events: int
    head: Head
    broken: ChainBreak | None = None

    @property
    def is_sound(self) -> bool:
        return self.broken is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """A finished export: the file, what it holds, and the head of the log when it was made."""

    path: str
    events: int
    first: int | None
    last: int | None
    head: Head


@runtime_checkable
class AuditLog(Protocol):
    """Append-only, hash-chained, positions from 1 without gaps; thread-safe."""

    def append(self, events: Sequence[Event]) -> tuple[int, ...]:
        """Record all events or none, and return their positions only once they are durable.

        Errors: AuditUnavailable if they could not be made durable or the queue is full.
        """
        ...

    def record_once(self, key: str, event: Event) -> Recorded:
        """Record the event under `key`, or return what that key recorded first, unchanged."""
        ...

    def read(self, after: int = 0, limit: int = 1000, where: AuditFilter = EVERYTHING) -> tuple[StoredEvent, ...]:
        """At most `limit` events behind position `after`, in order."""
        ...

    def head(self) -> Head:
        """The last durable position and its hash; position 0 for an empty log."""
        ...

    def verify(self, anchor: Head | None = None) -> Verification:
        """Walk the whole chain; `anchor` is a head remembered outside, which a cut tail no longer meets."""
        ...

    def export(self, path: str, where: AuditFilter = EVERYTHING) -> Exported:
        """Write the events to a Parquet file in the directory `path`, while the log stays in use."""
        ...

    def close(self) -> None:
        """Make everything accepted durable and let go of the store; further calls raise AuditUnavailable."""
        ...


# ------------------------------------------------------------------ scheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerReading:
    """One look at the scheduler. A blind look holds no states and says nothing of any job's absence."""

    at: datetime
    is_blind: bool
    reason: str = ""
    states: tuple[SchedulerState, ...] = ()


@runtime_checkable
class Scheduler(Protocol):
    """What Relight reads from a scheduler; acting on it is a controller's business."""

    name: str

    def read(self, now: datetime) -> SchedulerReading:
        """The state of all known attempts, or a blind reading; never raises for an unreachable scheduler."""
        ...


# ------------------------------------------------------------------ attribution and detection


class ProbeSays(StrEnum):
    """The answer of a probe: HOLD forbids any verdict, UNKNOWN is no answer and never means healthy."""

    HUNG = "hung"
    ALIVE = "alive"
    HOLD = "hold"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReading:
    """What one probe found, with the ranks or nodes that it accuses if it accuses any."""

    probe: str
    says: ProbeSays
    ranks: tuple[Rank, ...] = ()
    nodes: tuple[NodeName, ...] = ()
    reason: str = ""


@runtime_checkable
class HangProbe(Protocol):
    """A second opinion on a job that made no progress: scheduler, node reachability, our own collectors."""

    name: str

    def read(self, attempt: AttemptId, now: datetime) -> ProbeReading:
        """What is known at `now`, without waiting: long checks run elsewhere and are UNKNOWN until done."""
        ...


@runtime_checkable
class Attributor(Protocol):
    """Evidence in, the failure and its suspects out; pure."""

    name: str

    def attribute(self, evidence: Sequence[Evidence], facts: AttemptFacts) -> Attribution:
        """The attribution, with failure `cause_not_in_log` where the evidence names none."""
        ...


@runtime_checkable
class Detector(Protocol):
    """Observations in, anomalies out; keeps state per attempt and reads no clock."""

    name: str

    def observe(self, seen: Observation) -> tuple[Anomaly, ...]:
        """The anomalies that this observation completes, most often none."""
        ...

    def overdue(self, now: datetime) -> tuple[Anomaly, ...]:
        """The anomalies that silence until `now` completes; () for detectors that need no time."""
        ...

    def forget(self, attempt: AttemptId) -> None:
        """Drop all state of a finished attempt; unknown attempts are ignored."""
        ...

    def snapshot(self) -> Mapping[str, Any]:
        """The state as JSON values: restoring it and going on equals never having stopped."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` returned; ValueError if the state is of another version."""
        ...


# What a detector may have beside that; who has it is asked for it.


@runtime_checkable
class TakesRules(Protocol):
    def use_rules(self, signatures: Any, progress: Any) -> None:
        """Take a reloaded rule set in the place of the one it was made with."""
        ...


@runtime_checkable
class Freezable(Protocol):
    def freeze(self, attempt: AttemptId, is_frozen: bool) -> None:
        """Stop or resume learning, as while an incident is open."""
        ...


@runtime_checkable
class PlacesRanks(Protocol):
    def place_ranks(self, attempt: AttemptId, rank_to_node: Mapping[Rank, NodeName]) -> None:
        """Where ranks run, as far as it is known."""
        ...


@runtime_checkable
class ScreensLines(Protocol):
    def screen(self, lines: Sequence[LogLine], raw: Sequence[bytes]) -> Collection[int]:
        """Which lines of a batch it has to be shown, by their places in it; `raw` are the same lines as bytes.

        Whoever does not have this is shown every line.
        """
        ...


@runtime_checkable
class TakesTerms(Protocol):
    def bound(self, attempt: AttemptId, terms: HangTerms) -> None:
        """Bounds of an attempt's pauses, which go before what is learned; asked again when they change."""
        ...


@runtime_checkable
class OnlineModel(Protocol):
    """A stream of numbers in, a score out; one number at a time, in bounded memory."""

    name: str
    version: int

    def learn_one(self, value: float) -> None:
        """Take in a value; one that is not finite is ignored."""
        ...

    def score_one(self, value: float) -> float | None:
        """How unusual a value is, 0 and below meaning usual, or None while there is nothing to compare with."""
        ...

    def snapshot(self) -> Mapping[str, Any]:
        """The state as JSON values: restoring it and going on equals never having stopped."""
        ...

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take over what `snapshot` returned; ValueError if it is of another model or version."""
        ...
