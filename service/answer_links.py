# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Links that answer one recommendation: signed, for one generation, one channel, and a limited time."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from relight.types import RecommendationId

_SHAPE = re.compile(
    r"1\.([0-9A-Za-z-]{1,64})\.([1-9][0-9]{0,8})\.([0-9]{1,11})\.([a-z0-9][a-z0-9_-]{0,39})\.([0-9A-Za-z_-]{43})"
)
_PURPOSE = b"relight answer link\n"
MIN_KEY_BYTES = 32


class NotOurs(ValueError):
    """A link that we did not make, or that was changed on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerLink:
    """What a link stands for. Whoever holds it answers in the channel's name, once, until `expires_at`."""

    recommendation: RecommendationId
    generation: int
    channel: str
    expires_at: datetime

    @property
    def actor(self) -> str:
        return f"link:{self.channel}"


class AnswerLinks:
    """Makes and reads links. That one is worth anything still is for the state to say, not for the signature.

    Errors: ValueError for a key that is too short to keep a secret.
    """

    def __init__(self, key: bytes, console: str) -> None:
        if len(key) < MIN_KEY_BYTES:
            raise ValueError(f"need a key of at least {MIN_KEY_BYTES} bytes, got {len(key)}")
        self._key = key
        self._console = console

    def address(self, link: AnswerLink) -> str:
        return f"{console_address(self._console)}/answer/{self.token(link)}"

    def token(self, link: AnswerLink) -> str:
        seconds = int(link.expires_at.timestamp())
        said = f"1.{link.recommendation}.{link.generation}.{seconds}.{link.channel}"
        return f"{said}.{self._mark(said)}"

    def read(self, token: str) -> AnswerLink:
        """Errors: NotOurs unless `token` is exactly one that `token()` made with this key."""
        found = _SHAPE.fullmatch(token)
        if found is None or not hmac.compare_digest(self._mark(token.rpartition(".")[0]), found[5]):
            raise NotOurs("this link is not one of ours, or was changed on the way")
        return AnswerLink(
            recommendation=RecommendationId(found[1]),
            generation=int(found[2]),
            channel=found[4],
            expires_at=datetime.fromtimestamp(int(found[3]), UTC),
        )

    def _mark(self, said: str) -> str:
        made = hmac.new(self._key, _PURPOSE + said.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(made).decode().rstrip("=")


def console_address(said: str) -> str:
    """Where the console begins: `console_url` may name the server or the console itself."""
    base = said.rstrip("/")
    return base if not base or base.endswith("/console") else f"{base}/console"
