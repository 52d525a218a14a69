# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Claim, reconciliation and milestones: how a controller acts on a recommendation and reports it."""

from __future__ import annotations

from enum import StrEnum

from fastapi import Response
from pydantic import Field

from relight.events import Disposition, MilestonePhase
from relight.types import RecommendationId
from service.api.access import App, recommendation_of, resource
from service.api.problems import documented
from service.api.recommendation_wire import RecommendationTold, recommendation_told
from service.api.security import Caller, permits
from service.api.wire import Actor, Ask, Count, Identifier, JsonObject, Moment, Node, PathId, Told
from service.reconciling import Milestone, Report
from service.tokens import Permission

router = resource("controllers")


class ReportReason(StrEnum):
    DESIRED_STATE_OBSERVED = "desired_state_observed"
    ALREADY_SATISFIED = "already_satisfied"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    USER_CANCELLED = "user_cancelled"
    USER_RELEASED = "user_released"
    NOT_REQUEUEABLE = "not_requeueable"
    NO_CAPACITY = "no_capacity"
    SCHEDULER_REFUSED = "scheduler_refused"
    BREAKER_OPEN = "breaker_open"
    MODE_MONITOR = "mode_monitor"


class MilestoneStep(StrEnum):
    REQUEUE_HOLD = "requeue_hold"
    SET_EXCLUSIONS = "set_exclusions"
    RELEASE = "release"
    CANCEL = "cancel"
    K8S_PATCH = "k8s_patch"


class ClaimAsk(Ask):
    controller_id: Actor
    observed_generation: Count
    lease_s: float = Field(default=60, ge=1, le=3600)


class LeaseTold(Told):
    """`claim_token` is told here and nowhere else; every newer claim makes the older token worthless."""

    claim_token: str
    controller_id: str
    generation: int
    lease_expires_at: Moment
    is_renewal: bool
    recommendation: RecommendationTold


class Observation(Ask):
    job_state: str | None = Field(default=None, max_length=200)
    restart_count: Count | None = None
    exc_nodes: list[Node] | None = Field(default=None, max_length=65_536)
    held: bool | None = None


class ReconciliationAsk(Ask):
    observed_generation: Count
    disposition: Disposition
    reason: ReportReason | None = None
    observation: Observation = Observation()
    claim_token: str | None = Field(default=None, max_length=200)


class MilestoneAsk(Ask):
    recommendation_id: Identifier
    step: MilestoneStep
    phase: MilestonePhase
    idempotency_key: Identifier
    detail: JsonObject = Field(default={}, max_length=32)


class MilestoneTold(Told):
    recommendation_id: str
    step: str
    phase: str
    idempotency_key: str
    actor: str
    at: Moment


@router.post(
    "/recommendations/{recommendation_id}/claim",
    operation_id="claimRecommendation",
    responses=documented(404, 409, 413, 415),
)
@permits(Permission.CONTROL)
def claim_recommendation(recommendation_id: PathId, body: ClaimAsk, caller: Caller, app: App) -> LeaseTold:
    """Take or renew the lease; the mode is read afresh."""
    known = recommendation_of(caller, app, recommendation_id)
    lease = app.reconciliation.claim(known.id, body.controller_id, body.observed_generation, body.lease_s)
    return LeaseTold(
        claim_token=lease.token,
        controller_id=body.controller_id,
        generation=lease.recommendation.generation,
        lease_expires_at=lease.expires_at,
        is_renewal=lease.is_renewal,
        recommendation=recommendation_told(app, lease.recommendation, app.journal.now()),
    )


@router.put(
    "/recommendations/{recommendation_id}/reconciliation",
    operation_id="putReconciliation",
    responses=documented(404, 409, 413, 415),
)
@permits(Permission.CONTROL)
def put_reconciliation(
    recommendation_id: PathId, body: ReconciliationAsk, caller: Caller, app: App
) -> RecommendationTold:
    """Report on one generation: the last writer wins, an older generation is refused."""
    known = recommendation_of(caller, app, recommendation_id)
    said = Report(
        generation=body.observed_generation,
        disposition=body.disposition,
        reason=body.reason or "",
        observation=body.observation.model_dump(exclude_none=True),
        token=body.claim_token,
        actor=caller.client,
    )
    return recommendation_told(app, app.reconciliation.report(known.id, said), app.journal.now())


@router.post(
    "/milestones",
    operation_id="recordMilestone",
    status_code=201,
    responses=documented(404, 409, 413, 415)
    | {200: {"model": MilestoneTold, "description": "Recorded before under this key"}},
)
@permits(Permission.CONTROL)
def record_milestone(body: MilestoneAsk, caller: Caller, app: App, response: Response) -> MilestoneTold:
    """Put a verb on record before it is sent (intent) and after the answer (done, error)."""
    known = recommendation_of(caller, app, body.recommendation_id)
    said = Milestone(
        step=body.step,
        phase=body.phase,
        key=body.idempotency_key,
        actor=caller.client,
        detail=body.detail,
    )
    event, is_new = app.reconciliation.milestone(RecommendationId(known.id), said)
    if not is_new:
        response.status_code = 200
    return MilestoneTold(
        recommendation_id=event.recommendation,
        step=event.step,
        phase=event.phase,
        idempotency_key=event.idempotency_key,
        actor=event.actor,
        at=event.at,
    )
