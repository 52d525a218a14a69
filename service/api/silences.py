# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`/v1/silences`: messages that somebody muted for a while; nothing else about an incident changes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import ConfigDict, Field

from relight.silences import Matchers
from relight.types import FailureName, NodeName, SignatureId, WorkloadId
from service.api.access import App, cluster_of, resource
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.wire import (
    DEFAULT_PAGE,
    Actor,
    Ask,
    Cursor,
    Identifier,
    Limit,
    Moment,
    Node,
    Page,
    PathId,
    Reason,
    Told,
    page,
    single,
    tag,
)
from service.application import Application
from service.records import SilenceRecord
from service.tokens import Permission, Principal

router = resource("silences")
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:#-]{0,127}$")]


class SilenceAsk(Ask):
    """Every matcher given must hold, and one must be given; `ends_at` is within thirty days."""

    cluster_id: Identifier | None = None
    workload_id: Identifier | None = None
    node: Node | None = None
    failure: Name | None = None
    signature_id: Name | None = None
    ends_at: Moment = Field(examples=["2026-11-02T18:00:00Z"])
    actor: Actor
    reason: Reason


class SilenceTold(Told):
    """A silence mutes messages only: incidents are recorded, advised on and acted on as ever."""

    model_config = ConfigDict(frozen=True, title="Silence")

    id: str
    cluster_id: str
    workload_id: str | None
    node: str | None
    failure: str | None
    signature_id: str | None
    starts_at: Moment
    ends_at: Moment
    actor: str
    reason: str
    is_standing: bool
    ended_at: Moment | None
    ended_by: str
    end_reason: str
    etag: str = ""


@router.post("/silences", operation_id="addSilence", status_code=201, responses=documented(413, 415))
@permits(Permission.OPERATE)
def add_silence(body: SilenceAsk, caller: Caller, app: App, response: Response) -> SilenceTold:
    """Mute the messages about what matches, with a reason and an end."""
    cluster = cluster_of(caller, app, body.cluster_id)
    told = silence_told(app, app.silences.add(cluster, matchers_of(body), body.ends_at, body.actor, body.reason))
    response.headers["ETag"] = told.etag
    response.headers["Location"] = f"/v1/silences/{told.id}"
    return told


@router.get("/silences", operation_id="listSilences", responses=documented())
@permits(Permission.READ)
def list_silences(
    caller: Caller,
    app: App,
    is_standing: bool | None = None,
    cluster: Annotated[str | None, Query(max_length=128)] = None,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
) -> Page[SilenceTold]:
    """Newest first, those that are over included unless asked otherwise."""
    with app.journal.view:
        now = app.journal.now()
        found = [
            one
            for one in app.journal.state.silences.values()
            if caller.may_see(one.silence.cluster)
            and cluster in (None, one.silence.cluster)
            and is_standing in (None, one.stands(now))
        ]
        cut, following = page(found, lambda one: one.position, limit, cursor)
        return Page(items=[silence_told(app, one) for one in cut], next_cursor=following)


@router.get("/silences/{silence_id}", operation_id="getSilence", response_model=SilenceTold, responses=documented(404))
@permits(Permission.READ)
def get_silence(silence_id: PathId, caller: Caller, app: App, request: Request, response: Response) -> Any:
    """One silence."""
    known = silence_of(caller, app, silence_id)
    with app.journal.view:
        return single(request, response, silence_told(app, known))


@router.delete("/silences/{silence_id}", operation_id="endSilence", responses=documented(404))
@permits(Permission.OPERATE)
def end_silence(
    silence_id: PathId,
    caller: Caller,
    app: App,
    actor: Annotated[str, Query(min_length=1, max_length=200)],
    reason: Annotated[str, Query(max_length=2_000)] = "",
) -> SilenceTold:
    """End it now. It stays on record, and ending it again changes nothing."""
    known = silence_of(caller, app, silence_id)
    return silence_told(app, app.silences.end(known.id, actor, reason))


def matchers_of(body: SilenceAsk) -> Matchers:
    return Matchers(
        workload=WorkloadId(body.workload_id) if body.workload_id else None,
        node=NodeName(body.node) if body.node else None,
        failure=FailureName(body.failure) if body.failure else None,
        signature=SignatureId(body.signature_id) if body.signature_id else None,
    )


def silence_of(caller: Principal, app: Application, name: str) -> SilenceRecord:
    """Errors: Problem not_found for one of another cluster too."""
    with app.journal.view:
        known = app.journal.state.silences.get(name)
    if known is None or not caller.may_see(known.silence.cluster):
        raise Problem("not_found", f"no silence {name!r}")
    return known


def silence_told(app: Application, one: SilenceRecord) -> SilenceTold:
    silence, matchers = one.silence, one.silence.matchers
    body = SilenceTold(
        id=one.id,
        cluster_id=silence.cluster,
        workload_id=matchers.workload,
        node=matchers.node,
        failure=matchers.failure,
        signature_id=matchers.signature,
        starts_at=silence.starts_at,
        ends_at=silence.ends_at,
        actor=silence.actor,
        reason=silence.reason,
        is_standing=one.stands(app.journal.now()),
        ended_at=one.ended_at,
        ended_by=one.ended_by,
        end_reason=one.end_reason,
    )
    return body.model_copy(update={"etag": tag(body)})
