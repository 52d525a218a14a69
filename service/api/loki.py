# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`POST /loki/api/v1/push`: what Alloy, Promtail and Loki's client libraries send."""

from __future__ import annotations

import hashlib

from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool

from relight.types import ClusterId
from service.api.access import App, cluster_of, resource
from service.api.bodies import JSON, PROTOBUF, asks_for, body_of, media_type
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.application import Application
from service.doors import loki
from service.doors.delivery import Delivered, Delivery, TooManyRecords
from service.doors.records import BadBody
from service.tokens import Permission, Principal

router = resource("ingest")
PATH = "/loki/api/v1/push"


@router.post(
    PATH,
    operation_id="pushLokiStreams",
    status_code=204,
    response_class=Response,
    responses={204: {"description": "Taken"}, **documented(413, 415)},
    openapi_extra=asks_for("LokiPush"),
)
@permits(Permission.INGEST)
async def push_loki_streams(request: Request, caller: Caller, app: App) -> Response:
    """JSON (plain, gzip or zstd) or protobuf in a block of snappy. Lines of jobs not registered yet are held.

    Answers 400 only if nothing of the request could be used: Loki's senders drop what a 400 answered.
    """
    kind = media_type(request.headers)
    if kind not in {JSON, PROTOBUF}:
        raise Problem("unsupported_media_type", f"need {JSON} or {PROTOBUF}, got {kind or 'none'}")
    cluster = cluster_of(caller, app, request.query_params.get("cluster"))
    async with body_of(request, is_snappy=kind == PROTOBUF) as body:
        said = await run_in_threadpool(_taken_in, app, caller, cluster, kind, body)
    if said.rejected and not (said.accepted or said.duplicates or said.unplaced or said.held):
        raise Problem("malformed_body", f"no line could be used: {'; '.join(said.reasons)}"[:2_000])
    return Response(status_code=204)


def _taken_in(app: Application, caller: Principal, cluster: ClusterId, kind: str, body: bytes) -> Delivered:
    read = loki.read_protobuf if kind == PROTOBUF else loki.read_json
    delivery = Delivery(app, caller, cluster, "loki")
    try:
        delivery.take(read(body))
        return delivery.hand_over(hashlib.sha256(cluster.encode() + b"\0loki\0" + body).digest())
    except BadBody as why:
        raise Problem("malformed_body", str(why)) from why
    except TooManyRecords as why:
        raise Problem("body_too_large", str(why)) from why
