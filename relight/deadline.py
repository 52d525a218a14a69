# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which of our holds the watchdog must let go at a given time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from relight.types import AttemptId, RecommendationId

HOLD_TAG = "relight"
HARD_DEADLINE = timedelta(seconds=240)


class HoldPurpose(StrEnum):
    """Why a job is held: a decision is awaited, or the verdict was to stop and a person must look."""

    DECIDING = "deciding"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A job kept from being scheduled. `tag` says who holds it: what is not ours is never touched."""

    attempt: AttemptId
    tag: str
    placed_at: datetime
    decide_deadline: datetime | None = None
    purpose: HoldPurpose = HoldPurpose.DECIDING
    recommendation: RecommendationId | None = None
    generation: int = 0

    def due_at(self, hard: timedelta = HARD_DEADLINE) -> datetime:
        """When the hold ends: at its own deadline, and `hard` after it was placed at the latest."""
        latest = self.placed_at + hard
        return latest if self.decide_deadline is None else min(self.decide_deadline, latest)


def overdue(
    holds: Iterable[Hold], at: datetime, *, tag: str = HOLD_TAG, hard: timedelta = HARD_DEADLINE
) -> tuple[Hold, ...]:
    """The holds to be released at `at`, the longest overdue first.

    Only holds that bear `tag` and await a decision: a stop is a decision, and other people's holds are
    theirs. A hold placed in the future (a clock that went back) is judged by its deadline alone.
    """
    late = (h for h in holds if h.tag == tag and h.purpose is HoldPurpose.DECIDING and h.due_at(hard) <= at)
    return tuple(sorted(late, key=lambda h: (h.due_at(hard), h.attempt)))


def next_due(holds: Iterable[Hold], *, tag: str = HOLD_TAG, hard: timedelta = HARD_DEADLINE) -> datetime | None:
    """When the watchdog must look again at the latest; None while nothing of ours awaits a decision."""
    ours = (h.due_at(hard) for h in holds if h.tag == tag and h.purpose is HoldPurpose.DECIDING)
    return min(ours, default=None)
