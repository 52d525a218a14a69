# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A whole service in this process: an audit log in memory, a clock that stands still, tokens for every role."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio.from_thread
import httpx
import orjson
from fastapi import FastAPI

from relight.events import Event
from relight.ports import AuditLog, AuditUnavailable
from relight.testing.audit import MemoryAuditLog
from relight.types import Mode
from service import bootstrap
from service.config import Recommend, Settings
from service.rules_store import RuleStore
from service.tokens import Role, TokenBook

START = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
XID_79 = "NVRM: Xid (PCI:0000:1a:00): 79, pid=4242, name=python, GPU has fallen off the bus."


@dataclass
class StandingClock:
    """Time that passes only when a test says so."""

    at: datetime = START

    def now(self) -> datetime:
        return self.at

    def advance(self, **by: float) -> None:
        self.at += timedelta(**by)


class BrittleAuditLog(MemoryAuditLog):
    """An audit log whose disk can be taken away."""

    is_broken = False

    def append(self, events: Any) -> tuple[int, ...]:
        if self.is_broken:
            raise AuditUnavailable("disk full", retry_after_s=3)
        return super().append(events)

    def kinds(self) -> list[str]:
        return [record.event().kind for record in self.records]

    def events(self) -> list[Event]:
        return [record.event() for record in self.records]


@dataclass
class Service:
    """The API as a client sees it; `as_` chooses the role that speaks."""

    app: FastAPI
    clock: StandingClock
    audit: BrittleAuditLog
    secrets: dict[Role, str]
    portal: anyio.from_thread.BlockingPortal
    role: Role = Role.ADMIN
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def application(self) -> Any:
        return self.app.state.application

    def as_(self, role: Role) -> Service:
        return Service(self.app, self.clock, self.audit, self.secrets, self.portal, role)

    def request(self, method: str, path: str, **said: Any) -> httpx.Response:
        return self.portal.call(lambda: self.send(method, path, **said))

    async def send(self, method: str, path: str, **said: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.secrets[self.role]}", **said.pop("headers", {})}
        transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://relight.test") as client:
            return await client.request(method, path, headers=headers, **said)

    def get(self, path: str, **said: Any) -> httpx.Response:
        return self.request("GET", path, **said)

    def post(self, path: str, **said: Any) -> httpx.Response:
        return self.request("POST", path, **said)

    def put(self, path: str, **said: Any) -> httpx.Response:
        return self.request("PUT", path, **said)

    def delete(self, path: str, **said: Any) -> httpx.Response:
        return self.request("DELETE", path, **said)

    # ---------------------------------------------------------- the usual story

    def put_attempt(self, name: str = "a-1", **over: Any) -> httpx.Response:
        body = {
            "workload_id": "llm-7b",
            "scheduler": {"kind": "slurm", "job_id": "4711"},
            "attempt_index": 0,
            "user": "ada",
            "partition": "gpu",
            "allocated_nodes": ["n1", "n2", "n3", "n4"],
            "requested_nodes": 4,
            "partition_nodes": 100,
            "eligible_nodes": 90,
            "requeueable": True,
            "state": "RUNNING",
            "observed_at": self.clock.at.isoformat(),
        } | over
        return self.put(f"/v1/attempts/{name}", json=body)

    def send_lines(self, *lines: dict[str, Any], **said: Any) -> httpx.Response:
        headers = {"Content-Type": "application/x-ndjson"} | said.pop("headers", {})
        body = b"\n".join(orjson.dumps(line) for line in lines)
        return self.post("/v1/logs/ndjson", content=body, headers=headers, **said)

    def crash(self, name: str = "a-1", node: str = "n2", **over: Any) -> None:
        """A GPU of `node` falls off the bus, as the kernel of that node says, and the attempt fails."""
        self.put_attempt(name, **over)
        sent = self.send_lines(
            {"attempt_id": name, "file": "kern.log", "number": 1, "stream": "kernel", "node": node,
             "at": self.clock.at.isoformat(), "text": XID_79}
        )  # fmt: skip
        assert sent.status_code == 200, sent.text
        self.clock.advance(seconds=5)
        self.put_attempt(name, **{"state": "FAILED", "exit_code": 1} | over)

    def advise(self, name: str = "a-1", **said: Any) -> httpx.Response:
        return self.post("/v1/recommendations", json={"attempt_id": name, "trigger": "exited"}, **said)

    def set_mode(self, mode: str) -> None:
        etag = self.get("/v1/modes").headers["ETag"]
        body = {"scope": "cluster", "target": "default", "mode": mode, "actor": "ada", "reason": "test"}
        assert self.put("/v1/modes", json=body, headers={"If-Match": etag}).status_code == 200


def tokens_for_every_role(at: datetime) -> tuple[TokenBook, dict[Role, str]]:
    book = TokenBook()
    cluster = {Role.CONTROLLER: "default"}
    issued = {role: book.issue(role, f"client-{role}", at=at, cluster=cluster.get(role))[0] for role in Role}
    return book, issued


def start(
    rules: RuleStore,
    portal: anyio.from_thread.BlockingPortal,
    *,
    audit: AuditLog | None = None,
    clock: StandingClock | None = None,
    settings: Settings | None = None,
) -> Service:
    the_clock, log = clock or StandingClock(), audit or BrittleAuditLog()
    tokens, issued = tokens_for_every_role(START)
    chosen = settings or Settings(recommend=Recommend(mode=Mode.ACT))
    parts = bootstrap.Parts(clock=the_clock, audit=log, tokens=tokens, rules=rules)
    app = bootstrap.build_app(chosen, parts)
    assert isinstance(log, BrittleAuditLog)
    return Service(app, the_clock, log, issued, portal)
