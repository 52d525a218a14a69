# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`GET /v1/anomalies`: what detectors claimed, newest first."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query
from pydantic import Field

from relight.types import AnomalyKind, AttemptId
from service.api.access import App, resource
from service.api.problems import documented
from service.api.security import Caller, permits
from service.api.wire import DEFAULT_PAGE, Cursor, FromLog, JsonObject, Limit, Moment, Page, Told, page
from service.records import AnomalyRecord
from service.tokens import Permission

router = resource("incidents")


class Place(Told):
    """A line of a log, counted from 1."""

    file: str
    line: int


class AnomalyTold(Told):
    id: str
    attempt_id: str
    incident_id: str | None
    kind: str
    detector: str
    onset_at: Moment
    detected_at: Moment
    detection_latency_s: float
    score: float
    threshold: float | None
    baseline: float | None
    evidence: list[Place]
    summary: FromLog
    tier: str = Field(description="`suspect` is recorded only; `confirmed` may open an incident")
    scope: str = Field(description="what is meant: job (culprit unknown), stage, node or rank")
    rank: int | None
    node: str | None
    detail: JsonObject


@router.get("/anomalies", operation_id="listAnomalies", responses=documented())
@permits(Permission.READ)
def list_anomalies(
    caller: Caller,
    app: App,
    attempt: Annotated[str | None, Query(max_length=200)] = None,
    kind: AnomalyKind | None = None,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
) -> Page[AnomalyTold]:
    """Claims of detectors; detection latency is from the onset to the claim."""
    with app.journal.view:
        state = app.journal.state
        known = state.anomalies if attempt is None else state.anomalies_of.get(AttemptId(attempt), [])
        found = [
            one for one in known if caller.may_see(one.event.cluster or "") and kind in (None, one.event.anomaly.kind)
        ]
    cut, following = page(found, lambda one: one.position, limit, cursor)
    return Page(items=[anomaly_told(one) for one in cut], next_cursor=following)


def anomaly_told(record: AnomalyRecord) -> AnomalyTold:
    one = record.event.anomaly
    return AnomalyTold(
        id=record.id,
        attempt_id=one.attempt,
        incident_id=record.event.incident,
        kind=one.kind,
        detector=one.detector,
        onset_at=one.onset_at,
        detected_at=one.detected_at,
        detection_latency_s=one.latency_s,
        score=one.score,
        threshold=one.threshold,
        baseline=one.baseline,
        evidence=[Place(file=where.file, line=where.line) for where in one.evidence],
        summary=one.summary,
        tier=one.tier,
        scope=one.scope,
        rank=one.rank,
        node=one.node,
        detail=dict(one.detail),
    )
