# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""In and out of the console: a pasted token becomes a cookie, and nothing but a token does."""

from __future__ import annotations

import secrets
from urllib.parse import urlencode

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.api.problems import Problem
from service.tokens import Permission
from service.web import sessions
from service.web.forms import form_of
from service.web.rendering import SECURITY_HEADERS, Renderer, wants_json
from service.web.sessions import Sessions
from service.web.visits import View

_CROSSED = """<!doctype html><html lang="en"><title>Relight</title>
<meta http-equiv="refresh" content="0"><p>One moment: the console opens.</p>"""


class Login:
    """The form, what it sends, and the way out."""

    def __init__(self, known: Sessions, renderer: Renderer) -> None:
        self._sessions = known
        self._renderer = renderer

    async def show(self, request: Request) -> Response:
        return self._form(request)

    async def enter(self, request: Request) -> Response:
        form = await form_of(request)
        nonce = request.cookies.get(sessions.LOGIN_COOKIE, "")
        self._sessions.require_proof(request, nonce, form.get("proof", ""))
        secret = form.get("token", "").strip()
        principal = await run_in_threadpool(self._sessions.principal, secret)
        if principal is None:
            return self._form(request, "The token is unknown, expired or revoked.", form.get("next", ""))
        if not principal.may(Permission.READ):
            return self._form(
                request, f"A token of role {principal.role} may not read the console.", form.get("next", "")
            )
        response = RedirectResponse(_own(request, form.get("next", "")), 303, headers={"Cache-Control": "no-store"})
        sessions.keep(response, request, secret)
        return response

    async def leave(self, request: Request) -> Response:
        form = await form_of(request)
        self._sessions.require_proof(request, cookie_of(request), form.get("proof", ""))
        response = RedirectResponse(_root(request) + "/login", 303, headers={"Cache-Control": "no-store"})
        sessions.forget(response, request)
        return response

    def _form(self, request: Request, fault: str = "", following: str = "") -> Response:
        nonce = secrets.token_urlsafe(32)
        data = {"fault": fault, "next": following or request.query_params.get("next", "")[:2_000]}
        view = View("login.html", "Log in", data, watch=False, status=403 if fault else 200)
        if wants_json(request):
            raise Problem("unauthenticated", "send Authorization: Bearer rlt_…")
        response = self._renderer.answer(request, view, None, nonce)
        sessions.keep_login(response, request, nonce)
        return response


def cookie_of(request: Request) -> str:
    """Forms are for browsers: an Authorization header does not stand in for the cookie."""
    return request.cookies.get(sessions.COOKIE, "")


def sent_to_login(request: Request) -> Response:
    """To the form, and back afterwards.

    A link in a chat arrives without the cookie, which is meant for our own pages only: the page then loads
    itself once more, as our own, before anybody is asked to log in.
    """
    if request.headers.get("sec-fetch-site") == "cross-site":
        return Response(_CROSSED, headers=dict(SECURITY_HEADERS), media_type="text/html; charset=utf-8")
    path, query = str(request.scope["path"]), request.url.query
    following = urlencode({"next": path + (f"?{query}" if query else "")})
    return RedirectResponse(f"{_root(request)}/login?{following}", 303, headers={"Cache-Control": "no-store"})


def _own(request: Request, following: str) -> str:
    """Only an address of the console is gone to: anything else would make us a springboard."""
    root = _root(request)
    is_ours = following.startswith(root + "/") and not any(one in following for one in ("\\", "//", "\r", "\n"))
    return following if is_ours else root + "/fleet"


def _root(request: Request) -> str:
    return str(request.scope.get("root_path", ""))
