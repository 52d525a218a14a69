# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The advisor over HTTP: one kept connection, a token file that is read again when it changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controllers.slurm.advice import AdvisorUnreachable, JsonObject

if TYPE_CHECKING:
    import httpx


class HttpTransport:
    """Errors: AdvisorUnreachable for everything between us and an answer, an unreadable token file included."""

    def __init__(self, url: str, token_file: Path, timeout_s: float = 10.0) -> None:
        self._url, self._token_file, self._timeout_s = url, token_file, timeout_s
        self._client: httpx.Client | None = None
        self._token, self._read_at = "", (0, 0)

    def send(
        self,
        method: str,
        path: str,
        *,
        body: JsonObject | None = None,
        query: Mapping[str, str] | None = None,
        traceparent: str = "",
    ) -> tuple[int, JsonObject]:
        import httpx

        if self._client is None:
            self._client = httpx.Client(base_url=self._url, timeout=self._timeout_s, trust_env=False)
        headers = {"Authorization": f"Bearer {self._current_token()}"}
        if traceparent:
            headers["traceparent"] = traceparent
        try:
            answer = self._client.request(method, path, json=body, params=dict(query or {}), headers=headers)
            said: Any = answer.json()
        except (httpx.HTTPError, ValueError) as why:
            raise AdvisorUnreachable(f"{method} {self._url}{path}: {type(why).__name__} {why}") from why
        if not isinstance(said, dict):
            raise AdvisorUnreachable(f"{method} {self._url}{path}: no JSON object")
        return answer.status_code, said

    def _current_token(self) -> str:
        try:
            found = self._token_file.stat()
            if (found.st_mtime_ns, found.st_ino) != self._read_at:
                self._token = self._token_file.read_text("ascii").strip()
                self._read_at = (found.st_mtime_ns, found.st_ino)
        except (OSError, ValueError) as why:
            raise AdvisorUnreachable(f"token file {self._token_file}: {why}") from why
        return self._token
