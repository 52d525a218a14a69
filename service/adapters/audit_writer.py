# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the audit log's writer thread does with a group: chain it, commit it, or spill it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

import duckdb

from relight.chain import Draft, Record, draft
from relight.events import AuditRepaired
from relight.ports import AuditUnavailable, Clock, Head, Recorded
from service.adapters.audit_head import HeadFile
from service.adapters.audit_queue import Request
from service.adapters.audit_recovery import Recovery, folded_back
from service.adapters.audit_spill import Spill, SpillFailed
from service.adapters.audit_store import AuditStore

_FOLD_ROWS = 5_000
_FAILURES = (duckdb.Error, OSError)


class AuditWriter:
    """The only writer of the chain; one thread calls it.

    `head` is the last durable record. `unfolded` are the records that are durable in the spill file
    only; while there are any, new ones join them, so that the order is kept.
    """

    def __init__(
        self,
        recovery: Recovery,
        spill: Spill,
        head_file: HeadFile,
        clock: Clock,
        *,
        checkpoint_bytes: int,
        retry_s: float,
        max_unfolded: int,
    ) -> None:
        self.head: Head = recovery.head
        self.unfolded: tuple[Record, ...] = tuple(recovery.unfolded)
        self._store: AuditStore = recovery.store
        self._spill, self._head_file, self._clock = spill, head_file, clock
        self._checkpoint_bytes, self._retry_s, self._max_unfolded = checkpoint_bytes, retry_s, max_unfolded
        self._retry_at = time.monotonic() + retry_s
        # True after a commit failed and nothing could be spilled: the database may hold records unknown here.
        self._is_doubtful = False

    @property
    def is_ailing(self) -> bool:
        """True while there is something to retry without being asked."""
        return bool(self.unfolded) or not self._spill.is_whole

    def record(self, group: Sequence[Request]) -> None:
        """Make the group durable and answer its requests, each with its places or AuditUnavailable."""
        self.tend()
        accepted, known = self._look_up(group)
        try:
            sealed, answers = _seal(accepted, known, self._settled_head())
            self._make_durable(sealed)
        except AuditUnavailable as why:
            _refuse(accepted, why)
            return
        for request, answer in zip(accepted, answers, strict=True):
            request.answer.set_result(answer)

    def say(self, repairs: Sequence[AuditRepaired]) -> None:
        """Record the log's own events; if that can't be done now, they remain visible as `repairs`."""
        with contextlib.suppress(AuditUnavailable):
            sealed, _ = _seal([Request(drafts=[draft(one) for one in repairs])], {}, self._settled_head())
            self._make_durable(sealed)

    def tend(self) -> None:
        """Fold back what was spilled and checkpoint, where either is due."""
        is_due = time.monotonic() >= self._retry_at
        if self.unfolded and is_due:
            self._fold_back()
        elif not self.unfolded and (self._spill.size >= self._checkpoint_bytes or not self._spill.is_whole):
            self._checkpoint(is_due)

    def finish(self) -> None:
        """Leave as little as possible for the next start to mend."""
        if self.unfolded:
            self._fold_back()
        if not self.unfolded:
            self._checkpoint(is_due=True)
        with contextlib.suppress(OSError):
            self._head_file.close()
        self._spill.close()
        self._store.close()

    def _look_up(self, group: Sequence[Request]) -> tuple[list[Request], dict[str, Recorded]]:
        """The requests that can be served, and what their keys have recorded before."""
        keys = {one.key for request in group for one in request.drafts if one.key is not None}
        if not keys:
            return list(group), {}
        try:
            found = self._store.by_key(sorted(keys))
        except duckdb.Error as why:
            keyed = [request for request in group if any(one.key is not None for one in request.drafts)]
            _refuse(keyed, AuditUnavailable(f"can't tell whether a key was used before: {why}"))
            return [request for request in group if request not in keyed], {}
        found |= {record.key: record for record in self.unfolded if record.key in keys and record.key}
        return list(group), {
            key: Recorded(position=record.position, event=record.event(), is_new=False) for key, record in found.items()
        }

    def _settled_head(self) -> Head:
        """The head to chain to. AuditUnavailable if a failed commit left it unknown."""
        if not self._is_doubtful:
            return self.head
        try:
            self._store.revive()
            there = self._store.head()
        except _FAILURES as why:
            raise AuditUnavailable(f"the audit database can't be read: {why}") from why
        if there.position > self.head.position:
            self.head = there
            self._spill.give_up()
        self._is_doubtful = False
        return self.head

    def _make_durable(self, sealed: Sequence[Record]) -> None:
        if not sealed:
            return
        failure: Exception | None = None
        if not self.unfolded:
            try:
                self._store.insert(sealed)
            except _FAILURES as why:
                failure = why
            else:
                with contextlib.suppress(SpillFailed):
                    self._spill.add(sealed, is_durable=False)
                self._advance(sealed)
                return
        self._spill_over(sealed, failure)

    def _spill_over(self, sealed: Sequence[Record], failure: Exception | None) -> None:
        if len(self.unfolded) + len(sealed) > self._max_unfolded:
            raise AuditUnavailable(
                f"{len(self.unfolded)} events wait in the spill file for the database to accept them; "
                "free disk space or restart Relight",
                retry_after_s=self._retry_s,
            )
        try:
            self._spill.add(sealed, is_durable=True)
        except SpillFailed as why:
            self._is_doubtful = failure is not None
            reasons = f"{failure}; {why}" if failure else str(why)
            raise AuditUnavailable(
                f"neither the audit database nor its spill file could be written: {reasons}",
                retry_after_s=self._retry_s,
            ) from why
        if failure is not None:
            self._retry_at = time.monotonic() + self._retry_s
        self.unfolded = (*self.unfolded, *sealed)
        self._advance(sealed)

    def _advance(self, sealed: Sequence[Record]) -> None:
        self.head = sealed[-1].head
        with contextlib.suppress(OSError):
            self._head_file.write(self.head)

    def _fold_back(self) -> None:
        waiting = self.unfolded
        try:
            self._store.revive()
            behind = self._store.head().position
            missing = [record for record in waiting if record.position > behind]
            for start in range(0, len(missing), _FOLD_ROWS):
                self._store.insert(missing[start : start + _FOLD_ROWS])
        except _FAILURES:
            self._retry_at = time.monotonic() + self._retry_s
            return
        self.unfolded = ()
        self.say([folded_back(waiting, self._clock.now())])

    def _checkpoint(self, is_due: bool) -> None:
        if not is_due:
            return
        try:
            self._store.checkpoint()
        except duckdb.Error:
            self._retry_at = time.monotonic() + self._retry_s
            return
        self._spill.reset()


def _seal(
    group: Sequence[Request], known: Mapping[str, Recorded], head: Head
) -> tuple[list[Record], list[tuple[Recorded, ...]]]:
    """Chain the new events of a group to `head`; an event whose key is known keeps its old place."""
    sealed: list[Record] = []
    places = dict(known)

    def place(one: Draft) -> Recorded:
        nonlocal head
        if one.key is not None and one.key in places:
            return places[one.key]
        record = one.seal(head)
        sealed.append(record)
        head = record.head
        if one.key is not None:
            places[one.key] = Recorded(position=record.position, event=one.event, is_new=False)
        return Recorded(position=record.position, event=one.event)

    return sealed, [tuple(place(one) for one in request.drafts) for request in group]


def _refuse(group: Sequence[Request], why: AuditUnavailable) -> None:
    for request in group:
        request.answer.set_exception(AuditUnavailable(str(why), retry_after_s=why.retry_after_s))


def unanswered(group: Sequence[Request]) -> Iterator[Request]:
    """Those of the requests whose callers still wait."""
    return (request for request in group if not request.answer.done())
