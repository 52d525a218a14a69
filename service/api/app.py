# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The HTTP application: every router, one way to fail, and nothing reachable without saying who may."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from relight.ports import AuditUnavailable
from service.api import (
    alertmanager,
    anomalies,
    approvals,
    attempts,
    attributions,
    audit,
    exclusions,
    health,
    incidents,
    logs,
    loki,
    models,
    nvsentinel,
    otlp,
    policy,
    recommendations,
    reconciliation,
    signals,
    silences,
    stages,
)
from service.api.openapi import described
from service.api.problems import LimitAnswers, Problem, answer, install
from service.api.recommendation_wire import RecommendationTold
from service.api.security import PUBLIC, GuardedRoute
from service.application import Application
from service.refusals import Refused
from service.web import console

PREFIX = "/v1"
CONTROL = (attempts, anomalies, incidents, recommendations, reconciliation, approvals, exclusions, silences, policy,
           stages, attributions, audit, models, health)  # fmt: skip
INGEST = (signals, logs, otlp, alertmanager, nvsentinel)
INGEST_AT_ROOT = (loki,)
INGEST_PATHS = frozenset(
    {f"{PREFIX}/signals", f"{PREFIX}/logs/ndjson", otlp.PATH, loki.PATH, alertmanager.PATH, nvsentinel.PATH}
)
Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]

DESCRIPTION = (
    "What to do about a distributed training job that failed. Every answer is on record before it is given; "
    "silence means the scheduler's own rule. Errors are RFC 9457 problems with a stable `code`."
)


class Advisory(FastAPI):
    """FastAPI with its plain-text 413 turned into a problem, and a description that says so."""

    def build_middleware_stack(self) -> ASGIApp:
        return LimitAnswers(super().build_middleware_stack())

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            self.openapi_schema = described(super().openapi(), _open_paths())
        return self.openapi_schema


def create(application: Application, lifespan: Lifespan | None = None) -> FastAPI:
    """The application over HTTP; constructs nothing that talks to the world."""
    server = application.settings.server
    app = Advisory(
        title="Relight",
        version="1",
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        servers=[{"url": "/", "description": "this server"}],
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
        redirect_slashes=False,
        max_body_size=server.max_body_bytes,
    )
    app.state.application = application
    app.state.tokens = application.tokens
    app.state.clock = application.journal.clock
    app.state.admission = logs.Admission(
        application.settings.ingest.max_inflight_bytes, application.settings.ingest.retry_after_s
    )
    for module in CONTROL:
        app.include_router(module.router, prefix=PREFIX)
    for module in INGEST:
        app.include_router(module.router, prefix=PREFIX, max_body_size=server.max_ingest_bytes)
    for module in INGEST_AT_ROOT:
        app.include_router(module.router, max_body_size=server.max_ingest_bytes)
    app.state.voices = {otlp.PATH: otlp.speak}
    app.include_router(health.root)
    app.include_router(_aliases())
    console.mount(app)
    install(app, INGEST_PATHS)
    _refuse(app)
    return app


def routes() -> Iterable[tuple[str, GuardedRoute]]:
    """Every path with its route, as served; the one inventory for tests and for 405 answers."""
    for module in (*CONTROL, *INGEST):
        for route in module.router.routes:
            assert isinstance(route, GuardedRoute)
            yield PREFIX + route.path, route
    for router in (health.root, *(module.router for module in INGEST_AT_ROOT), _aliases()):
        for route in router.routes:
            assert isinstance(route, GuardedRoute)
            yield route.path, route


def _open_paths() -> frozenset[str]:
    return frozenset(path for path, route in routes() if route.permission == PUBLIC)


def _aliases() -> APIRouter:
    """`/recommendations` at the root, for controllers that speak only that."""
    router = APIRouter(route_class=GuardedRoute, include_in_schema=False)
    options: Mapping[str, Any] = {"responses": {}}
    router.add_api_route(
        "/recommendations", recommendations.request_recommendation, methods=["POST"], status_code=201,
        response_model=RecommendationTold, operation_id="requestRecommendationAtRoot",
        **options,
    )  # fmt: skip
    router.add_api_route(
        "/recommendations", recommendations.list_recommendations, methods=["GET"],
        response_model=recommendations.RecommendationPage, operation_id="listRecommendationsAtRoot",
        **options,
    )  # fmt: skip
    return router


def _refuse(app: FastAPI) -> None:
    """Answers for what the application refuses, for a log that can't record, and for a wrong method."""
    patterns = [(route.path_regex, path, route.methods) for path, route in routes()]

    def on_refused(request: Request, why: Exception) -> Response:
        assert isinstance(why, Refused)
        return answer(request.scope, Problem(why.code, why.detail))

    def on_unavailable(request: Request, why: Exception) -> Response:
        assert isinstance(why, AuditUnavailable)
        headers = {"Retry-After": str(max(1, round(why.retry_after_s)))}
        return answer(request.scope, Problem("audit_unavailable", str(why), headers=headers))

    def on_wrong_method(request: Request, why: Exception) -> Response:
        assert isinstance(why, HTTPException)
        allowed = sorted(_allowed(request.url.path, patterns))
        detail = f"{request.method} is not for {request.url.path}; it takes {', '.join(allowed)}"
        return answer(request.scope, Problem("method_not_allowed", detail, headers={"Allow": ", ".join(allowed)}))

    app.add_exception_handler(Refused, on_refused)
    app.add_exception_handler(AuditUnavailable, on_unavailable)
    app.add_exception_handler(405, on_wrong_method)


def _allowed(path: str, patterns: Iterable[tuple[Any, str, Any]]) -> set[str]:
    found: set[str] = set()
    for regex, full, methods in patterns:
        prefix = PREFIX if full.startswith(PREFIX + "/") else ""
        if path.startswith(prefix) and regex.match(path[len(prefix) :]):
            found |= set(methods or ())
    return found
