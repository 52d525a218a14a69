# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The console as one ASGI application: a table of pages, who may see each, and how each is answered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from relight.ports import AuditUnavailable
from service.api.problems import Problem, answer
from service.application import Application
from service.refusals import Refused
from service.tokens import Permission
from service.web import (
    answers,
    assets,
    audit_page,
    fleet,
    goodput_page,
    incident,
    incident_list,
    live,
    login,
    nodes,
    promotion_page,
    rules_page,
    shadow_page,
    silences_page,
    steps_page,
    workload,
)
from service.web.answer_page import AnswerPage
from service.web.forms import form_of
from service.web.rendering import Renderer, wants_json
from service.web.sessions import Sessions
from service.web.step_board import StepBoard
from service.web.time_used import TimeUsed
from service.web.visits import Page, View, Visit

PREFIX = "/console"
_TWINS = (".json", ".md")


@dataclass(frozen=True, slots=True)
class Entry:
    """A page: its path within the console, how it is asked for, and what its visitor must be allowed to."""

    path: str
    page: Page
    permission: Permission = Permission.READ
    method: str = "GET"


PAGES: tuple[Entry, ...] = (
    Entry("/fleet", fleet.show_fleet),
    Entry("/workload", workload.show_workload),
    Entry("/incidents", incident_list.show_incidents),
    Entry("/incidents/{incident}", incident.show_incident),
    Entry("/attempts/{attempt}/steps", steps_page.show_steps),
    Entry("/goodput", goodput_page.show_goodput),
    Entry("/nodes", nodes.show_all),
    Entry("/nodes/{node}", nodes.show_nodes),
    Entry("/rules", rules_page.show_rules),
    Entry("/shadow", shadow_page.show_shadow),
    Entry("/promotion", promotion_page.show_promotion),
    Entry("/promotion/{failure_class}", promotion_page.set_stage, Permission.OPERATE, "POST"),
    Entry("/silences", silences_page.show_silences),
    Entry("/silences", silences_page.silence, Permission.OPERATE, "POST"),
    Entry("/silences/{silence}/end", silences_page.end, Permission.OPERATE, "POST"),
    Entry("/incidents/{incident}/silence", silences_page.silence_incident, Permission.OPERATE, "POST"),
    Entry("/audit", audit_page.show_audit),
    Entry("/recommendations/{recommendation}/approve", answers.approve, Permission.OPERATE, "POST"),
    Entry("/recommendations/{recommendation}/reject", answers.reject, Permission.OPERATE, "POST"),
    Entry("/recommendations/{recommendation}/feedback", answers.feedback, Permission.FEEDBACK, "POST"),
    Entry("/attempts/{attempt}/override", answers.override, Permission.ADVISE, "POST"),
    Entry("/nodes/{node}/pardon", answers.pardon, Permission.OPERATE, "POST"),
)


def mount(app: FastAPI) -> None:
    """Put the console under `/console`, and the front door on it."""
    app.mount(PREFIX, create(app.state.application))
    app.add_route("/", _front_door, methods=["GET"], include_in_schema=False)


def create(application: Application) -> Console:
    return Console(application)


class Console:
    """Takes the twin's suffix off the path and hands the rest to the table of pages."""

    def __init__(self, application: Application) -> None:
        self._application = application
        self._sessions = Sessions(application.tokens, application.journal.clock)
        self._steps = StepBoard()
        self._time_used = TimeUsed(application.journal.audit)
        self._renderer = Renderer(self._sessions)
        application.loop.listeners.append(self._steps.take)
        self._inner = Starlette(
            routes=self._routes(),
            exception_handlers={
                Problem: self._failed, Refused: self._failed, AuditUnavailable: self._failed,
                HTTPException: self._failed, Exception: self._failed,
            },
        )  # fmt: skip
        self._inner.state.application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        for suffix in _TWINS:
            if scope["path"].endswith(suffix) and "/static/" not in scope["path"]:
                scope = dict(scope, path=scope["path"].removesuffix(suffix), relight_twin=suffix)
        await self._inner(scope, receive, send)

    def _routes(self) -> list[Route | Mount]:
        gate = login.Login(self._sessions, self._renderer)
        link = AnswerPage(self._application, self._sessions, self._renderer)
        return [
            *(Route(one.path, self._endpoint(one), methods=[one.method]) for one in PAGES),
            Route("/", _to_fleet, methods=["GET"]),
            Route("/login", gate.show, methods=["GET"]),
            Route("/login", gate.enter, methods=["POST"]),
            Route("/logout", gate.leave, methods=["POST"]),
            Route("/answer/{token}", link.show, methods=["GET"]),
            Route("/answer/{token}", link.take, methods=["POST"]),
            Route("/live", live.Live(self._application.journal, self._sessions).stream, methods=["GET"]),
            Route("/static/{name}", assets.serve, methods=["GET"]),
        ]

    def _endpoint(self, entry: Entry) -> Callable[[Request], Any]:
        async def endpoint(request: Request) -> Response:
            caller, secret = await run_in_threadpool(self._sessions.caller, request, entry.permission)
            form = {}
            if entry.method == "POST":
                form = await form_of(request)
                self._sessions.require_proof(request, login.cookie_of(request), form.get("proof", ""))
            visit = Visit(
                request=request, app=self._application, caller=caller, steps=self._steps,
                time_used=self._time_used, form=form,
            )  # fmt: skip
            return await run_in_threadpool(self._answered, visit, entry.page, secret)

        return endpoint

    def _answered(self, visit: Visit, page: Page, secret: str) -> Response:
        position = self._application.journal.state.position
        found = page(visit)
        if isinstance(found, View):
            if visit.request.scope.get("relight_twin") == ".md":
                raise Problem("not_found", "only incidents have a Markdown twin")
            return self._renderer.answer(visit.request, found, visit.caller, secret, position)
        return found

    def _failed(self, request: Request, why: Exception) -> Response:
        problem = _problem(why)
        if wants_json(request):
            return answer(request.scope, problem)
        is_page = request.method == "GET" and not request.url.path.endswith(("/live", "/login"))
        if problem.code == "unauthenticated" and is_page:
            return login.sent_to_login(request)
        return self._renderer.failure(request, problem)


def _problem(why: Exception) -> Problem:
    match why:
        case Problem():
            return why
        case Refused():
            return Problem(why.code, why.detail)
        case AuditUnavailable():
            wait = str(max(1, round(why.retry_after_s)))
            return Problem("audit_unavailable", str(why), headers={"Retry-After": wait})
        case HTTPException():
            code = {404: "not_found", 405: "method_not_allowed"}.get(why.status_code, "internal")
            return Problem(code, str(why.detail), headers=dict(why.headers or {}))
        case _:
            return Problem("internal", f"unexpected {type(why).__name__}")


async def _front_door(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}{PREFIX}/fleet", status_code=303)


async def _to_fleet(request: Request) -> Response:
    return RedirectResponse(str(request.scope.get("root_path", "")) + "/fleet", status_code=303)
