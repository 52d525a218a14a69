# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Stages of classes: raised by a person where the record allows it, lowered by the record alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from relight.events import StageChanged
from relight.jsonform import encode
from relight.promotion import Bar, Fall, Gate, Judged, Stage, TrackRecord, fall, gate, record_of
from relight.types import ClusterId, FailureClass
from service.journal import Journal
from service.promotion_settings import Promotion
from service.records import StageEntry
from service.refusals import Refused
from service.scorecard import cases

DEMOTION = "relight:record"
CLASSES = tuple(one for one in FailureClass if one is not FailureClass.BENIGN)
Key = tuple[ClusterId, FailureClass]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where a class stands, what it has to show, and whether it may rise."""

    cluster: ClusterId
    failure_class: FailureClass
    stage: Stage
    record: TrackRecord
    following: Gate | None
    entry: StageEntry | None


class Stages:
    """How far each class is trusted in each cluster.

    Errors: Refused below_the_bar with everything that is missing; AuditUnavailable if it could not be recorded.
    """

    def __init__(self, journal: Journal, settings: Promotion) -> None:
        self._journal = journal
        self._settings = settings
        self._looked_at: datetime | None = None

    @property
    def bars(self) -> Mapping[Stage, Bar]:
        return self._settings.bars

    @property
    def start(self) -> Stage:
        return self._settings.start

    def stage(self, cluster: ClusterId, failure_class: FailureClass) -> Stage:
        return self._journal.state.stage_of(cluster, failure_class, self._settings.start)

    def standings(self, cluster: ClusterId) -> list[Standing]:
        """Every class of a cluster, with the record of the window; holds no lock that a decision waits for."""
        with self._journal.view:
            records = self._records(self._journal.now())
            return [self._standing(cluster, one, records.get((cluster, one), TrackRecord())) for one in CLASSES]

    def set(self, cluster: ClusterId, failure_class: FailureClass, stage: Stage, actor: str, reason: str) -> Standing:
        """A person's word: down at will, up by one rung and over its bar."""
        if failure_class not in CLASSES:
            raise Refused("invalid", f"class {failure_class} is no failure, so there is nothing to promote")
        with self._journal.lock:
            now = self._journal.now()
            known, record = self.stage(cluster, failure_class), self._record(cluster, failure_class, now)
            found = gate(record, known, stage, self.bars)
            if not found.is_open:
                raise Refused("below_the_bar", f"{failure_class} may not rise to {stage}: {'; '.join(found.missing)}")
            if stage is not known:
                self._journal.record(self._changed(cluster, failure_class, stage, actor, reason, record, now))
            return self._standing(cluster, failure_class, record)

    def sweep(self) -> int:
        """Lower every class whose record fell below the bar of its stage; how many there were."""
        now = self._journal.now()
        due = timedelta(seconds=self._settings.every_s)
        if self._looked_at is not None and timedelta() <= now - self._looked_at < due:
            return 0
        self._looked_at = now
        with self._journal.view:
            falling = [key for key, record in self._records(now).items() if self._falls(key, record)]
        return sum(self._lower(key, now) for key in falling)

    def _lower(self, key: Key, now: datetime) -> bool:
        """Looked at once more under the lock, so that no claim stands between the record and its consequence."""
        with self._journal.lock:
            record = self._record(*key, now)
            found = self._falls(key, record)
            if found is None:
                return False
            reason = "; ".join(found.reasons)
            self._journal.record(self._changed(*key, found.stage, DEMOTION, reason, record, now))
            return True

    def _falls(self, key: Key, record: TrackRecord) -> Fall | None:
        return fall(record, self.stage(*key), self.bars)

    def _standing(self, cluster: ClusterId, failure_class: FailureClass, record: TrackRecord) -> Standing:
        stage = self.stage(cluster, failure_class)
        entries = self._journal.state.stages.get((cluster, failure_class), [])
        return Standing(
            cluster=cluster,
            failure_class=failure_class,
            stage=stage,
            record=record,
            following=gate(record, stage, stage.following, self.bars) if stage.following is not None else None,
            entry=entries[-1] if entries else None,
        )

    def _record(self, cluster: ClusterId, failure_class: FailureClass, now: datetime) -> TrackRecord:
        return self._records(now).get((cluster, failure_class), TrackRecord())

    def _records(self, now: datetime) -> dict[Key, TrackRecord]:
        since = now - timedelta(days=self._settings.window_days)
        found: dict[Key, list[Judged]] = {}
        for cluster, case in cases(self._journal.state, now, counts=lambda known: known.created_at >= since):
            found.setdefault((cluster, case.failure_class), []).append(case)
        return {key: record_of(known, since) for key, known in found.items()}

    def _changed(
        self, cluster: ClusterId, failure_class: FailureClass, stage: Stage, actor: str, reason: str,
        record: TrackRecord, now: datetime,
    ) -> StageChanged:  # fmt: skip
        return StageChanged(
            at=now,
            failure_class=failure_class,
            stage=stage,
            previous=self.stage(cluster, failure_class),
            actor=actor,
            reason=reason,
            record=encode(record),
            cluster=cluster,
        )
