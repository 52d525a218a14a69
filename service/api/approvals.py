# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Approve, reject and feedback: what people say of a recommendation."""

from __future__ import annotations

from collections.abc import Callable

from pydantic import Field

from relight.events import FeedbackVerdict
from relight.types import FailureName
from service.api.access import App, recommendation_of, resource
from service.api.problems import documented
from service.api.recommendation_wire import RecommendationTold, recommendation_told
from service.api.security import Caller, permits
from service.api.wire import Actor, Ask, Count, PathId, Words
from service.application import Application
from service.approval import Feedback
from service.records import RecommendationRecord
from service.tokens import Permission, Principal

router = resource("approvals")


class AnswerAsk(Ask):
    """With `generation` the answer counts only for what that generation said."""

    actor: Actor
    note: Words = ""
    generation: Count | None = None


class FeedbackAsk(Ask):
    actor: Actor
    verdict: FeedbackVerdict = Field(examples=["wrong"])
    true_failure: str | None = Field(default=None, pattern=r"^[a-z][a-z0-9_]{1,63}$")
    note: Words = ""


@router.post(
    "/recommendations/{recommendation_id}/approve",
    operation_id="approveRecommendation",
    responses=documented(404, 409, 413, 415),
)
@permits(Permission.OPERATE)
def approve_recommendation(recommendation_id: PathId, body: AnswerAsk, caller: Caller, app: App) -> RecommendationTold:
    """Clear the way for a controller; a repetition changes nothing."""
    return _answered(app.approval.approve, recommendation_id, body, caller, app)


@router.post(
    "/recommendations/{recommendation_id}/reject",
    operation_id="rejectRecommendation",
    responses=documented(404, 409, 413, 415),
)
@permits(Permission.OPERATE)
def reject_recommendation(recommendation_id: PathId, body: AnswerAsk, caller: Caller, app: App) -> RecommendationTold:
    """Leave the attempt to the scheduler's own rule."""
    return _answered(app.approval.reject, recommendation_id, body, caller, app)


@router.post(
    "/recommendations/{recommendation_id}/feedback",
    operation_id="giveFeedback",
    responses=documented(404, 409, 413, 415),
)
@permits(Permission.FEEDBACK)
def give_feedback(recommendation_id: PathId, body: FeedbackAsk, caller: Caller, app: App) -> RecommendationTold:
    """Say afterwards whether it was right, and what the failure really was."""
    known = recommendation_of(caller, app, recommendation_id)
    said = Feedback(
        verdict=body.verdict,
        actor=body.actor,
        true_failure=FailureName(body.true_failure) if body.true_failure else None,
        note=body.note,
    )
    return recommendation_told(app, app.approval.feedback(known.id, said), app.journal.now())


def _answered(
    answer: Callable[..., RecommendationRecord], name: str, body: AnswerAsk, caller: Principal, app: Application
) -> RecommendationTold:
    known = recommendation_of(caller, app, name)
    return recommendation_told(app, answer(known.id, body.actor, body.note, body.generation), app.journal.now())
