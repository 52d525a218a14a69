# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What can go wrong with a request, by stable code, answered as RFC 9457 problem+json."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from relight.trace_ids import trace_of

MEDIA_TYPE: Final = "application/problem+json"

PROBLEMS: Final[Mapping[str, tuple[int, str]]] = {
    "malformed_body": (400, "The body is not what its content type says"),
    "malformed_parameter": (400, "A parameter can't be read"),
    "bad_cursor": (400, "The cursor is not one of ours"),
    "unauthenticated": (401, "A valid bearer token is needed"),
    "forbidden": (403, "The token's role or cluster does not allow this"),
    "not_found": (404, "There is no such resource"),
    "unknown_attempt": (404, "The attempt has not been registered"),
    "method_not_allowed": (405, "The resource does not take this method"),
    "idempotency_conflict": (409, "The key was used before with another body"),
    "claimed": (409, "Another controller holds the claim"),
    "stale_claim": (409, "The claim token is not the newest"),
    "not_claimed": (409, "Claim the recommendation before reporting work on it"),
    "stale_generation": (409, "The recommendation has a newer generation"),
    "unknown_generation": (409, "The recommendation has not reached this generation"),
    "not_actionable": (409, "The recommendation may not be acted on"),
    "already_answered": (409, "The recommendation has another terminal answer"),
    "superseded": (409, "A newer attempt or fact has overtaken this one"),
    "below_the_bar": (409, "The record of this class does not allow it"),
    "model_refused": (409, "The artefact must not be opened or breaks its contract"),
    "worse_model": (409, "The model's own figures speak against it"),
    "too_late": (410, "The time to answer is over"),
    "precondition_failed": (412, "The resource changed since it was read"),
    "body_too_large": (413, "The body is larger than allowed"),
    "unsupported_media_type": (415, "The content type or encoding is not supported"),
    "invalid": (422, "The request does not fit the schema"),
    "refused_by_policy": (422, "Policy does not allow this proposal"),
    "precondition_required": (428, "Send If-Match with the ETag you read"),
    "internal": (500, "Relight failed; normal scheduling is not affected"),
    "audit_unavailable": (503, "Not recorded, so not done and not advised"),
    "overloaded": (503, "Too much at once; send again later"),
    "not_ready": (503, "Relight can't record or has no rules loaded"),
    "tokens_unreadable": (503, "The token file can't be read"),
}
_BY_STATUS = {400: "malformed_body", 401: "unauthenticated", 403: "forbidden", 404: "not_found",
              405: "method_not_allowed", 413: "body_too_large", 415: "unsupported_media_type"}  # fmt: skip


class ProblemError(BaseModel):
    """One fault in the request; `pointer` is a JSON pointer into the body, or `name` a parameter."""

    model_config = ConfigDict(extra="forbid")

    detail: str
    pointer: str | None = None
    parameter: str | None = None


class ProblemBody(BaseModel):
    """RFC 9457, with a stable `code` to program against."""

    model_config = ConfigDict(title="Problem")

    type: str = Field(examples=["/problems/not_found"])
    title: str
    status: int
    code: str = Field(examples=["not_found"])
    detail: str
    instance: str
    trace_id: str
    errors: list[ProblemError] = []


class Problem(Exception):
    """A request that can't be served, with the status and the way out."""

    def __init__(
        self,
        code: str,
        detail: str,
        *,
        errors: Sequence[ProblemError] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.status = PROBLEMS[code][0]
        self.detail = detail
        self.errors = tuple(errors)
        self.headers = dict(headers or {})


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The `responses` of a route: these statuses, and those that every route may answer."""
    wanted = sorted({400, 401, 403, 405, 422, 503, *statuses})
    return {
        status: {
            "model": ProblemBody,
            "description": "; ".join(f"`{c}`: {t}" for c, (s, t) in PROBLEMS.items() if s == status),
        }
        for status in wanted
    }


def trace_id(scope: Scope) -> str:
    """The trace of the caller's `traceparent`, else a fresh one."""
    for name, value in scope.get("headers", ()):
        if name == b"traceparent" and (named := trace_of(value.decode("latin-1"))) is not None:
            return named
    return secrets.token_hex(16)


def answer(scope: Scope, problem: Problem) -> Response:
    """The problem as problem+json, or in the words that a path's own senders understand."""
    voice = getattr(scope["app"].state, "voices", {}).get(scope.get("path")) if "app" in scope else None
    if voice is not None:
        spoken: Response = voice(scope, problem)
        return spoken
    body = ProblemBody(
        type=f"/problems/{problem.code}",
        title=PROBLEMS[problem.code][1],
        status=problem.status,
        code=problem.code,
        detail=problem.detail,
        instance=scope.get("path", ""),
        trace_id=trace_id(scope),
        errors=list(problem.errors),
    )
    headers = dict(problem.headers)
    if problem.status == 503:
        headers.setdefault("Retry-After", "5")
    return Response(body.model_dump_json(exclude_none=True), problem.status, headers=headers, media_type=MEDIA_TYPE)


def install(app: FastAPI, is_ingest: frozenset[str]) -> None:
    """Answer every failure of `app` as a problem; a fault of ours on an ingest path is a 503.

    Senders drop what a 500 answered and send again what a 503 answered.
    """

    def on_problem(request: Request, why: Exception) -> Response:
        assert isinstance(why, Problem)
        return answer(request.scope, why)

    def on_http(request: Request, why: Exception) -> Response:
        assert isinstance(why, HTTPException)
        code = _BY_STATUS.get(why.status_code, "internal")
        return answer(request.scope, Problem(code, str(why.detail), headers=dict(why.headers or {})))

    def on_invalid(request: Request, why: Exception) -> Response:
        assert isinstance(why, RequestValidationError)
        return answer(request.scope, _invalid(why))

    def on_fault(request: Request, why: Exception) -> Response:
        code = "overloaded" if request.url.path in is_ingest else "internal"
        return answer(request.scope, Problem(code, f"unexpected {type(why).__name__}"))

    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(Exception, on_fault)


def _invalid(why: RequestValidationError) -> Problem:
    faults = why.errors()
    broken = next((fault for fault in faults if fault["type"] == "json_invalid"), None)
    if broken is not None:
        detail = str(broken.get("ctx", {}).get("error", broken["msg"]))
        return Problem("malformed_body", f"not JSON at character {broken['loc'][-1]}: {detail}")
    errors = [_fault(fault["loc"], fault["msg"]) for fault in faults]
    where = errors[0].pointer or errors[0].parameter or "body"
    return Problem("invalid", f"{where}: {errors[0].detail}", errors=errors)


def _fault(loc: Sequence[int | str], message: str) -> ProblemError:
    if loc and loc[0] == "body":
        return ProblemError(detail=message, pointer="/" + "/".join(_escaped(part) for part in loc[1:]))
    return ProblemError(detail=message, parameter=str(loc[-1]) if loc else None)


def _escaped(part: int | str) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")


class LimitAnswers:
    """The framework's own 413 is plain text and sits outside our handlers: say it as a problem."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        replaced = False

        async def speak(message: Message) -> None:
            nonlocal replaced
            if message["type"] == "http.response.start" and _is_plain_413(message):
                replaced = True
                problem = Problem("body_too_large", "the body is larger than this path allows")
                await answer(scope, problem)(scope, receive, send)
            elif not replaced:
                await send(message)

        await self.app(scope, receive, speak)


def _is_plain_413(message: Message) -> bool:
    return message["status"] == 413 and any(
        name == b"content-type" and value.startswith(b"text/plain") for name, value in message["headers"]
    )
