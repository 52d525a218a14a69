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


class Did(StrEnum):
    """What became of a failed attempt without our doing."""

    RESTARTED = "restarted"
    RESTARTED_ELSEWHERE = "restarted_elsewhere"
    STOPPED = "stopped"
    PENDING = "pending"


@dataclass(frozen=True, slots=True, kw_only=True)
class Aftermath:
    """The facts after an advice. `gpu_hours` are those of the attempt that followed; None if not counted."""

    is_cancelled: bool
    ended_at: datetime | None
    restarted_at: datetime | None = None
    is_on_other_nodes: bool = False
    made_progress: bool | None = None
    gpu_hours: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """An advice beside what was done; `lead` is how long before people decided the advice stood."""

    recommendation: RecommendationId
    failure_class: FailureClass
    action: Action
    did: Did
    lead: timedelta | None = None
    false_stop_gpu_hours: float = 0.0
    missed_stop_gpu_hours: float = 0.0

    @property
    def agrees(self) -> bool | None:
        """None while people have not decided, where we did not, and where we only spoke after them."""
        if self.did is Did.PENDING or (self.lead is not None and self.lead <= timedelta(0)):
            return None
        match self.action:
            case Action.STOP:
                return self.did is Did.STOPPED
            case Action.RESTART:
                return self.did in {Did.RESTARTED, Did.RESTARTED_ELSEWHERE}
            case Action.RESTART_EXCLUDING:
                return self.did is Did.RESTARTED_ELSEWHERE
            case Action.CONTINUE | Action.NO_DECISION:
                return None


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
    hours = after.gpu_hours or 0.0
    restarted = did in {Did.RESTARTED, Did.RESTARTED_ELSEWHERE}
    return Match(
        recommendation=recommendation,
        failure_class=failure_class,
        action=action,
        did=did,
        lead=at - advised_at if at is not None else None,
        false_stop_gpu_hours=hours if action is Action.STOP and restarted and after.made_progress else 0.0,
        missed_stop_gpu_hours=hours
        if action in {Action.RESTART, Action.RESTART_EXCLUDING} and restarted and after.made_progress is False
        else 0.0,
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
        return (Did.RESTARTED_ELSEWHERE if after.is_on_other_nodes else Did.RESTARTED), after.restarted_at
    if after.is_cancelled:
        return Did.STOPPED, after.ended_at
    if after.ended_at is not None and now - after.ended_at >= PATIENCE:
        return Did.STOPPED, None
    return Did.PENDING, None
