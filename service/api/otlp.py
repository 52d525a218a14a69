# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`POST /v1/logs`: OTLP/HTTP logs in protobuf and JSON, answered in the type that was sent."""

from __future__ import annotations

import hashlib
from typing import Any, Final

import orjson
from fastapi import Request, Response
from starlette.concurrency import run_in_threadpool
from starlette.types import Scope

from relight.types import ClusterId
from service.api.access import App, cluster_of, resource
from service.api.bodies import JSON, PROTOBUF, asks_for, body_of, in_both
from service.api.problems import Problem
from service.api.security import Caller, permits
from service.application import Application
from service.doors import otlp_json, otlp_protobuf
from service.doors.delivery import Delivered, Delivery, TooManyRecords
from service.doors.records import BadBody
from service.tokens import Permission, Principal

router = resource("ingest")
PATH: Final = "/v1/logs"
_CODES = {400: 3, 401: 16, 403: 7, 404: 5, 405: 12, 413: 8, 415: 3, 422: 3, 500: 13, 503: 14}
_STATUSES = (400, 401, 403, 405, 413, 415, 422, 503)
_STATUS_SCHEMA = {
    "title": "Status",
    "description": "google.rpc.Status; in protobuf if that was sent",
    "type": "object",
    "properties": {"code": {"type": "integer"}, "message": {"type": "string"}},
}
_ANSWER_SCHEMA = {
    "title": "ExportLogsServiceResponse",
    "type": "object",
    "properties": {
        "partialSuccess": {
            "type": "object",
            "properties": {"rejectedLogRecords": {"type": "string"}, "errorMessage": {"type": "string"}},
        }
    },
}


RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Taken, but for what partialSuccess counts", "content": in_both(_ANSWER_SCHEMA)},
    **{status: {"description": "Not taken", "content": in_both(_STATUS_SCHEMA)} for status in _STATUSES},
}


@router.post(
    "/logs",
    operation_id="exportOtlpLogs",
    response_class=Response,
    responses=RESPONSES,
    openapi_extra=asks_for("ExportLogsServiceRequest"),
)
@permits(Permission.INGEST)
async def export_otlp_logs(request: Request, caller: Caller, app: App) -> Response:
    """Plain, gzip or zstd. 503 asks to send again; records of jobs not registered yet are held, and said to be."""
    kind = _kind(request.scope)
    if kind not in {JSON, PROTOBUF}:
        raise Problem("unsupported_media_type", f"need {PROTOBUF} or {JSON}, got {kind or 'none'}")
    cluster = cluster_of(caller, app, request.query_params.get("cluster"))
    async with body_of(request) as body:
        said = await run_in_threadpool(_taken_in, app, caller, cluster, kind, body)
    reason = "; ".join(said.reasons)[:2_000]
    if kind == PROTOBUF:
        return Response(otlp_protobuf.success(said.rejected, reason), media_type=PROTOBUF)
    partial = {"rejectedLogRecords": str(said.rejected), "errorMessage": reason}
    return Response(orjson.dumps({"partialSuccess": partial} if reason else {}), media_type=JSON)


def _taken_in(app: Application, caller: Principal, cluster: ClusterId, kind: str, body: bytes) -> Delivered:
    read = otlp_protobuf.read_protobuf_logs if kind == PROTOBUF else otlp_json.read_json_logs
    delivery = Delivery(app, caller, cluster, "otlp")
    try:
        delivery.take(read(body))
        return delivery.hand_over(hashlib.sha256(cluster.encode() + b"\0otlp\0" + body).digest())
    except BadBody as why:
        raise Problem("malformed_body", str(why)) from why
    except TooManyRecords as why:
        raise Problem("body_too_large", str(why)) from why


def _kind(scope: Scope) -> str:
    """The media type of the request's body."""
    headers = dict(scope.get("headers", ()))
    return str(headers.get(b"content-type", b"").decode("latin-1").partition(";")[0].strip().lower())


def speak(scope: Scope, problem: Problem) -> Response:
    """A problem as the `Status` that OTLP's senders read, in the type of the request."""
    headers = dict(problem.headers)
    if problem.status == 503:
        headers.setdefault("Retry-After", "5")
    code, words = _CODES.get(problem.status, 2), f"{problem.code}: {problem.detail}"
    if _kind(scope) == PROTOBUF:
        return Response(otlp_protobuf.status(code, words), problem.status, headers, PROTOBUF)
    return Response(orjson.dumps({"code": code, "message": words}), problem.status, headers, JSON)
