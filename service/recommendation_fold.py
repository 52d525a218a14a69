# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What an event about a recommendation makes of it."""

from __future__ import annotations

from dataclasses import replace
from typing import assert_never

from relight.events import (
    Disposition,
    FeedbackGiven,
    MilestonePhase,
    MilestoneRecorded,
    RecommendationApproved,
    RecommendationClaimed,
    RecommendationExpired,
    RecommendationRejected,
    RecommendationSuperseded,
    ReconciliationReported,
)
from relight.incidents import RecommendationState
from service.records import Claim, RecommendationRecord

AboutRecommendation = (
    RecommendationApproved
    | RecommendationRejected
    | RecommendationClaimed
    | RecommendationSuperseded
    | RecommendationExpired
    | ReconciliationReported
    | MilestoneRecorded
    | FeedbackGiven
)
_REPORTED = {
    Disposition.PENDING: RecommendationState.ACTING,
    Disposition.CONVERGED: RecommendationState.CONVERGED,
    Disposition.ABANDONED: RecommendationState.ABANDONED,
    Disposition.FAILED: RecommendationState.FAILED,
}


def advanced(
    known: RecommendationRecord,
    event: AboutRecommendation,
) -> RecommendationRecord:
    """The record after the event; what may happen when was decided before it was recorded."""
    match event:
        case RecommendationApproved():
            return replace(known, state=RecommendationState.APPROVED, approved=event)
        case RecommendationRejected():
            return replace(known, state=RecommendationState.REJECTED, rejected=event)
        case RecommendationClaimed():
            acting = known.state is RecommendationState.ACTING
            claim = Claim(
                controller=event.actor, generation=event.generation,
                lease_expires_at=event.lease_expires_at, token_sha256=event.claim_token_sha256,
            )  # fmt: skip
            return replace(known, claim=claim, state=known.state if acting else RecommendationState.CLAIMED)
        case RecommendationSuperseded():
            state = RecommendationState.SUPERSEDED
            return replace(known, state=state, superseded_by=event.superseded_by)
        case RecommendationExpired():
            return replace(known, state=RecommendationState.EXPIRED)
        case ReconciliationReported():
            return replace(known, state=_REPORTED[event.disposition], reconciliation=event)
        case MilestoneRecorded():
            begins = event.phase is MilestonePhase.INTENT and known.state is RecommendationState.CLAIMED
            state = RecommendationState.ACTING if begins else known.state
            return replace(known, state=state, milestones=(*known.milestones, event))
        case FeedbackGiven():
            return replace(known, feedback=(*known.feedback, event))
        case _ as unhandled:
            assert_never(unhandled)
