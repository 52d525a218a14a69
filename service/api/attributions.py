# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`POST /v1/attributions`: bring your own attribution; it may raise a new generation, and never acts."""

from __future__ import annotations

from typing import Annotated

from fastapi import Response
from pydantic import ConfigDict, Field

from relight.policy import RetryOutlook
from relight.types import (
    Attribution,
    EvidenceStatus,
    FailureClass,
    FailureName,
    LogRef,
    NodeName,
    Rank,
    Suspect,
)
from service.advisor import BUILTIN
from service.api.access import App, attempt_of, resource
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.wire import Ask, Count, Identifier, Moment, Node, Told, Words
from service.tokens import Permission

router = resource("attributions")


class Implicated(Ask):
    node: Node | None = None
    rank: int | None = Field(default=None, ge=0, le=10_000_000)
    gpu: str | None = Field(default=None, max_length=64)
    score: float = Field(default=1.0, ge=0, le=1)
    reason: Words = ""


class EvidenceRef(Ask):
    file: str = Field(max_length=1_000)
    line: Count


class AttributionAsk(Ask):
    model_config = ConfigDict(populate_by_name=True)

    attempt_id: Identifier
    failure: str = Field(pattern=r"^[a-z][a-z0-9_]{1,63}$", examples=["gpu_fell_off_bus"])
    failure_class: FailureClass = Field(alias="class")
    retry_outlook: RetryOutlook = RetryOutlook.UNKNOWN
    evidence_status: EvidenceStatus
    implicated: Annotated[list[Implicated], Field(max_length=1_000)] = Field(default=[])
    evidence_refs: Annotated[list[EvidenceRef], Field(max_length=1_000)] = Field(default=[])
    summary: Words = ""
    attributor: Identifier
    version: Identifier


class AttributionTold(Told):
    model_config = ConfigDict(frozen=True, populate_by_name=True)

    attempt_id: str
    failure: str
    failure_class: str = Field(alias="class")
    evidence_status: str
    attributor: str
    version: str
    recorded_at: Moment
    recommendation_id: str | None
    generation: int | None


@router.post(
    "/attributions",
    operation_id="addAttribution",
    status_code=201,
    responses=documented(404, 413, 415)
    | {200: {"model": AttributionTold, "description": "Recorded before under this attributor and version"}},
)
@permits(Permission.AUTHOR)
def add_attribution(body: AttributionAsk, caller: Caller, app: App, response: Response) -> AttributionTold:
    """The key is (attributor, attempt_id, version); a richer one than ours revises what was not acted on.

    Accused nodes count as one more witness, never as an independent one.
    """
    if body.attributor == BUILTIN:
        raise Problem("invalid", f"attributor {BUILTIN!r} is our own name, choose another")
    attempt = attempt_of(caller, app, body.attempt_id)
    record, is_new = app.advisor.add_attribution(_attribution(body), attempt.id, body.version)
    response.status_code = 201 if is_new else 200
    with app.journal.view:
        advice = app.journal.state.latest_recommendation(attempt.id)
    event = record.event
    return AttributionTold(
        attempt_id=event.attempt,
        failure=event.failure,
        failure_class=event.failure_class,
        evidence_status=event.evidence_status,
        attributor=event.attributor,
        version=event.version,
        recorded_at=event.at,
        recommendation_id=advice.id if advice else None,
        generation=advice.generation if advice else None,
    )


def _attribution(body: AttributionAsk) -> Attribution:
    return Attribution(
        failure=FailureName(body.failure),
        failure_class=body.failure_class,
        evidence_status=body.evidence_status,
        ranks=tuple(dict.fromkeys(Rank(one.rank) for one in body.implicated if one.rank is not None)),
        suspects=tuple(
            Suspect(
                node=NodeName(one.node) if one.node else None,
                rank=Rank(one.rank) if one.rank is not None else None,
                gpu=one.gpu,
                score=one.score,
                reason=one.reason,
            )
            for one in body.implicated
        ),
        confirmations=tuple(LogRef(file=one.file, line=one.line) for one in body.evidence_refs),
        summary=body.summary,
        attributor=body.attributor,
    )
