# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Records of a collector into lines of attempts: by job where labels name one, else by node and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from relight.types import AttemptId, ClusterId, LogLine, NodeName, Rank, Stream
from service.allocations import spelled
from service.application import Application
from service.doors.health import held_lately
from service.doors.labels import Whose, whose
from service.doors.records import BadBody, Item, Record, Unreadable
from service.drafts import new_line
from service.holding import ANY_CLUSTER, HELD, Addressee
from service.line_intake import Held
from service.observing import Fate
from service.records import AttemptRecord
from service.tokens import Principal

CUT = " …[cut]"
UNPLACED = "unplaced"
MAX_REASONS = 3


class TooManyRecords(ValueError):
    """More records in one request than a service should hold at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What became of a request's records; `unplaced` came from machines that no known attempt held.

    `held` wait for their job to be registered, as `reasons` say too.
    """

    accepted: int
    duplicates: int
    rejected: int
    unplaced: int
    held: int = 0
    reasons: tuple[str, ...] = ()


@dataclass(slots=True)
class Delivery:
    """One request's records, each turned into the lines of the attempts that it concerns."""

    app: Application
    caller: Principal
    cluster: ClusterId
    source: str
    lines: list[LogLine] = field(default_factory=list)
    newest: datetime | None = None
    records: int = 0
    rejected: int = 0
    unplaced: int = 0
    _reasons: Counter[str] = field(default_factory=Counter)
    unclaimed: dict[Addressee, list[LogLine]] = field(default_factory=dict)
    _jobs: dict[tuple[str | None, str | None, int | None, str | None], tuple[Addressee, AttemptRecord | None]] = field(
        default_factory=dict
    )
    _clusters: frozenset[ClusterId] | None = None

    def take(self, items: Iterable[Item]) -> None:
        """Errors: TooManyRecords, BadBody; then nothing of the request counts."""
        limit = self.app.settings.ingest.max_lines_per_request
        for item in items:
            self.records += 1
            if self.records > limit or len(self.lines) > 4 * limit:
                raise TooManyRecords(f"more than {limit} log records in one request")
            if isinstance(item, Unreadable):
                self._reject(item.reason)
                continue
            try:
                self._place(item, whose(item))
            except ValueError as why:
                self._reject(str(why))

    def hand_over(self, digest: bytes) -> Delivered:
        """Give the lines to the service. Errors: AuditUnavailable; then no line counts as seen."""
        if self.records and self.rejected == self.records and self._only_unreadable():
            raise BadBody(next(iter(self._reasons)))
        intake, actor = self.app.intake, self.caller.client
        new, old = intake.accept_lines(self.lines, digest, self.source, actor)
        held = intake.hold_lines(self.unclaimed, digest, self.source, actor) if self.unclaimed else {}
        for to, fate in held.items():
            self._tell(to, fate)
        said = Delivered(
            accepted=new + sum(one.accepted for one in held.values()),
            duplicates=old + sum(one.duplicates for one in held.values()),
            rejected=self.rejected, unplaced=self.unplaced, held=sum(one.held for one in held.values()),
            reasons=tuple(f"{reason} ({count})" for reason, count in self._reasons.most_common(MAX_REASONS)),
        )  # fmt: skip
        self._count(said)
        return said

    def _tell(self, to: Addressee, fate: Held) -> None:
        if fate.refused:
            self._reject(f"unknown {to}: {fate.refusal}", fate.refused)
        if fate.held:
            seconds = self.app.settings.ingest.hold_s
            self._reasons[f"unknown {to}: held for {seconds:g} s at least, until it is registered"] += fate.held

    # -------------------------------------------------------------- placing

    def _place(self, record: Record, origin: Whose) -> None:
        if record.at is not None and (self.newest is None or record.at > self.newest):
            self.newest = record.at
        if origin.is_of_node:
            at = record.at or self.app.journal.now()
            now = self.app.journal.now()
            holders = held_lately(self.app.allocations, self._cluster(origin), origin.node, at, now)
            self.unplaced += not holders
            for holder in holders:
                self._add(record, origin, holder)
            return
        if origin.attempt is None and origin.job is None:
            raise ValueError("no label names a job (slurm.job.id, job_id, …) or, for a machine's log, a node")
        to, found = self._attempt(origin)
        if found is not None:
            self._add(record, origin, found)
        else:
            self.unclaimed.setdefault(to, []).extend(self._made(record, origin, to.place, _named(origin.node)))

    def _attempt(self, origin: Whose) -> tuple[Addressee, AttemptRecord | None]:
        key = (origin.attempt, origin.job, origin.restart, origin.cluster)
        known = self._jobs.get(key)
        if known is None:
            to = addressee(self.caller, self._cluster(origin), origin.attempt, origin.job, origin.restart)
            name = attempt_of(self.app, self.caller, to)
            with self.app.journal.view:
                record = self.app.journal.state.attempts[name] if name is not None else None
            known = self._jobs[key] = (to, record)
        return known

    def _cluster(self, origin: Whose) -> ClusterId:
        """The cluster that a label names, if it is one of ours that the caller may speak of."""
        named = ClusterId(origin.cluster or "")
        if not named or named == self.cluster or not self.caller.may_see(named):
            return self.cluster
        if self._clusters is None:
            with self.app.journal.view:
                self._clusters = frozenset(cluster for cluster, _ in self.app.journal.state.jobs)
        return named if named in self._clusters else self.cluster

    # -------------------------------------------------------------- lines

    def _add(self, record: Record, origin: Whose, attempt: AttemptRecord) -> None:
        node = spelled(origin.node, attempt) if origin.node is not None else None
        self.lines += self._made(record, origin, attempt.id, node)

    def _made(self, record: Record, origin: Whose, attempt: AttemptId, node: NodeName | None) -> list[LogLine]:
        """A record's lines, none of which is longer than allowed."""
        limit = self.app.settings.ingest.max_line_bytes
        file = (origin.file or _file_name(self.source, origin.stream))[:1_000]
        rank = Rank(origin.rank) if origin.rank is not None else None
        texts = record.text.splitlines() or [""]
        short = (text if len(text) <= limit else text[: limit - len(CUT)] + CUT for text in texts)
        return [
            new_line(attempt=attempt, file=file, number=0, stream=origin.stream, text=text, at=record.at, node=node,
                     rank=rank)
            for text in short
        ]  # fmt: skip

    def _reject(self, reason: str, count: int = 1) -> None:
        self.rejected += count
        if reason in self._reasons or len(self._reasons) < 100:
            self._reasons[reason] += count

    def _only_unreadable(self) -> bool:
        """True if no record could even be read: then the body is wrong, not what it speaks of."""
        return not any("no label" in reason for reason in self._reasons)

    def _count(self, said: Delivered) -> None:
        metrics = self.app.metrics
        outcomes = {Fate.ACCEPTED: said.accepted, Fate.DUPLICATE: said.duplicates, Fate.FAILED: said.rejected,
                    HELD: said.held}  # fmt: skip
        for fate, count in outcomes.items():
            metrics.records.labels(self.source, fate).inc(count)
        metrics.records.labels(self.source, UNPLACED).inc(said.unplaced)
        if self.newest is not None:
            metrics.lag.observe(max((self.app.journal.now() - self.newest).total_seconds(), 0.0))


def addressee(
    caller: Principal, cluster: ClusterId, attempt: str | None, job: str | None, restart: int | None
) -> Addressee:
    """Whom a caller names: an attempt by its name alone, in any cluster that he may speak of; else a job of one."""
    if attempt is not None:
        return Addressee(ClusterId(caller.cluster) if caller.cluster else ANY_CLUSTER, attempt)
    return Addressee(cluster, None, job, restart)


def attempt_of(app: Application, caller: Principal, to: Addressee) -> AttemptId | None:
    """The attempt that somebody means, if it is known and the caller may speak of it."""
    with app.journal.view:
        state = app.journal.state
        if to.attempt is None:
            return state.attempt_of_job(to.cluster, to.job or "", to.restart)
        known = state.attempts.get(AttemptId(to.attempt))
        return known.id if known is not None and caller.may_see(known.seen.cluster) else None


def _named(node: str | None) -> NodeName | None:
    return NodeName(node) if node is not None else None


def _file_name(source: str, stream: Stream) -> str:
    return source if stream is Stream.APPLICATION else f"{source}/{stream}"
