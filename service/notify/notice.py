# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which recorded events are worth a message, and what the message says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from relight.events import (
    AuditRepaired,
    DetectorFailed,
    Event,
    IncidentAdvanced,
    IncidentOpened,
    ModeChanged,
    RecommendationExpired,
    RecommendationIssued,
    Repair,
    StageChanged,
    WatchdogReleased,
    to_json,
)
from relight.incidents import IncidentState
from relight.types import Action, Mode
from service.history import BREAKER
from service.promoting import DEMOTION
from service.terminal import escaped

AWAITING = "awaiting_approval"
_CLOSED = frozenset(one.value for one in IncidentState if one.is_closed)
_MAX_TEXT = 1_500


class Urgency(StrEnum):
    """How soon a person should look, in the words that PagerDuty uses."""

    CRITICAL = "critical"
    ERROR = "error"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One message. `subject` groups the messages of one matter; `is_over` ends it.

    `answer_by` is when the stated default applies: then nobody needs to have answered.
    """

    position: int
    kind: str
    at: datetime
    subject: str
    urgency: Urgency
    title: str
    text: str = ""
    cluster: str = ""
    incident: str = ""
    is_over: bool = False
    answer_by: datetime | None = None
    default: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """The same for every attempt to deliver this message."""
        return f"{self.position}"


def notice_of(position: int, event: Event) -> Notice | None:
    """The message for an event, None for those that nobody needs to be told of."""
    match event:
        case IncidentOpened():
            title = f"{event.workload or event.attempt}: {event.summary or 'a job is in trouble'}"
            return _notice(position, event, f"incident/{event.incident}", Urgency.ERROR, title, incident=event.incident)
        case IncidentAdvanced() if event.state in _CLOSED:
            title = f"{event.workload or event.attempt}: over, {event.reason or event.state}"
            return _notice(
                position,
                event,
                f"incident/{event.incident}",
                Urgency.INFO,
                title,
                incident=event.incident,
                is_over=True,
            )
        case RecommendationIssued() if event.action is not Action.NO_DECISION:
            return _advice(position, event)
        case RecommendationExpired() | WatchdogReleased():
            title = f"{event.workload or event.attempt}: nobody acted in time, normal scheduling goes on"
            subject = f"incident/{event.incident}" if event.incident else f"attempt/{event.attempt}"
            return _notice(position, event, subject, Urgency.WARNING, title, event.reason, incident=event.incident)
        case ModeChanged() if event.mode is Mode.MONITOR and event.actor == BREAKER:
            title = f"{event.scope} {event.target}: back to monitor, {event.reason}"
            return _notice(position, event, f"mode/{event.scope}/{event.target}", Urgency.CRITICAL, title)
        case StageChanged() if event.actor == DEMOTION:
            where = event.cluster or "every cluster"
            title = f"{event.failure_class} on {where}: from {event.previous} to {event.stage} by its own record"
            subject = f"stage/{event.cluster}/{event.failure_class}"
            return _notice(position, event, subject, Urgency.ERROR, title, event.reason)
        case DetectorFailed() if event.is_disabled or event.failures == 1:
            title = f"detector {event.detector} failed: its silence says nothing"
            return _notice(position, event, f"detector/{event.detector}", Urgency.WARNING, title, event.error)
        case AuditRepaired() if event.repair in {Repair.CHAIN_BROKEN, Repair.TAIL_MISSING}:
            title = f"the audit log does not hold: {event.repair}"
            return _notice(position, event, "audit", Urgency.CRITICAL, title, event.summary)
        case _:
            return None


def _advice(position: int, event: RecommendationIssued) -> Notice:
    nodes = ", ".join(one.node for one in event.exclusions)
    without = f" without {nodes}" if nodes and event.action is Action.RESTART_EXCLUDING else ""
    waits = AWAITING in event.blocked_by
    asks = "approve? " if waits else ""
    default = ""
    if waits:
        held, last = (one.astimezone(UTC).strftime("%H:%M:%S UTC") for one in (event.decide_deadline, event.expires_at))
        default = (f"No answer until {last} is a no: normal scheduling goes on. "
                   f"A job that is held for it waits until {held} only.")  # fmt: skip
    return _notice(
        position, event, f"incident/{event.incident or event.attempt}", Urgency.ERROR if waits else Urgency.WARNING,
        f"{asks}{event.workload or event.attempt}: {event.action}{without}, since {event.failure}",
        event.reason, incident=event.incident, answer_by=event.expires_at if waits else None, default=default,
    )  # fmt: skip


def _notice(
    position: int, event: Event, subject: str, urgency: Urgency, title: str, text: str = "", *,
    incident: str | None = None, is_over: bool = False, answer_by: datetime | None = None, default: str = "",
) -> Notice:  # fmt: skip
    """Words of a log are made harmless here, once for all channels."""
    said = to_json(event)
    kept = ("kind", "schema", "incident", "attempt", "workload", "cluster", "recommendation", "generation", "action",
            "mode", "failure", "failure_class", "evidence_status", "is_actionable", "decide_deadline", "expires_at",
            "exclusions", "reason", "state", "stage", "previous", "detector", "repair")  # fmt: skip
    return Notice(
        position=position,
        kind=event.kind,
        at=event.at,
        subject=subject,
        urgency=urgency,
        title=escaped(title)[:300],
        text=escaped(text)[:_MAX_TEXT],
        cluster=str(getattr(event, "cluster", None) or ""),
        incident=incident or "",
        is_over=is_over,
        answer_by=answer_by,
        default=default,
        data={name: said[name] for name in kept if said.get(name) not in (None, "")},
    )
