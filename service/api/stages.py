# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`/v1/stages`: how far each class of failures is trusted, by its record, and who said so."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import ConfigDict, Field

from relight.promotion import Stage, TrackRecord
from relight.types import ClusterId, FailureClass
from service.api.access import App, cluster_of, resource
from service.api.problems import documented
from service.api.security import Caller, permits
from service.api.wire import Actor, Ask, Identifier, Moment, Reason, Told, require_match, tag
from service.application import Application
from service.promoting import Standing
from service.tokens import Permission

router = resource("stages")


class StageAsk(Ask):
    """One class to another stage: down at will, up by one rung and over its bar."""

    cluster_id: Identifier | None = None
    failure_class: FailureClass = Field(alias="class")
    stage: Stage
    actor: Actor
    reason: Reason


class RecordTold(Told):
    """What the advice on a class was worth; the interval is Wilson's at 95 %, null without a decided case."""

    decided: int
    held: int
    pending: int
    workloads: int
    false_stops: int
    share: float | None
    low: float | None
    high: float | None


class BarTold(Told):
    stage: str
    cases: int
    share: float
    workloads: int
    false_stops: int | None


class StageTold(Told):
    """`missing` says why the class may not rise to `following`; empty: a person may raise it."""

    model_config = ConfigDict(frozen=True, populate_by_name=True)

    failure_class: str = Field(alias="class")
    stage: str
    mode: str
    following: str | None
    may_rise: bool
    missing: list[str]
    record: RecordTold
    previous: str | None
    actor: str
    reason: str
    changed_at: Moment | None


class StagesTold(Told):
    """The classes of one cluster. The ETag is that of the stages, not of their records."""

    model_config = ConfigDict(frozen=True, title="Stages")

    cluster_id: str
    start: str
    window_days: int
    bars: list[BarTold]
    classes: list[StageTold]
    etag: str = ""


class _Settings(Told):
    """What two people who change stages must not overwrite unseen."""

    stages: list[tuple[str, str, str]]


@router.get("/stages", operation_id="getStages", response_model=StagesTold, responses=documented())
@permits(Permission.READ)
def get_stages(
    caller: Caller, app: App, response: Response, cluster: Annotated[str | None, Query(max_length=128)] = None
) -> Any:
    """Every class with its stage, its record, and whether it may rise; why not, where not."""
    told = _told(app, cluster_of(caller, app, cluster))
    response.headers["ETag"] = told.etag
    return told


@router.put("/stages", operation_id="putStage", responses=documented(409, 412, 413, 415, 428))
@permits(Permission.OPERATE)
def put_stage(body: StageAsk, caller: Caller, app: App, request: Request, response: Response) -> StagesTold:
    """Set one class's stage; `below_the_bar` says what is missing, and the ETag of all stages must match."""
    cluster = cluster_of(caller, app, body.cluster_id)
    with app.journal.lock:
        require_match(request, _settings(app, cluster))
        app.stages.set(cluster, body.failure_class, body.stage, body.actor, body.reason)
        told = _told(app, cluster)
    response.headers["ETag"] = told.etag
    return told


def _told(app: Application, cluster: ClusterId) -> StagesTold:
    settings = app.settings.promotion
    return StagesTold(
        cluster_id=cluster,
        start=settings.start,
        window_days=settings.window_days,
        bars=[
            BarTold(stage=stage, cases=bar.cases, share=bar.share, workloads=bar.workloads, false_stops=bar.false_stops)
            for stage, bar in settings.bars.items()
        ],
        classes=[standing_told(one) for one in app.stages.standings(cluster)],
        etag=_tag(app, cluster),
    )


def standing_told(one: Standing) -> StageTold:
    entry, following = one.entry, one.following
    return StageTold(
        failure_class=one.failure_class,
        stage=one.stage,
        mode=one.stage.mode,
        following=following.stage if following is not None else None,
        may_rise=following is not None and following.is_open,
        missing=list(following.missing) if following is not None else [],
        record=_record(one.record),
        previous=entry.previous if entry is not None else None,
        actor=entry.actor if entry is not None else "",
        reason=entry.reason if entry is not None else "",
        changed_at=entry.changed_at if entry is not None else None,
    )


def _record(one: TrackRecord) -> RecordTold:
    return RecordTold(
        decided=one.decided,
        held=one.held,
        pending=one.pending,
        workloads=one.workloads,
        false_stops=one.false_stops,
        share=one.share,
        low=one.low,
        high=one.high,
    )


def _settings(app: Application, cluster: ClusterId) -> _Settings:
    known = app.journal.state.stages
    return _Settings(
        stages=[
            (str(failure_class), str(entries[-1].stage), entries[-1].changed_at.isoformat())
            for (owner, failure_class), entries in sorted(known.items())
            if owner == cluster
        ]
    )


def _tag(app: Application, cluster: ClusterId) -> str:
    with app.journal.view:
        return tag(_settings(app, cluster))
