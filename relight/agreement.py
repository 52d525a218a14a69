# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What people did where Relight only watched, matched with what it advised: the grounds for trusting it more."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from relight.types import Action, FailureClass, RecommendationId

PATIENCE = timedelta(hours=24)
Z_95 = 1.96
_RESTARTS = frozenset({Action.RESTART, Action.RESTART_EXCLUDING})


class Did(StrEnum):
    """What became of a failed attempt without our doing."""

    RESTARTED = "restarted"
    RESTARTED_ELSEWHERE = "restarted_elsewhere"
    RESUBMITTED = "resubmitted"
    DRAINED = "drained"
    STOPPED = "stopped"
    PENDING = "pending"


_SAME_JOB = frozenset({Did.RESTARTED, Did.RESTARTED_ELSEWHERE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """The facts after an advice. `gpu_hours` are those of the attempt that followed; None if not counted.

    `is_resubmitted`: the attempt that followed is another job, whose code or settings may have changed.
    `drained_at`: when somebody took an accused node out. `came_back`: it ended by the same failure and got no further.
    """

    is_cancelled: bool
    ended_at: datetime | None
    restarted_at: datetime | None = None
    is_on_other_nodes: bool = False
    is_resubmitted: bool = False
    drained_at: datetime | None = None
    came_back: bool = False
    made_progress: bool | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An advice beside what was done; `lead` is how long before people decided the advice stood.

    `proved` is what the next attempt proved of the advice, whatever anybody thought of it; None if nothing.
    """

    recommendation: RecommendationId
    failure_class: FailureClass
    action: Action
    did: Did
    lead: timedelta | None = None
    proved: bool | None = None
    is_false_stop: bool = False
    false_stop_gpu_hours: float = 0.0
    missed_stop_gpu_hours: float = 0.0

    @property
    def agrees(self) -> bool | None:
        """None while people have not decided, where we did not, and where we only spoke after them."""
        if self.did is Did.PENDING or self.is_late:
            return None
        match self.action:
            case Action.STOP if self.did is Did.RESUBMITTED:
                return None  # whether anything was changed first, nobody tells us
            case Action.STOP | Action.RESTART if self.did is Did.DRAINED:
                return None  # the node was judged, and the job not yet
            case Action.STOP:
                return self.did is Did.STOPPED
            case Action.RESTART:
                return self.did is not Did.STOPPED
            case Action.RESTART_EXCLUDING:
                return self.did in {Did.RESTARTED_ELSEWHERE, Did.DRAINED}
            case Action.CONTINUE | Action.NO_DECISION:
                return None

    @property
    def is_late(self) -> bool:
        return self.lead is not None and self.lead <= timedelta(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """Agreement over decided matches, with the 95 % interval of Wilson; None without any."""

    decided: int
    agreed: int
    low: float | None
    high: float | None
    median_lead: timedelta | None
    false_stop_gpu_hours: float
    missed_stop_gpu_hours: float


def match(
    recommendation: RecommendationId, failure_class: FailureClass, action: Action, advised_at: datetime,
    after: Aftermath, now: datetime,
) -> Match:  # fmt: skip
    """A day without another attempt is a stop; until then nobody has decided."""
    did, at = _did(after, now)
    lead = at - advised_at if at is not None else None
    is_late = lead is not None and lead <= timedelta(0)
    hours = after.gpu_hours or 0.0
    is_false_stop = action is Action.STOP and did in _SAME_JOB and after.made_progress is True and not is_late
    went_on = did not in {Did.PENDING, Did.STOPPED, Did.DRAINED}
    is_missed = action in _RESTARTS and went_on and after.made_progress is False
    return Match(
        recommendation=recommendation,
        failure_class=failure_class,
        action=action,
        did=did,
        lead=lead,
        proved=None if is_late else _proved(action, did, after),
        is_false_stop=is_false_stop,
        false_stop_gpu_hours=hours if is_false_stop else 0.0,
        missed_stop_gpu_hours=hours if is_missed else 0.0,
    )


def score(matches: Iterable[Match]) -> Score:
    known = list(matches)
    decided = [one for one in known if one.agrees is not None]
    agreed = sum(one.agrees is True for one in decided)
    low, high = wilson(agreed, len(decided)) if decided else (None, None)
    leads = sorted(one.lead for one in decided if one.lead is not None)
    return Score(
        decided=len(decided),
        agreed=agreed,
        low=low,
        high=high,
        median_lead=leads[len(leads) // 2] if leads else None,
        false_stop_gpu_hours=sum(one.false_stop_gpu_hours for one in known),
        missed_stop_gpu_hours=sum(one.missed_stop_gpu_hours for one in known),
    )


def matrix(matches: Iterable[Match]) -> Mapping[tuple[Action, Did], int]:
    return Counter((one.action, one.did) for one in matches)


def wilson(agreed: int, decided: int) -> tuple[float, float]:
    """The 95 % score interval of a proportion; it stays inside 0..1 and is honest for few cases.

    Errors: ValueError unless 0 <= agreed <= decided and decided > 0.
    """
    if not 0 <= agreed <= decided or decided == 0:
        raise ValueError(f"need 0 <= agreed <= decided and decided > 0, got agreed={agreed} decided={decided}")
    share, z2 = agreed / decided, Z_95**2
    middle = (share + z2 / (2 * decided)) / (1 + z2 / decided)
    half = Z_95 * math.sqrt(share * (1 - share) / decided + z2 / (4 * decided**2)) / (1 + z2 / decided)
    return max(middle - half, 0.0), min(middle + half, 1.0)


def _did(after: Aftermath, now: datetime) -> tuple[Did, datetime | None]:
    if after.restarted_at is not None:
        if after.is_on_other_nodes:
            return Did.RESTARTED_ELSEWHERE, min(after.restarted_at, after.drained_at or after.restarted_at)
        return (Did.RESUBMITTED if after.is_resubmitted else Did.RESTARTED), after.restarted_at
    if after.is_cancelled:
        return Did.STOPPED, after.ended_at
    if after.drained_at is not None:
        return Did.DRAINED, after.drained_at
    if after.ended_at is not None and now - after.ended_at >= PATIENCE:
        return Did.STOPPED, None
    return Did.PENDING, None


def _proved(action: Action, did: Did, after: Aftermath) -> bool | None:
    """A plain restart that fails alike has spent a retry, which policy allows: it proves nothing."""
    match action:
        case Action.STOP if did in _SAME_JOB and after.made_progress is not None:
            return not after.made_progress
        case Action.STOP if did is Did.RESUBMITTED and after.came_back:
            return True
        case Action.RESTART if did in _SAME_JOB and after.made_progress:
            return True
        case Action.RESTART_EXCLUDING if did is Did.RESTARTED_ELSEWHERE and (after.made_progress or after.came_back):
            return bool(after.made_progress)
        case Action.RESTART_EXCLUDING if after.came_back:
            return True  # the accused node was kept, and the failure with it
        case _:
            return None
