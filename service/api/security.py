# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Who may call which route: checked before the body is read, denied unless a route says otherwise."""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.security import HTTPBearer

from service.api.problems import Problem
from service.tokens import Permission, Principal, TokenBook, TokenError

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
PUBLIC = "public"
_MARK = "relight_permission"

bearer = HTTPBearer(auto_error=False, scheme_name="token", description="rlt_<role>_<random><checksum>")


def permits(permission: Permission) -> Callable[[Endpoint], Endpoint]:
    """Names what a caller needs for this endpoint."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _MARK, permission.value)
        return endpoint

    return mark


def public(endpoint: Endpoint) -> Endpoint:
    """Names an endpoint that needs no token: probes and the meaning of error codes."""
    setattr(endpoint, _MARK, PUBLIC)
    return endpoint


class GuardedRoute(APIRoute):
    """A route that refuses to exist unless it says who may call it."""

    @property
    def permission(self) -> str:
        mark = getattr(self.endpoint, _MARK, None)
        if mark is None:
            raise LookupError(f"{self.path}: say who may call it with @permits(…) or @public")
        return str(mark)

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        permission = self.permission
        inner = super().get_route_handler()
        takes_json = self.body_field is not None

        async def guarded(request: Request) -> Response:
            if permission != PUBLIC:
                request.state.principal = _principal(request, Permission(permission))
            if takes_json:
                _require_json(request)
            return await inner(request)

        return guarded


def _principal(request: Request, permission: Permission) -> Principal:
    tokens: TokenBook = request.app.state.tokens
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "basic" and permission is Permission.INGEST:
        scheme, secret = "bearer", _password(secret)  # all that some senders of logs can do
    challenge = {"WWW-Authenticate": 'Bearer realm="relight"'}
    if scheme.lower() != "bearer" or not secret.strip():
        raise Problem("unauthenticated", "send Authorization: Bearer rlt_…", headers=challenge)
    try:
        principal = tokens.verify(secret.strip(), at=request.app.state.clock.now())
    except (TokenError, OSError) as why:
        raise Problem("tokens_unreadable", str(why)) from why
    if principal is None:
        raise Problem("unauthenticated", "the token is unknown, expired or revoked", headers=challenge)
    if not principal.may(permission):
        raise Problem("forbidden", f"role {principal.role} has no permission {permission.value!r}")
    return principal


def _password(encoded: str) -> str:
    """The password of HTTP's basic scheme, "" if it can't be read; whatever the user name is."""
    try:
        return base64.b64decode(encoded.strip(), validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _require_json(request: Request) -> None:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise Problem("unsupported_media_type", f"need application/json, got {kind or 'no content type'}")
    coding = request.headers.get("content-encoding", "identity").lower()
    if coding != "identity":
        raise Problem("unsupported_media_type", f"content encoding {coding!r} is for the log paths only")


def _caller(request: Request) -> Principal:
    principal: Principal = request.state.principal
    return principal


Caller = Annotated[Principal, Depends(_caller)]
