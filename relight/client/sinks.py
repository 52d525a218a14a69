# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Where signals go: the service over HTTP, or a file for sites whose nodes have no network."""

from __future__ import annotations

import http.client
import json
import os
import ssl
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from relight.client.signals import batch_of

_NOT_YET = frozenset({401, 403, 404, 408, 425, 429})
_MAX_RETRY_AFTER_S = 300.0
_MAX_ANSWER_BYTES = 4 << 20


class NotDelivered(Exception):
    """The sink could not take a batch now; the same batch may be sent again after `retry_after_s`."""

    def __init__(self, reason: str, retry_after_s: float | None = None) -> None:
        super().__init__(reason)
        self.retry_after_s = retry_after_s


class Refused(Exception):
    """The sink will never take this batch."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Which items of a batch were taken; the others failed each for its own reason."""

    failed: dict[int, str] = field(default_factory=dict)


class Sink(Protocol):
    def deliver(self, items: Sequence[str]) -> Receipt:
        """Hand over a batch. Errors: NotDelivered, Refused."""
        ...


class HttpSink:
    """POST /v1/signals. The token is read from its file for each request, so that it may be renewed."""

    def __init__(self, url: str, token_file: Path | None, cluster: str | None, timeout_s: float) -> None:
        self._url = url.rstrip("/").removesuffix("/v1/signals").removesuffix("/v1") + "/v1/signals"
        self._token_file = token_file
        self._cluster = cluster
        self._timeout_s = timeout_s
        # No redirects and no proxy from the environment: a bearer token goes to the named host only.
        self._opener = urllib.request.build_opener(_NoRedirect, urllib.request.ProxyHandler({}))

    def deliver(self, items: Sequence[str]) -> Receipt:
        request = urllib.request.Request(  # noqa: S310 -- the scheme is checked in Settings
            self._url, data=batch_of(items, self._cluster), headers=self._headers(), method="POST"
        )
        try:
            with self._opener.open(request, timeout=self._timeout_s) as answer:
                return _receipt(answer.read(_MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                raise _judged(error) from error
        except (OSError, http.client.HTTPException, ssl.SSLError, ValueError) as error:
            raise NotDelivered(f"{self._url}: {error}") from error

    def _headers(self) -> dict[str, str]:
        headers = {"Content-Type": "application/json", "User-Agent": "relight-client"}
        if self._token_file is not None:
            try:
                headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
            except OSError as error:
                raise NotDelivered(f"token file {self._token_file}: {error}") from error
        return headers


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


def _judged(error: urllib.error.HTTPError) -> NotDelivered | Refused:
    """Whether to try again: a token may be renewed and an attempt made known, a bad body stays bad."""
    reason = f"{error.url} answered {error.code}"
    if error.code < 400 or error.code >= 500 or error.code in _NOT_YET:
        return NotDelivered(reason, _retry_after(error.headers.get("Retry-After")))
    return Refused(reason)


def _retry_after(text: str | None) -> float | None:
    try:
        return min(max(float(text or ""), 0.0), _MAX_RETRY_AFTER_S)
    except ValueError:
        return None


def _receipt(body: bytes) -> Receipt:
    """Errors: ValueError for an answer that is none of ours, as from a captive proxy."""
    told = json.loads(body)
    if not isinstance(told, dict) or not isinstance(told.get("results"), list):
        raise ValueError("the answer holds no results")
    return Receipt(
        {
            result["index"]: str(result.get("detail", ""))
            for result in told["results"]
            if isinstance(result, dict) and result.get("status") == "failed" and isinstance(result.get("index"), int)
        }
    )


class FileSink:
    """Appends lines of JSON; at `max_bytes` the file becomes FILE.1, which replaces the one before."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self._path = path
        self._max_bytes = max_bytes

    def deliver(self, items: Sequence[str]) -> Receipt:
        data = "".join(f"{item}\n" for item in items).encode()
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                self._write(file, data)
            finally:
                os.close(file)
        except OSError as error:
            raise NotDelivered(f"{self._path}: {error}") from error
        return Receipt()

    def _write(self, file: int, data: bytes) -> None:
        """All of `data` or, on a full disk, none of it: half a line would spoil the next one."""
        before, written = os.fstat(file).st_size, 0
        try:
            while written < len(data):
                written += os.write(file, data[written:])
        except OSError:
            if written:
                os.ftruncate(file, before)
            raise
        if os.fstat(file).st_size >= self._max_bytes:
            self._path.replace(self._path.with_name(self._path.name + ".1"))
