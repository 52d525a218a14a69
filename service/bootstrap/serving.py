# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A service that listens: the API over an application, its threads and its first token."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from relight.events import ServiceStopped
from relight.ports import AuditUnavailable, Clock
from service.bootstrap.kit import clock, open_tokens
from service.bootstrap.wiring import Parts, build_application
from service.config import ConfigError, Settings
from service.tokens import Role, TokenBook

if TYPE_CHECKING:
    from fastapi import FastAPI

    from service.application import Application


CONSOLE_CLIENT = "local-console"
DRAIN_S = 25
CHORE_DRAIN_S = 5


def build_app(settings: Settings, parts: Parts | None = None) -> FastAPI:
    """The API over a freshly built application; its lifespan runs the loop and closes the log."""
    from service.api.app import create

    application = build_application(settings, parts)
    return create(application, _lifespan(application))


def described_app() -> FastAPI:
    """The API with default settings and a log in memory, for its description alone."""
    from relight.testing.audit import MemoryAuditLog

    return build_app(Settings(), Parts(audit=MemoryAuditLog(), tokens=TokenBook()))


def serve(settings: Settings, announce: Callable[[str], object] = sys.stderr.write) -> None:
    """Listen until told to stop; `announce` shows a token that was made for this machine.

    Errors: ConfigError for an address beyond this machine without tokens.
    """
    import uvicorn

    signal.signal(signal.SIGTERM, _asked_to_end)
    tokens = open_tokens(settings)
    secret = first_token(settings, tokens, clock())
    app = build_app(settings, Parts(tokens=tokens))
    if secret is not None:
        announce(f"no tokens are configured; this one is for you, as admin, for a day:\n{secret}\n")
    uvicorn.run(
        app,
        host=settings.server.host,
        port=settings.server.port,
        workers=1,
        timeout_graceful_shutdown=DRAIN_S,
        server_header=False,
        log_level="warning",
    )


def _asked_to_end(*_: object) -> None:
    """Uvicorn raises its signal again after the drain: a stop that was asked for is no failure."""
    sys.exit(0)


@dataclass(slots=True)
class Running:
    """A service that listens in a thread of this process, with a token for whoever started it."""

    url: str
    token: str
    thread: threading.Thread

    def wait(self) -> None:
        while self.thread.is_alive():
            self.thread.join(1)


@contextmanager
def running(settings: Settings, the_clock: Clock | None = None) -> Iterator[Running]:
    """The service on loopback for as long as the block runs; port 0 takes a free one.

    Errors: OSError if the port is taken; RuntimeError if the service does not come up.
    """
    import socket

    import uvicorn

    tokens = open_tokens(settings)
    secret, _ = tokens.issue(Role.ADMIN, CONSOLE_CLIENT, at=(the_clock or clock()).now(), days=1)
    app = build_app(settings, Parts(tokens=tokens, clock=the_clock))
    listener = socket.create_server((settings.server.host, settings.server.port))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on", timeout_graceful_shutdown=5))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="service", daemon=True)
    thread.start()
    while not server.started:
        thread.join(0.02)
        if not thread.is_alive():
            listener.close()
            raise RuntimeError("the service ended while it started; run `relight serve` to see why")
    host, port = listener.getsockname()[:2]
    try:
        yield Running(f"http://{host}:{port}", secret, thread)
    finally:
        server.should_exit = True
        thread.join(DRAIN_S)
        listener.close()


def first_token(settings: Settings, tokens: TokenBook, the_clock: Clock) -> str | None:
    """A token for whoever sits at this machine, if none is live; elsewhere there is no way in without one.

    Errors: ConfigError if the address is beyond this machine and no token is live.
    """
    now = the_clock.now()
    if any(token.is_live(now) for token in tokens.tokens()):
        return None
    if not settings.server.is_loopback:
        raise ConfigError(
            f"server.host = {settings.server.host!r} is not this machine alone and no token is live; "
            "issue one: relight token new NAME --role admin (needs auth.tokens_file)"
        )
    secret, _ = tokens.issue(Role.ADMIN, CONSOLE_CLIENT, at=now, days=1)
    return secret


def _lifespan(application: Application) -> Callable[[FastAPI], Any]:
    from service.chores import started

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        stop = threading.Event()
        journal, every_s = application.journal, application.settings.recommend.sweep_every_s
        chores = (application.advisor.sweep, application.operation.sweep, application.stages.sweep,
                  application.silences.sweep)  # fmt: skip
        thread = threading.Thread(target=application.loop.run, args=(stop, every_s, chores), name="loop", daemon=True)
        thread.start()
        others = started(application.chores, stop)
        try:
            yield
        finally:
            app.state.is_stopping = True
            stop.set()
            thread.join(DRAIN_S)
            for other in others:
                other.join(CHORE_DRAIN_S)  # one that hangs in a file system must not hold us
            _record_stop(application)
            journal.audit.close()

    return lifespan


def _record_stop(application: Application) -> None:
    """Correctness does not depend on it: a killed service starts from the same log."""
    from service.background import SAVING

    journal = application.journal
    try:
        application.loop.tick(journal.now())
        for chore in application.chores:
            if chore.name == SAVING:
                chore.once()
        journal.record(ServiceStopped(at=journal.now(), reason="asked to stop"))
    except AuditUnavailable:
        return
