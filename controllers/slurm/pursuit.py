# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One recovery under way, as it is stored: enough to go on from after a crash at any point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any

from controllers.slurm.advice import Advice
from controllers.slurm.plan import Wanted
from relight.hold_mark import HoldMark, MarkState
from relight.types import Action, AttemptId, NodeName, RecommendationId


@dataclass(kw_only=True)
class Pursuit:
    """Times as ISO text. `open_step` is a verb whose outcome is not known yet; `outbox` holds milestones that
    could not be sent when they were due; `times` are the moments that latencies are measured by; `checkpoint` is
    the last one that was complete when a merely slow run might be ended."""

    attempt: str
    job_id: str
    restart_count: int
    recommendation: str
    generation: int
    action: str
    ended_at: str
    settle_until: str
    gpus: int | None = None
    started_at: str = ""
    was_running: bool = False
    checkpoint: int | None = None
    exclusions: list[str] = field(default_factory=list)
    expires: dict[str, str] = field(default_factory=dict)
    delay_s: int = 0
    stop_grace_s: int = 0
    is_decided: bool = False
    held_at: str = ""
    hold_until: str = ""
    cancel_at: str = ""
    released_at: str = ""
    we_cancelled: bool = False
    lacks_capacity: bool = False
    added: list[str] = field(default_factory=list)
    token: str = ""
    lease_until: str = ""
    open_step: str = ""
    tries: dict[str, int] = field(default_factory=dict)
    done: dict[str, int] = field(default_factory=dict)
    outbox: list[dict[str, Any]] = field(default_factory=list)
    reached_at: str = ""
    reached_reason: str = ""
    verdict: dict[str, str] = field(default_factory=dict)
    incident: str = ""
    times: dict[str, str] = field(default_factory=dict)

    @property
    def id(self) -> RecommendationId:
        return RecommendationId(self.recommendation)

    def take(self, advice: Advice) -> None:
        """What the newest generation says."""
        self.generation = advice.generation
        self.action = str(advice.action or Action.NO_DECISION)
        self.exclusions = sorted(one.node for one in advice.exclusions)
        self.expires = {one.node: one.expires_at.isoformat() for one in advice.exclusions}
        self.delay_s, self.stop_grace_s = advice.delay_s, advice.stop_grace_s
        self.incident = str(advice.incident or "")

    def wanted(self, now: datetime) -> Wanted:
        return Wanted(
            recommendation=self.id,
            action=Action(self.action),
            restart_count=self.restart_count,
            exclusions=() if self.lacks_capacity else tuple(map(NodeName, self.exclusions)),
            unwanted=tuple(map(NodeName, self.added)) if self.lacks_capacity else (),
            was_running=self.was_running,
            started_at=datetime.fromisoformat(self.started_at) if self.started_at else None,
            we_held=bool(self.held_at),
            we_released=bool(self.released_at),
            we_cancelled=self.we_cancelled,
            is_overdue=bool(self.hold_until) and now >= datetime.fromisoformat(self.hold_until),
            is_decided=self.is_decided,
            is_grace_over=bool(self.cancel_at) and now >= datetime.fromisoformat(self.cancel_at),
        )

    def mark(self, state: MarkState) -> HoldMark:
        until = self.cancel_at if state is MarkState.STOPPED else self.hold_until
        return HoldMark(
            recommendation=self.id, generation=self.generation, restart_count=self.restart_count + 1,
            placed_at=datetime.fromisoformat(self.held_at), until=datetime.fromisoformat(until), state=state,
        )  # fmt: skip

    def stored(self) -> dict[str, Any]:
        return asdict(self)


def pursuit_from(body: Mapping[str, Any]) -> Pursuit:
    return Pursuit(**{name: body[name] for name in Pursuit.__dataclass_fields__ if name in body})


def new_pursuit(
    advice: Advice,
    *,
    job_id: str,
    restart_count: int,
    ended_at: datetime,
    started_at: datetime | None,
    was_running: bool,
    settle_until: datetime,
    now: datetime,
) -> Pursuit:
    begun = Pursuit(
        attempt=advice.attempt, job_id=job_id, restart_count=restart_count, recommendation=advice.id,
        generation=advice.generation, action=str(advice.action or Action.NO_DECISION), ended_at=ended_at.isoformat(),
        started_at=started_at.isoformat() if started_at else "", was_running=was_running,
        settle_until=settle_until.isoformat(),
        times={"ended": ended_at.isoformat(), "detected": now.isoformat(), "decided": advice.created_at.isoformat()},
    )  # fmt: skip
    begun.take(advice)
    return begun


def attempt_of(pursuit: Pursuit) -> AttemptId:
    return AttemptId(pursuit.attempt)
