# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The mark that our holds bear in a job's comment: whose hold it is, for which run, and until when."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from relight.deadline import HOLD_TAG, Hold, HoldPurpose
from relight.types import AttemptId, RecommendationId


class MarkState(StrEnum):
    """What the hold is for: a decision, a stop, or nothing any more since the watchdog let go."""

    DECIDING = "deciding"
    STOPPED = "stopped"
    EXPIRED = "expired"


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldMark:
    """`restart_count` is that of the run which is held, so that an old mark says nothing of a later run."""

    recommendation: RecommendationId
    generation: int
    restart_count: int
    placed_at: datetime
    until: datetime
    state: MarkState = MarkState.DECIDING

    def text(self) -> str:
        """One word without spaces; times are whole seconds since 1970."""
        return (
            f"{HOLD_TAG}:{self.state}/{self.recommendation}/{self.generation}/{self.restart_count}"
            f"/{int(self.placed_at.timestamp())}/{int(self.until.timestamp())}"
        )

    def as_hold(self, attempt: AttemptId) -> Hold:
        """The hold as the deadline rules see it; what the watchdog expired but left held is still due."""
        is_stop = self.state is MarkState.STOPPED
        return Hold(
            attempt=attempt,
            tag=HOLD_TAG,
            placed_at=self.placed_at,
            decide_deadline=None if is_stop else self.until,
            purpose=HoldPurpose.STOPPED if is_stop else HoldPurpose.DECIDING,
            recommendation=self.recommendation,
            generation=self.generation,
        )


_MARK = re.compile(
    rf"(?<!\S){HOLD_TAG}:(deciding|stopped|expired)/([A-Za-z0-9._-]{{1,80}})/(\d{{1,9}})/(\d{{1,9}})"
    r"/(\d{1,11})/(\d{1,11})(?!\S)"
)
_ANY_MARK = re.compile(rf"(?<!\S){HOLD_TAG}:(?:deciding|stopped|expired)/\S*")


def read_mark(text: str) -> HoldMark | None:
    """The last well-formed mark in a comment, None if there is none."""
    found = list(_MARK.finditer(text))
    if not found:
        return None
    state, name, generation, restarts, placed, until = found[-1].groups()
    return HoldMark(
        recommendation=RecommendationId(name),
        generation=int(generation),
        restart_count=int(restarts),
        placed_at=datetime.fromtimestamp(int(placed), UTC),
        until=datetime.fromtimestamp(int(until), UTC),
        state=MarkState(state),
    )


def with_mark(comment: str, mark: HoldMark | None) -> str:
    """The comment with our mark set, replaced or, for None, taken away; other people's words stay."""
    bare = " ".join(_ANY_MARK.sub(" ", comment).split())
    return bare if mark is None else f"{bare} {mark.text()}".strip()
