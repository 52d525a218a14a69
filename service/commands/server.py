# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Commands that speak to a running service: where it is, who asks, and what its refusals mean for the exit code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import typer

from service.terminal import ExitCode, escaped, stop

Url = Annotated[str, typer.Option("--url", envvar="RELIGHT_URL", help="Where the service listens.")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", envvar="RELIGHT_TOKEN_FILE", help="File with a token that may do this.")
]
Cluster = Annotated[str | None, typer.Option("--cluster", help="Which cluster, if not the service's own.")]
DEFAULT_URL = "http://127.0.0.1:8756"
TIMEOUT_S = 30
_SPAN = re.compile(r"(\d{1,5})(m|h|d)")
_UNITS = {"m": timedelta(minutes=1), "h": timedelta(hours=1), "d": timedelta(days=1)}


@dataclass(frozen=True, slots=True)
class Reply:
    body: Any
    etag: str = ""


@dataclass(frozen=True, slots=True)
class Server:
    """Errors: typer.Exit with code 3 for a token that can't be read, 4 if nobody answers, 5 for a refusal."""

    url: str
    token: str

    def ask(
        self, method: str, path: str, *, body: Any = None, query: Mapping[str, str] | None = None, etag: str = ""
    ) -> Reply:
        import httpx

        headers = {"Authorization": f"Bearer {self.token}", **({"If-Match": etag} if etag else {})}
        try:
            with httpx.Client(base_url=self.url, timeout=TIMEOUT_S, trust_env=False) as client:
                answer = client.request(method, path, json=body, params=dict(query or {}), headers=headers)
                said = answer.json() if answer.content else {}
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as why:
            raise stop(f"{self.url}: {type(why).__name__} {why}", ExitCode.CANNOT_REACH) from why
        if answer.is_success:
            return Reply(said, answer.headers.get("etag", ""))
        detail = str(said.get("detail", "")) if isinstance(said, dict) else ""
        code = ExitCode.CANNOT_REACH if answer.status_code >= 500 else ExitCode.REFUSED
        raise stop(f"{answer.status_code}: {escaped(detail) or answer.reason_phrase}", code)


def server(url: str, token_file: Path | None) -> Server:
    if token_file is None:
        raise stop("no token: name its file with --token-file or RELIGHT_TOKEN_FILE", ExitCode.CONFIG)
    try:
        return Server(url.rstrip("/"), token_file.read_text("ascii").strip())
    except (OSError, ValueError) as why:
        raise stop(f"{token_file}: {why}", ExitCode.CONFIG) from why


def span(said: str) -> timedelta:
    """Errors: typer.Exit with code 2 unless it is written as 30m, 4h or 2d."""
    found = _SPAN.fullmatch(said)
    if found is None:
        raise stop(f"{said!r} is no span of time; write 30m, 4h or 2d", ExitCode.USAGE)
    return int(found[1]) * _UNITS[found[2]]
