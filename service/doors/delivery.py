# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Records of a collector into lines of attempts: by job where labels name one, else by node and time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from relight.types import AttemptId, ClusterId, LogLine, NodeName, Rank, Stream
from service.allocations import spelled
from service.application import Application
from service.doors.health import held_lately
from service.doors.labels import Whose, whose
from service.doors.records import BadBody, Item, Record, Unreadable
from service.observing import Fate
from service.records import AttemptRecord
from service.tokens import Principal

CUT = " …[cut]"
UNPLACED = "unplaced"
MAX_REASONS = 3
_TICK = timedelta(microseconds=1)


class TooManyRecords(ValueError):
    """More records in one request than a service should hold at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivered:
    """What became of a request's records; `unplaced` came from machines that no known attempt held."""

    accepted: int
    duplicates: int
    rejected: int
    unplaced: int
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
    _jobs: dict[tuple[str | None, str | None, int | None, str | None], AttemptRecord | None] = field(
        default_factory=dict
    )
    _told: Counter[tuple[AttemptId, str, str | None, int | None, datetime | None, str]] = field(default_factory=Counter)
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
        new, old = self.app.intake.accept_lines(self.lines, digest, self.source, self.caller.client)
        said = Delivered(
            accepted=new, duplicates=old, rejected=self.rejected, unplaced=self.unplaced,
            reasons=tuple(f"{reason} ({count})" for reason, count in self._reasons.most_common(MAX_REASONS)),
        )  # fmt: skip
        self._count(said)
        return said

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
        self._add(record, origin, self._attempt(origin))

    def _attempt(self, origin: Whose) -> AttemptRecord:
        key = (origin.attempt, origin.job, origin.restart, origin.cluster)
        if key not in self._jobs:
            self._jobs[key] = self._resolved(origin)
        found = self._jobs[key]
        if found is not None:
            return found
        if origin.attempt is None and origin.job is None:
            raise ValueError("no label names a job (slurm.job.id, job_id, …) or, for a machine's log, a node")
        raise ValueError(f"unknown {'attempt' if origin.attempt else 'job'} {origin.attempt or origin.job!r}")

    def _resolved(self, origin: Whose) -> AttemptRecord | None:
        cluster = self._cluster(origin)
        with self.app.journal.view:
            state = self.app.journal.state
            if origin.attempt is not None:
                known = state.attempts.get(AttemptId(origin.attempt))
                return known if known is not None and self.caller.may_see(known.seen.cluster) else None
            name = state.attempt_of_job(cluster, origin.job, origin.restart) if origin.job is not None else None
            return state.attempts[name] if name is not None else None

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
        limit = self.app.settings.ingest.max_line_bytes
        file = (origin.file or _file_name(self.source, origin.stream))[:1_000]
        for text in record.text.splitlines() or [""]:
            short = text if len(text) <= limit else text[: limit - len(CUT)] + CUT
            self.lines.append(self._line(attempt.id, file, short, record.at, node, origin))

    def _line(
        self, attempt: AttemptId, file: str, text: str, at: datetime | None, node: NodeName | None, origin: Whose
    ) -> LogLine:
        """A time that stands for several equal lines is told apart by microseconds, the same in every repetition."""
        place = (attempt, file, node, origin.rank, at, text)
        before = self._told[place]
        self._told[place] += 1
        return LogLine(
            attempt=attempt,
            file=file,
            number=0,
            stream=origin.stream,
            text=text,
            at=at + before * _TICK if at is not None else None,
            node=node,
            rank=Rank(origin.rank) if origin.rank is not None else None,
        )

    def _reject(self, reason: str) -> None:
        self.rejected += 1
        if reason in self._reasons or len(self._reasons) < 100:
            self._reasons[reason] += 1

    def _only_unreadable(self) -> bool:
        """True if no record could even be read: then the body is wrong, not what it speaks of."""
        return not any("unknown" in reason or "no label" in reason for reason in self._reasons)

    def _count(self, said: Delivered) -> None:
        metrics = self.app.metrics
        outcomes = {Fate.ACCEPTED: said.accepted, Fate.DUPLICATE: said.duplicates, Fate.FAILED: said.rejected}
        for fate, count in outcomes.items():
            metrics.records.labels(self.source, fate).inc(count)
        metrics.records.labels(self.source, UNPLACED).inc(said.unplaced)
        if self.newest is not None:
            metrics.lag.observe(max((self.app.journal.now() - self.newest).total_seconds(), 0.0))


def _file_name(source: str, stream: Stream) -> str:
    return source if stream is Stream.APPLICATION else f"{source}/{stream}"
