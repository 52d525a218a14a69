# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How slurmrestd is reached: over HTTP with a token, or by a UNIX socket that tells it who asks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from relight.jobs import SchedulerUnreachable

if TYPE_CHECKING:
    import httpx

UNIX = "unix:"
JSON_TYPE = {"Content-Type": "application/json"}


class RestWire(Protocol):
    """One request: status and body. Errors: SchedulerUnreachable, then it may have been carried out or not."""

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]: ...


class HttpRestWire:
    """One kept connection to `http://HOST:PORT`, `https://...` or `unix:/PATH`.

    The token file is read again at every call, since tokens live half an hour and are renewed from outside;
    the word in front of the token that `scontrol token` prints may stay. Without a token file only a socket
    will do: there slurmrestd knows its caller by the kernel's word (rest_auth/local).
    """

    def __init__(self, url: str, user: str, token_file: Path | None, timeout_s: float = 20.0) -> None:
        if not url.startswith(("http://", "https://", UNIX + "/")):
            raise ValueError(f"slurmrestd's address must be http://, https:// or unix:/PATH, got {url!r}")
        if token_file is None and not url.startswith(UNIX):
            raise ValueError(f"slurmrestd at {url} needs a token file; only a UNIX socket goes without")
        self._url, self._user, self._token_file, self._timeout_s = url, user, token_file, timeout_s
        self._client: httpx.Client | None = None

    def send(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        import httpx

        headers = {**self._credentials(), **(JSON_TYPE if body is not None else {})}
        content = None if body is None else json.dumps(body).encode()
        try:
            answer = self._connected().request(method, path, content=content, headers=headers)
        except httpx.HTTPError as why:
            raise SchedulerUnreachable(f"slurmrestd at {self._url}: {type(why).__name__} {why}") from why
        return answer.status_code, answer.content

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def _connected(self) -> httpx.Client:
        import httpx

        if self._client is None:
            is_local = self._url.startswith(UNIX)
            reach = httpx.HTTPTransport(uds=self._url.removeprefix(UNIX)) if is_local else None
            self._client = httpx.Client(
                base_url="http://slurmrestd" if is_local else self._url, transport=reach, timeout=self._timeout_s,
                trust_env=False,
            )  # fmt: skip
        return self._client

    def _credentials(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        try:
            token = self._token_file.read_text("ascii").strip().removeprefix("SLURM_JWT=")
        except (OSError, ValueError) as why:
            raise SchedulerUnreachable(f"token file {self._token_file}: {why}") from why
        return {"X-SLURM-USER-NAME": self._user, "X-SLURM-USER-TOKEN": token}
