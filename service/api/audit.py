# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`/v1/audit`: the record itself, its proof, and its export."""

from __future__ import annotations

import shutil
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends, Query
from fastapi.responses import FileResponse
from pydantic import Field
from starlette.background import BackgroundTask

from relight.events import EVENT_TYPES, to_json
from relight.ports import AuditFilter, Head
from relight.types import AttemptId, ClusterId, IncidentId, NodeName, RecommendationId, WorkloadId
from service.api.access import App, resource
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.wire import (
    DEFAULT_PAGE,
    Ask,
    Count,
    Cursor,
    JsonObject,
    Limit,
    Moment,
    Page,
    Told,
    cursor_of,
    position_of,
)
from service.tokens import Permission, Principal

router = resource("audit")
_HEAVY = threading.BoundedSemaphore(4)


class HeadTold(Told):
    position: int
    hash: str


class EntryTold(Told):
    position: int
    at: Moment
    kind: str
    hash: str
    event: JsonObject


class AuditPage(Page[EntryTold]):
    head: HeadTold


class Anchor(Ask):
    position: Count
    hash: str = Field(max_length=128)


class VerifyAsk(Ask):
    """`anchor` is a head that was remembered outside: without one a cut tail goes unseen."""

    anchor: Anchor | None = None


class BreakTold(Told):
    position: int
    expected: str
    found: str
    reason: str


class VerificationTold(Told):
    is_sound: bool
    events: int
    head: HeadTold
    broken: BreakTold | None


def _where(
    caller: Caller,
    kind: Annotated[list[str] | None, Query(max_length=40, description="may be repeated")] = None,
    cluster: Annotated[str | None, Query(max_length=128)] = None,
    workload: Annotated[str | None, Query(max_length=200)] = None,
    attempt: Annotated[str | None, Query(max_length=200)] = None,
    incident: Annotated[str | None, Query(max_length=200)] = None,
    recommendation: Annotated[str | None, Query(max_length=200)] = None,
    node: Annotated[str | None, Query(max_length=253)] = None,
    actor: Annotated[str | None, Query(max_length=200)] = None,
    since: Moment | None = None,
    until: Moment | None = None,
) -> AuditFilter:
    if unknown := sorted(set(kind or ()) - set(EVENT_TYPES)):
        raise Problem("invalid", f"no event kind {unknown[0]!r}, known: {', '.join(EVENT_TYPES)}")
    return AuditFilter(
        kinds=tuple(kind or ()),
        since=since,
        until=until,
        cluster=_cluster(caller, cluster),
        workload=WorkloadId(workload) if workload else None,
        attempt=AttemptId(attempt) if attempt else None,
        incident=IncidentId(incident) if incident else None,
        recommendation=RecommendationId(recommendation) if recommendation else None,
        node=NodeName(node) if node else None,
        actor=actor,
    )


def _cluster(caller: Principal, asked: str | None) -> ClusterId | None:
    """A token for one cluster reads that one's events and no others."""
    if asked is not None and not caller.may_see(asked):
        raise Problem("forbidden", f"the token is for cluster {caller.cluster!r}, not {asked!r}")
    cluster = asked or caller.cluster
    return ClusterId(cluster) if cluster else None


Where = Annotated[AuditFilter, Depends(_where)]


@router.get("/audit", operation_id="readAudit", responses=documented())
@permits(Permission.READ)
def read_audit(app: App, where: Where, limit: Limit = DEFAULT_PAGE, cursor: Cursor = None) -> AuditPage:
    """Events in the order in which they were recorded."""
    after = position_of(cursor) if cursor is not None else 0
    stored = app.journal.audit.read(after, limit + 1, where)
    items = [
        EntryTold(
            position=one.position,
            at=one.event.at,
            kind=one.event.kind,
            hash=one.hash,
            event=to_json(one.event),
        )
        for one in stored[:limit]
    ]
    return AuditPage(
        items=items,
        next_cursor=cursor_of(items[-1].position) if len(stored) > limit else None,
        head=_head(app.journal.audit.head()),
    )


@router.post("/audit/verify", operation_id="verifyAudit", responses=documented(413, 415))
@permits(Permission.READ)
def verify_audit(body: VerifyAsk, app: App) -> VerificationTold:
    """Walk the whole chain; what was changed, removed or cut is named by its first position."""
    anchor = Head(position=body.anchor.position, hash=body.anchor.hash) if body.anchor else None
    with _heavy():
        found = app.journal.audit.verify(anchor)
    broken = found.broken
    return VerificationTold(
        is_sound=found.is_sound,
        events=found.events,
        head=_head(found.head),
        broken=BreakTold(position=broken.position, expected=broken.expected, found=broken.found, reason=broken.reason)
        if broken
        else None,
    )


@router.get(
    "/audit/export",
    operation_id="exportAudit",
    response_class=FileResponse,
    responses=documented()
    | {200: {"content": {"application/vnd.apache.parquet": {}}, "description": "The events as Parquet"}},
)
@permits(Permission.READ)
def export_audit(app: App, where: Where) -> FileResponse:
    """The events that match, as a Parquet file, while the log stays in use."""
    folder = tempfile.mkdtemp(prefix="relight-export-")
    try:
        with _heavy():
            made = app.journal.audit.export(folder, where)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return FileResponse(
        made.path,
        media_type="application/vnd.apache.parquet",
        filename="relight-audit.parquet",
        headers={"Relight-Audit-Head": f"{made.head.position}:{made.head.hash}"},
        background=BackgroundTask(shutil.rmtree, folder, ignore_errors=True),
    )


@contextmanager
def _heavy() -> Iterator[None]:
    """Few at a time: a walk over everything must not starve the advice."""
    if not _HEAVY.acquire(timeout=10):
        raise Problem("overloaded", "too many walks over the audit log at once")
    try:
        yield
    finally:
        _HEAVY.release()


def _head(head: Head) -> HeadTold:
    return HeadTold(position=head.position, hash=head.hash)
