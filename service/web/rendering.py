# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From a view to an answer: HTML or its JSON twin, under headers that let nothing foreign run."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import Response

from relight.ports import AuditUnavailable
from service.api.problems import Problem
from service.api.wire import harmless
from service.api.wire import shown as rfc3339
from service.tokens import Permission, Principal
from service.web import assets, templating
from service.web.sessions import Sessions
from service.web.visits import View

SECURITY_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cache-Control": "no-store",
    "Vary": "Accept, Authorization, Cookie",
}


def wants_json(request: Request) -> bool:
    """By the address (`.json`), else by what is accepted: browsers ask for HTML first."""
    if "relight_twin" in request.scope:
        return bool(request.scope["relight_twin"] == ".json")
    accepted = request.headers.get("accept", "")
    return "application/json" in accepted and "text/html" not in accepted


class Renderer:
    """Fills templates; every page is told who looks at it and carries the proof for its forms."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._templates = templating.environment()

    def answer(
        self, request: Request, view: View, caller: Principal | None, secret: str, position: int = 0
    ) -> Response:
        if wants_json(request):
            body = orjson.dumps(plain(view.data), option=orjson.OPT_INDENT_2)
            return Response(body, view.status, headers=dict(SECURITY_HEADERS), media_type="application/json")
        said = self._templates.get_template(view.template).render(
            data=view.data,
            title=view.title,
            watch=view.watch,
            position=position,
            caller=caller,
            may={one.value: caller is not None and caller.may(one) for one in Permission},
            proof=self._sessions.proof(secret) if secret else "",
            repairs=_repairs(request) if caller is not None else [],
            page=_path(request),
            here=_here(request),
            twin=_twin(request),
            is_paused=request.query_params.get("paused") == "1",
            url=partial(templating.address, str(request.scope.get("root_path", ""))),
            asset=partial(assets.asset_address, str(request.scope.get("root_path", ""))),
        )
        return Response(said, view.status, headers=dict(SECURITY_HEADERS), media_type="text/html; charset=utf-8")

    def failure(self, request: Request, problem: Problem) -> Response:
        """An error as a page, for whoever is there."""
        data = {"code": problem.code, "status": problem.status, "detail": problem.detail}
        view = View("failure.html", "This did not work", data, watch=False, status=problem.status)
        response = self.answer(request, view, None, "")
        response.headers.update(problem.headers)
        return response


def plain(value: Any) -> Any:
    """JSON values for a view's data, with the text of logs made harmless as everywhere in the API."""
    match value:
        case datetime():
            return rfc3339(value)
        case Mapping():
            return {harmless(str(name)): plain(item) for name, item in value.items()}
        case list() | tuple():
            return [plain(item) for item in value]
        case str():
            return harmless(str(value))
        case _:
            return value


def _repairs(request: Request) -> list[str]:
    """What everybody should know of the record before relying on it; silent where it can't be read."""
    try:
        return [one.summary for one in request.app.state.application.repairs.serious()]
    except AuditUnavailable:
        return []


def _path(request: Request) -> str:
    """The path within the console, as the navigation compares it."""
    root = str(request.scope.get("root_path", ""))
    return request.scope["path"].removeprefix(root).partition("?")[0] or "/"


def _here(request: Request) -> str:
    query = request.url.query
    return str(request.scope["path"]) + (f"?{query}" if query else "")


def _twin(request: Request) -> str:
    query = request.url.query
    return str(request.scope["path"]) + ".json" + (f"?{query}" if query else "")
