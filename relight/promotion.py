# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How far a class of failures is trusted, by what its advice was worth: the bar to rise and the fall below it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from relight.agreement import Match, wilson
from relight.types import Action, FailureClass, Mode, RecommendationId, WorkloadId

FEW = 5
"""With fewer cases nothing is certain: Wilson's interval for none of one still reaches 0.79."""


class Stage(StrEnum):
    """What Relight may do about a class of failures, in rising order."""

    OFF = "off"
    RECORD = "record"
    NOTIFY = "notify"
    APPROVE = "approve"
    ACT = "act"

    @property
    def rung(self) -> int:
        return _LADDER.index(self)

    @property
    def mode(self) -> Mode:
        """The boldest mode that this stage leaves."""
        return {Stage.ACT: Mode.ACT, Stage.APPROVE: Mode.APPROVE}.get(self, Mode.MONITOR)

    @property
    def following(self) -> Stage | None:
        return _LADDER[self.rung + 1] if self.rung + 1 < len(_LADDER) else None


_LADDER = tuple(Stage)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One advice and what it was worth: `held` is None while nobody can tell."""

    recommendation: RecommendationId
    workload: WorkloadId
    failure_class: FailureClass
    action: Action
    advised_at: datetime
    held: bool | None
    is_false_stop: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackRecord:
    """The cases of one class, counted; the interval is Wilson's at 95 %, None without a decided case."""

    decided: int = 0
    held: int = 0
    pending: int = 0
    workloads: int = 0
    false_stops: int = 0
    low: float | None = None
    high: float | None = None

    @property
    def share(self) -> float | None:
        return self.held / self.decided if self.decided else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What a stage asks of the record. `false_stops` None: a person looks at each stop anyway.

    Errors: ValueError unless cases >= 1, 0 < share < 1 and workloads >= 1.
    """

    cases: int
    share: float
    workloads: int = 1
    false_stops: int | None = None

    def __post_init__(self) -> None:
        if self.cases < 1 or self.workloads < 1 or not 0 < self.share < 1:
            raise ValueError(f"need cases >= 1, workloads >= 1 and 0 < share < 1, got {self}")


BARS: Mapping[Stage, Bar] = {
    Stage.NOTIFY: Bar(cases=5, share=0.5, workloads=2),
    Stage.APPROVE: Bar(cases=10, share=0.55, workloads=3),
    Stage.ACT: Bar(cases=30, share=0.8, workloads=5, false_stops=0),
}
"""29 of 30 pass the bar of `act`, 28 of 30 don't; `off` and `record` ask for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """Whether a class may rise to `stage`, and if not, everything that is missing."""

    stage: Stage
    missing: tuple[str, ...] = field(default=())

    @property
    def is_open(self) -> bool:
        return not self.missing


@dataclass(frozen=True, slots=True, kw_only=True)
class Fall:
    """A class that is no longer worth its stage: where it goes and why."""

    stage: Stage
    reasons: tuple[str, ...]


def worth(
    found: Match, *, feedback: bool | None = None, is_rejected: bool = False, is_approved: bool = False
) -> bool | None:
    """Did an advice hold? A person's later word first, then a rejection, then the facts, then what people did."""
    if feedback is not None:
        return feedback
    if is_rejected:
        return False
    if found.proved is not None:
        return found.proved
    return True if is_approved else found.agrees


def record_of(cases: Iterable[Judged], since: datetime) -> TrackRecord:
    """What is known of the advice given from `since` on. A stop that a person called right is no false stop."""
    known = [one for one in cases if one.advised_at >= since]
    decided = [one for one in known if one.held is not None]
    held = sum(one.held is True for one in decided)
    low, high = wilson(held, len(decided)) if decided else (None, None)
    return TrackRecord(
        decided=len(decided),
        held=held,
        pending=len(known) - len(decided),
        workloads=len({one.workload for one in decided}),
        false_stops=sum(one.is_false_stop and one.held is False for one in decided),
        low=low,
        high=high,
    )


def gate(record: TrackRecord, stage: Stage, wanted: Stage, bars: Mapping[Stage, Bar] = BARS) -> Gate:
    """May a class rise from `stage` to `wanted`? Only by one rung, and over its bar; down is always open."""
    if wanted.rung <= stage.rung:
        return Gate(stage=wanted)
    if wanted is not stage.following:
        return Gate(stage=wanted, missing=(f"one rung at a time: after {stage} comes {stage.following}",))
    bar = bars.get(wanted)
    if bar is None:
        return Gate(stage=wanted)
    low = record.low or 0.0
    checks = (
        (record.decided >= bar.cases, f"{record.decided} decided cases, {bar.cases} are needed"),
        (record.workloads >= bar.workloads, f"they are of {record.workloads} workloads, {bar.workloads} are needed"),
        (low >= bar.share, f"the advice held in {_share(record.share)}, so in {_share(low)} at least; "
                           f"{_share(bar.share)} are needed"),
        (bar.false_stops is None or record.false_stops <= bar.false_stops,
         f"{record.false_stops} false stops, {bar.false_stops} are allowed"),
    )  # fmt: skip
    return Gate(stage=wanted, missing=tuple(words for holds, words in checks if not holds))


def fall(record: TrackRecord, stage: Stage, bars: Mapping[Stage, Bar] = BARS) -> Fall | None:
    """Where a class belongs whose record fell below the bar of its stage, or None if it keeps it.

    It never falls below `notify`: a machine must not make itself unheard.
    """
    reasons: tuple[str, ...] = ()
    at = stage
    while at.rung > Stage.NOTIFY.rung and (why := _below(record, bars.get(at))):
        reasons = reasons or why
        at = _LADDER[at.rung - 1]
    return Fall(stage=at, reasons=reasons) if at is not stage else None


def _below(record: TrackRecord, bar: Bar | None) -> tuple[str, ...]:
    """Too many false stops; else enough cases that hold too seldom, or few that certainly do."""
    if bar is None or record.share is None or record.high is None:
        return ()
    if bar.false_stops is not None and record.false_stops > bar.false_stops:
        return (f"{record.false_stops} false stops, {bar.false_stops} are allowed",)
    if record.workloads < min(2, bar.workloads):
        return ()  # a single workload that fails in circles says nothing of its class
    if record.decided >= bar.cases and record.share < bar.share:
        return (f"the advice held in {_share(record.share)} of {record.decided} cases, below {_share(bar.share)}",)
    if record.decided >= FEW and record.high < bar.share:
        return (f"the advice held in {record.held} of {record.decided} cases, so in {_share(record.high)} at most; "
                f"{_share(bar.share)} are needed",)  # fmt: skip
    return ()


def _share(value: float | None) -> str:
    return "none" if value is None else f"{value * 100:.0f} %"
