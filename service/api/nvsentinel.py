# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`POST /v1/webhooks/nvsentinel`: health events as CloudEvents in structured mode."""

from __future__ import annotations

from fastapi import Request
from starlette.concurrency import run_in_threadpool

from relight.types import ClusterId
from service.api.access import App, cluster_of, resource
from service.api.bodies import body_of
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.webhooks import FindingsTold, take_in
from service.application import Application
from service.doors.nvsentinel import SOURCE, read_events
from service.doors.records import BadBody
from service.tokens import Permission, Principal

router = resource("ingest")
PATH = "/v1/webhooks/nvsentinel"
MEDIA_TYPES = ("application/cloudevents+json", "application/cloudevents-batch+json", "application/json")


@router.post(
    "/webhooks/nvsentinel",
    operation_id="receiveHealthEvents",
    responses=documented(413, 415),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/cloudevents+json": {"schema": {"type": "object", "title": "CloudEvent"}},
                "application/cloudevents-batch+json": {"schema": {"type": "array", "items": {"type": "object"}}},
            },
        }
    },
)
@permits(Permission.INGEST)
async def receive_health_events(request: Request, caller: Caller, app: App) -> FindingsTold:
    """A fatal event accuses its node and is evidence for the attempts that held it; STORE_ONLY does neither."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in MEDIA_TYPES:
        raise Problem("unsupported_media_type", f"need {MEDIA_TYPES[0]}, got {kind or 'none'}")
    cluster = cluster_of(caller, app, request.query_params.get("cluster"))
    async with body_of(request) as body:
        return await run_in_threadpool(_taken_in, app, caller, cluster, body)


def _taken_in(app: Application, caller: Principal, cluster: ClusterId, body: bytes) -> FindingsTold:
    try:
        found = read_events(body, app.journal.now())
    except BadBody as why:
        raise Problem("malformed_body", str(why)) from why
    return take_in(app, caller, cluster, SOURCE, found, len(found))
