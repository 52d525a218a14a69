# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What happens to a recommendation beside its own making: it is superseded, lapses, or opens an incident with it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import TypeGuard

from relight.events import Event, IncidentOpened, RecommendationExpired, RecommendationSuperseded
from relight.incidents import IncidentState, RecommendationState
from relight.types import RecommendationId
from service.records import IncidentRecord, RecommendationRecord

UNASKED = "relight"
BY_A_PERSON = "a person proposed something else"
BY_AN_INCIDENT = "another incident began"
BY_A_QUESTION = "it was asked about again after its time was over"


def is_shadow(known: RecommendationRecord | None) -> TypeGuard[RecommendationRecord]:
    """True for advice that only was to be looked at: it never closes by itself."""
    return known is not None and known.state is RecommendationState.SHADOW


def is_lapsed(known: RecommendationRecord, now: datetime) -> bool:
    """True if its time is over and nobody acted on it."""
    is_unanswered = known.state is RecommendationState.EXPIRED or known.state is RecommendationState.SHADOW
    return is_unanswered and now >= known.issued.expires_at


def superseded(
    before: RecommendationRecord, by: RecommendationId, now: datetime, reason: str
) -> RecommendationSuperseded:
    issued = before.issued
    return RecommendationSuperseded(
        at=now,
        recommendation=before.id,
        superseded_by=by,
        generation=before.generation,
        reason=reason,
        attempt=issued.attempt,
        incident=issued.incident,
        workload=issued.workload,
        cluster=issued.cluster,
    )


def expired(known: RecommendationRecord, now: datetime) -> RecommendationExpired:
    issued = known.issued
    return RecommendationExpired(
        at=now,
        recommendation=known.id,
        generation=known.generation,
        reason=f"nobody acted until {issued.expires_at.isoformat()}",
        attempt=issued.attempt,
        incident=issued.incident,
        workload=issued.workload,
        cluster=issued.cluster,
    )


def opened_by(events: Iterable[Event]) -> IncidentRecord | None:
    """The incident that these events are about to open, as the fold will have it."""
    for event in events:
        if isinstance(event, IncidentOpened):
            return IncidentRecord(opened=event, position=0, revision=0, state=IncidentState.OPEN, changed_at=event.at)
    return None
