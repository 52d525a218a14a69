# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Says that something changed, so that open pages look again; never what, which would need a second reader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.api.problems import Problem
from service.journal import Journal
from service.tokens import Permission
from service.web.sessions import Sessions

MAX_STREAMS = 200
AT_MOST_EVERY_S = 1.0
LASTS_S = 4.0  # less than the shortest time that a stopping server gives its readers


class Live:
    """Server-sent events: the position of the audit log, at most once a second.

    A stream ends by itself after a while and browsers come back with the last position they saw: so a
    revoked token loses it, and a server that stops does not wait for its readers.
    """

    def __init__(self, journal: Journal, sessions: Sessions) -> None:
        self._journal = journal
        self._sessions = sessions
        self._open = 0

    async def stream(self, request: Request) -> Response:
        await run_in_threadpool(self._sessions.caller, request, Permission.READ)
        if self._open >= MAX_STREAMS:
            raise Problem("overloaded", f"{MAX_STREAMS} pages are live already", headers={"Retry-After": "10"})
        said = request.headers.get("last-event-id") or request.query_params.get("since", "")
        since = int(said) if said.isascii() and said.isdigit() and len(said) < 19 else None
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        return StreamingResponse(self.events(since), headers=headers, media_type="text/event-stream")

    async def events(self, since: int | None) -> AsyncGenerator[str, None]:
        """The stream itself: first where the log stands, then every change of it."""
        self._open += 1
        try:
            left = time.monotonic() + LASTS_S
            with self._journal.bell.listening() as rung:
                known = self._journal.state.position if since is None else since
                yield f"retry: 250\nid: {known}\n\n"
                while (remaining := left - time.monotonic()) > 0:
                    rung.clear()
                    now = self._journal.state.position
                    if now != known:
                        known = now
                        yield f"event: changed\nid: {known}\ndata: {known}\n\n"
                        await asyncio.sleep(min(AT_MOST_EVERY_S, remaining))
                        continue
                    try:
                        await asyncio.wait_for(rung.wait(), remaining)
                    except TimeoutError:
                        return
        finally:
            self._open -= 1
