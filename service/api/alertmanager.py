# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`POST /v1/webhooks/alertmanager`: alerts, in the form of version 4."""

from __future__ import annotations

from fastapi import Request
from pydantic import ValidationError
from starlette.concurrency import run_in_threadpool

from relight.types import AttemptId, ClusterId
from service.api.access import App, cluster_of, resource
from service.api.bodies import body_of
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.webhooks import FindingsTold, take_in
from service.application import Application
from service.doors.alertmanager import SOURCE, Webhook, findings
from service.tokens import Permission, Principal

router = resource("ingest")
PATH = "/v1/webhooks/alertmanager"


@router.post(
    "/webhooks/alertmanager",
    operation_id="receiveAlerts",
    responses=documented(413, 415),
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {"application/json": {"schema": {"type": "object", "title": "AlertmanagerWebhook"}}},
        }
    },
)
@permits(Permission.INGEST)
async def receive_alerts(request: Request, caller: Caller, app: App) -> FindingsTold:
    """Alerts that name a job, an attempt or a node. Overload is 503: Alertmanager retries nothing but 5xx."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem("unsupported_media_type", f"need application/json, got {kind or 'none'}")
    cluster = cluster_of(caller, app, request.query_params.get("cluster"))
    async with body_of(request) as body:
        return await run_in_threadpool(_taken_in, app, caller, cluster, body)


def _taken_in(app: Application, caller: Principal, cluster: ClusterId, body: bytes) -> FindingsTold:
    try:
        said = Webhook.model_validate_json(body)
    except ValidationError as why:
        fault = why.errors()[0]
        raise Problem("malformed_body", f"/{'/'.join(map(str, fault['loc']))}: {fault['msg']}") from why

    def resolve(attempt: str | None, job: str | None, restart: int | None) -> AttemptId | None:
        with app.journal.view:
            state = app.journal.state
            if attempt is not None:
                return AttemptId(attempt) if AttemptId(attempt) in state.attempts else None
            return state.attempt_of_job(cluster, job, restart) if job is not None else None

    try:
        found = list(findings(said, resolve))
    except ValueError as why:
        raise Problem("malformed_body", str(why)) from why
    return take_in(app, caller, cluster, SOURCE, found, len(said.alerts))
