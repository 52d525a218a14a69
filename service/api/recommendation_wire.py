# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A recommendation as controllers read it, and the one converter that makes it."""

from __future__ import annotations

from datetime import datetime

from pydantic import ConfigDict, Field

from relight.types import Exclusion
from service.api.wire import FromLog, JsonObject, Moment, Told, tag
from service.application import Application
from service.records import RecommendationRecord


class ExclusionTold(Told):
    node: str
    reason: FromLog
    score: float
    scope: str = Field(examples=["workload"])
    expires_at: Moment


class ClaimTold(Told):
    controller_id: str
    generation: int
    lease_expires_at: Moment


class ReconciliationTold(Told):
    disposition: str
    reason: str
    observation: JsonObject
    actor: str
    at: Moment


class RecommendationTold(Told):
    """What to do about an attempt; `actionable` and `blocked_by` are read afresh at every answer."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, title="Recommendation")

    id: str
    attempt_id: str
    workload_id: str | None
    cluster_id: str | None
    incident_id: str | None
    generation: int
    revision: int
    action: str = Field(examples=["restart", "restart_excluding", "stop", "continue", "no_decision"])
    exclusions: list[ExclusionTold]
    reason: FromLog
    failure: str
    failure_class: str = Field(alias="class")
    retry_outlook: str
    evidence_status: str
    decision_basis: FromLog
    ledgers: JsonObject
    confidence: float | None
    signature_id: str | None
    rule_set_hash: str
    policy_version: str
    model_version: str
    trigger: str
    origin: str = Field(examples=["policy", "person"])
    author: str
    mode_at_decision: str
    actionable: bool
    blocked_by: list[str]
    delay_s: int
    stop_grace_s: int
    created_at: Moment
    decide_deadline: Moment
    expires_at: Moment
    supersedes: str | None
    superseded_by: str | None
    state: str
    claim: ClaimTold | None
    reconciliation: ReconciliationTold | None
    etag: str = ""


def recommendation_told(app: Application, known: RecommendationRecord, at: datetime) -> RecommendationTold:
    issued = known.issued
    body = RecommendationTold(
        id=known.id,
        attempt_id=issued.attempt,
        workload_id=issued.workload,
        cluster_id=issued.cluster,
        incident_id=issued.incident,
        generation=known.generation,
        revision=known.revision,
        action=issued.action,
        exclusions=[exclusion_told(one) for one in issued.exclusions],
        reason=issued.reason,
        failure=issued.failure,
        failure_class=issued.failure_class,
        retry_outlook=issued.retry_outlook,
        evidence_status=issued.evidence_status,
        decision_basis=issued.decision_basis,
        ledgers=dict(issued.ledgers),
        confidence=issued.confidence,
        signature_id=issued.signature,
        rule_set_hash=issued.rule_set_hash,
        policy_version=issued.policy_version,
        model_version=issued.model_version,
        trigger=issued.trigger,
        origin="policy" if issued.verdict else "person",
        author=issued.actor,
        mode_at_decision=issued.mode,
        actionable=app.gates.is_actionable(known, at),
        blocked_by=list(app.gates.blocked_by(known, at)),
        delay_s=issued.delay_s,
        stop_grace_s=issued.stop_grace_s,
        created_at=known.created_at,
        decide_deadline=issued.decide_deadline,
        expires_at=issued.expires_at,
        supersedes=issued.supersedes,
        superseded_by=known.superseded_by,
        state=known.state,
        claim=_claim(known),
        reconciliation=_reconciliation(known),
    )
    return body.model_copy(update={"etag": tag(body)})


def exclusion_told(one: Exclusion) -> ExclusionTold:
    return ExclusionTold(node=one.node, reason=one.reason, score=one.score, scope=one.scope, expires_at=one.expires_at)


def _claim(known: RecommendationRecord) -> ClaimTold | None:
    if known.claim is None:
        return None
    return ClaimTold(
        controller_id=known.claim.controller,
        generation=known.claim.generation,
        lease_expires_at=known.claim.lease_expires_at,
    )


def _reconciliation(known: RecommendationRecord) -> ReconciliationTold | None:
    said = known.reconciliation
    if said is None:
        return None
    return ReconciliationTold(
        disposition=said.disposition,
        reason=said.reason,
        observation=dict(said.observation),
        actor=said.actor,
        at=said.at,
    )
