# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Who sits at the browser: a token in a cookie that scripts can't read, and a proof on every form."""

from __future__ import annotations

import hashlib
import hmac
import secrets

from starlette.requests import HTTPConnection
from starlette.responses import Response

from relight.ports import Clock
from service.api.problems import Problem
from service.tokens import Permission, Principal, TokenBook, TokenError

COOKIE = "relight_session"
LOGIN_COOKIE = "relight_login"
LASTS_S = 12 * 3600


class Sessions:
    """Tokens as sessions. Nothing is kept here: a revoked token ends its session at the next request.

    The proof that a form is ours is keyed by a secret of this process, so that forms which were shown
    before a restart have to be loaded again.
    """

    def __init__(self, tokens: TokenBook, clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock
        self._key = secrets.token_bytes(32)

    def caller(self, request: HTTPConnection, permission: Permission) -> tuple[Principal, str]:
        """Who asks, and the secret they hold.

        Errors: Problem unauthenticated without a live token, forbidden if its role does not allow this.
        """
        secret = secret_of(request)
        if not secret:
            raise Problem("unauthenticated", "log in with a token")
        principal = self.principal(secret)
        if principal is None:
            raise Problem("unauthenticated", "the token is unknown, expired or revoked")
        if not principal.may(permission):
            raise Problem("forbidden", f"role {principal.role} has no permission {permission.value!r}")
        return principal, secret

    def principal(self, secret: str) -> Principal | None:
        try:
            return self._tokens.verify(secret, at=self._clock.now())
        except (TokenError, OSError) as why:
            raise Problem("tokens_unreadable", str(why)) from why

    def proof(self, secret: str) -> str:
        """What a form must carry to be one that we showed to the holder of the secret."""
        return hmac.new(self._key, b"form:" + secret.encode(), hashlib.sha256).hexdigest()

    def require_proof(self, request: HTTPConnection, secret: str, given: str) -> None:
        """Errors: Problem forbidden for a form that is not ours, or that another site sent."""
        if request.headers.get("sec-fetch-site", "same-origin") not in {"same-origin", "none"}:
            raise Problem("forbidden", "another site sent this form")
        if not secret or not hmac.compare_digest(self.proof(secret), given):
            raise Problem("forbidden", "the form is not from this session or from before a restart: load the page anew")


def secret_of(request: HTTPConnection) -> str:
    """The secret of the Authorization header, else of the cookie; "" without either."""
    scheme, _, secret = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and secret.strip():
        return secret.strip()
    return request.cookies.get(COOKIE, "")


def keep(response: Response, request: HTTPConnection, secret: str) -> None:
    _set(response, request, COOKIE, secret, LASTS_S)


def keep_login(response: Response, request: HTTPConnection, nonce: str) -> None:
    _set(response, request, LOGIN_COOKIE, nonce, 3600)


def forget(response: Response, request: HTTPConnection) -> None:
    response.delete_cookie(COOKIE, path=request.scope.get("root_path") or "/", httponly=True, samesite="strict")


def _set(response: Response, request: HTTPConnection, name: str, value: str, max_age: int) -> None:
    response.set_cookie(
        name,
        value,
        max_age=max_age,
        path=request.scope.get("root_path") or "/",
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
    )
