# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`/v1/exclusions`: nodes kept out, by whom, why and until when; deleting one is a pardon."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Literal, Self

from fastapi import Query, Request, Response
from pydantic import Field, model_validator

from relight.types import Exclusion, NodeName, WorkloadId
from service.api.access import App, cluster_of, resource
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.wire import (
    DEFAULT_PAGE,
    Actor,
    Ask,
    Cursor,
    FromLog,
    Identifier,
    Limit,
    Moment,
    Node,
    Page,
    Reason,
    Told,
    page,
    require_match,
    tag,
)
from service.records import ExclusionRecord
from service.tokens import Permission

router = resource("exclusions")
Scope = Literal["workload", "cluster"]


class ExclusionAsk(Ask):
    cluster_id: Identifier | None = None
    node: Node
    scope: Scope = "workload"
    workload_id: Identifier | None = None
    score: float = Field(default=1.0, ge=0, le=1)
    evidence: list[Annotated[str, Field(max_length=2_000)]] = Field(default=[], max_length=64)
    expires_at: Moment | None = None
    source: str = Field(default="operator", max_length=200)
    reason: Reason
    actor: Actor

    @model_validator(mode="after")
    def _names_a_workload_if_it_is_for_one(self) -> Self:
        if (self.scope == "workload") != (self.workload_id is not None):
            raise ValueError("workload_id goes with scope workload, and only with that one")
        return self


class ExclusionEntry(Told):
    node: str
    scope: str
    cluster_id: str
    workload_id: str | None
    reason: FromLog
    score: float
    evidence: list[FromLog]
    source: str
    actor: str
    added_at: Moment
    expires_at: Moment
    etag: str = ""


@router.get("/exclusions", operation_id="listExclusions", responses=documented())
@permits(Permission.READ)
def list_exclusions(
    caller: Caller,
    app: App,
    cluster: Annotated[str | None, Query(max_length=128)] = None,
    node: Annotated[str | None, Query(max_length=253)] = None,
    workload_id: Annotated[str | None, Query(max_length=200)] = None,
    scope: Scope | None = None,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
) -> Page[ExclusionEntry]:
    """Those that stand now, newest first."""
    with app.journal.view:
        now = app.journal.now()
        found = [
            one
            for one in app.journal.state.exclusions.values()
            if one.stands(now)
            and caller.may_see(one.cluster)
            and cluster in (None, one.cluster)
            and node in (None, one.exclusion.node)
            and workload_id in (None, one.workload)
            and scope in (None, one.exclusion.scope)
        ]
    cut, following = page(found, lambda one: one.position, limit, cursor)
    return Page(items=[_entry(one) for one in cut], next_cursor=following)


@router.put(
    "/exclusions",
    operation_id="putExclusion",
    status_code=201,
    responses=documented(412, 413, 415, 428) | {200: {"model": ExclusionEntry, "description": "Changed"}},
)
@permits(Permission.OPERATE)
def put_exclusion(body: ExclusionAsk, caller: Caller, app: App, request: Request, response: Response) -> ExclusionEntry:
    """Keep a node out; changing one that stands needs its ETag as If-Match."""
    cluster = cluster_of(caller, app, body.cluster_id)
    workload = WorkloadId(body.workload_id) if body.workload_id else None
    with app.journal.lock:
        known = app.operation.standing(cluster, body.scope, workload, NodeName(body.node))
        require_match(request, _entry(known) if known else None)
        default = app.journal.now() + timedelta(seconds=app.settings.recommend.exclusion_ttl_s)
        exclusion = Exclusion(
            node=NodeName(body.node),
            reason=body.reason,
            score=body.score,
            expires_at=body.expires_at or default,
            scope=body.scope,
            source=body.source,
        )
        record = app.operation.exclude(cluster, workload, exclusion, tuple(body.evidence), body.actor)
    response.status_code = 200 if known else 201
    told = _entry(record)
    response.headers["ETag"] = told.etag
    return told


@router.delete("/exclusions", operation_id="pardonExclusion", status_code=204, responses=documented(404, 412, 428))
@permits(Permission.OPERATE)
def pardon_exclusion(
    caller: Caller,
    app: App,
    request: Request,
    node: Annotated[str, Query(max_length=253)],
    actor: Annotated[str, Query(min_length=1, max_length=200)],
    reason: Annotated[str, Query(min_length=1, max_length=2_000)],
    scope: Scope = "workload",
    workload_id: Annotated[str | None, Query(max_length=200)] = None,
    cluster: Annotated[str | None, Query(max_length=128)] = None,
) -> None:
    """Let a node back in; what was held against it is forgotten too."""
    owner = cluster_of(caller, app, cluster)
    workload = WorkloadId(workload_id) if workload_id else None
    with app.journal.lock:
        known = app.operation.standing(owner, scope, workload, NodeName(node))
        if known is None:
            raise Problem("not_found", f"node {node!r} is not excluded for this {scope}")
        require_match(request, _entry(known))
        app.operation.pardon(known, actor, reason)


def _entry(record: ExclusionRecord) -> ExclusionEntry:
    one = record.exclusion
    body = ExclusionEntry(
        node=one.node,
        scope=one.scope,
        cluster_id=record.cluster,
        workload_id=record.workload,
        reason=one.reason,
        score=one.score,
        evidence=list(record.evidence),
        source=one.source,
        actor=record.actor,
        added_at=record.added_at,
        expires_at=one.expires_at,
    )
    return body.model_copy(update={"etag": tag(body)})
