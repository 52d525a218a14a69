# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`/v1/attempts`: what controllers and agents know of a job's runs, and what happened to each."""

from __future__ import annotations

from typing import Annotated, Any, Self

from fastapi import Query, Request, Response
from pydantic import AliasChoices, ConfigDict, Field, model_validator

from relight.events import AttemptObserved, to_json
from relight.ports import AuditFilter
from relight.types import AttemptId, AttemptState, ClusterId, Mode, NodeName, WorkloadId
from relight.watching import TERM_RANGE_S, HangTerms
from service.api.access import App, attempt_of, cluster_of, resource
from service.api.problems import documented
from service.api.security import Caller, permits
from service.api.wire import (
    DEFAULT_PAGE,
    Ask,
    Count,
    Cursor,
    FromLog,
    Identifier,
    JsonObject,
    Limit,
    Measure,
    Moment,
    Node,
    Page,
    PathId,
    Told,
    Words,
    cursor_of,
    page,
    position_of,
    single,
    tag,
)
from service.job_shapes import shape_of
from service.records import AttemptRecord
from service.tokens import Permission

router = resource("attempts")
MAX_NODES = 65_536
Name = Annotated[str, Field(max_length=256)]
Pause = Annotated[int, Field(ge=TERM_RANGE_S[0], le=TERM_RANGE_S[1])]
LogPath = Annotated[str, Field(min_length=1, max_length=4_096)]
Nodes = Annotated[list[Node], Field(max_length=MAX_NODES)]


class Scheduler(Ask):
    kind: str = Field(max_length=32, examples=["slurm"])
    job_id: str = Field(max_length=128, examples=["4711"])
    restart_count: Count | None = Field(
        default=None, description="The scheduler's own count for this job; else the attempt's index."
    )
    array_task: Count | None = None
    het_offset: Count | None = None
    sluid: str | None = Field(default=None, max_length=128)
    uid: str | None = Field(default=None, max_length=128)


class HangBounds(Ask):
    """How long this job's pauses may last, in seconds, where its owner knows better than what was learned."""

    at_least_s: Pause | None = None
    at_most_s: Pause | None = None
    start_s: Pause | None = Field(default=None, description="Until the first step.")

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        said = HangTerms(at_least_s=self.at_least_s, at_most_s=self.at_most_s, start_s=self.start_s)
        if faults := said.faults():
            raise ValueError("; ".join(faults))
        return self


class OptIn(Ask):
    mode: Mode | None = None
    max_restarts: Count | None = None
    max_no_progress: Count | None = None
    hang: HangBounds | None = None


class AttemptAsk(Ask):
    """An upsert: what the observer knows; what it leaves out is unknown."""

    model_config = ConfigDict(populate_by_name=True)

    cluster_id: Identifier | None = None
    workload_id: Identifier
    scheduler: Scheduler
    attempt_index: int = Field(default=0, ge=0, le=1_000_000)
    name: Name = ""
    user: Name = ""
    account: Name = ""
    partition: Name | None = None
    namespace: Name | None = None
    allocated_nodes: Nodes = Field(default=[])
    rank_to_node: dict[Annotated[str, Field(pattern=r"^\d{1,7}$")], Node] = Field(default={})
    requested_nodes: Count | None = None
    gpus_per_node: Count | None = None
    global_batch_size: Measure | None = Field(default=None, description="Of one optimizer step, over all ranks.")
    sequence_length: Measure | None = Field(default=None, description="Tokens of one sample.")
    user_exclusions: Nodes = Field(default=[])
    requeueable: bool | None = None
    time_limit_s: float | None = Field(default=None, gt=0, validation_alias=AliasChoices("time_limit_s", "time_limit"))
    log_paths: list[LogPath] = Field(default=[], max_length=1_000)
    opt_in: OptIn | None = None
    state: AttemptState
    reason: Words = ""
    exit_code: int | None = Field(default=None, ge=-(2**31), le=2**31)
    signal: int | None = Field(default=None, ge=0, le=128)
    actor: Name = ""
    failed_nodes: Nodes = Field(default=[])
    started_at: Moment | None = None
    cluster_nodes: Count | None = None
    partition_nodes: Count | None = None
    eligible_nodes: Count | None = None
    observed_at: Moment


_FOLDED = {
    "cluster_id", "workload_id", "scheduler", "attempt_index", "allocated_nodes", "state", "reason",
    "exit_code", "signal", "actor", "failed_nodes", "observed_at",
}  # fmt: skip


class AttemptTold(Told):
    model_config = ConfigDict(frozen=True, title="Attempt")

    id: str
    cluster_id: str
    workload_id: str
    scheduler: JsonObject
    attempt_index: int
    name: FromLog
    user: FromLog
    account: FromLog
    partition: str | None
    namespace: str | None
    allocated_nodes: list[str]
    failed_nodes: list[str]
    requested_nodes: int | None
    requeueable: bool | None
    state: str
    reason: FromLog
    exit_code: int | None
    signal: int | None
    last_step: int | None
    last_checkpoint: int | None
    log_lines: int
    global_batch_size: int | None
    sequence_length: int | None
    opt_in: JsonObject | None
    observed_at: Moment
    first_seen_at: Moment
    ended_at: Moment | None
    revision: int
    recommendation_id: str | None = None
    incident_id: str | None = None
    etag: str = ""


class AttemptPut(Told):
    """`applied` is false if a later observation is known already."""

    applied: bool
    attempt: AttemptTold


class TimelineEntry(Told):
    position: int
    at: Moment
    kind: str
    event: JsonObject


@router.put(
    "/attempts/{attempt_id}",
    operation_id="putAttempt",
    responses=documented(413, 415) | {201: {"model": AttemptPut, "description": "First seen"}},
)
@permits(Permission.INGEST)
def put_attempt(attempt_id: PathId, body: AttemptAsk, caller: Caller, app: App, response: Response) -> AttemptPut:
    """Upsert an attempt; an older `observed_at` changes nothing."""
    cluster = cluster_of(caller, app, body.cluster_id)
    with app.journal.view:
        is_first = attempt_id not in app.journal.state.attempts
    app.metrics.skew.set((app.journal.now() - body.observed_at).total_seconds())
    record, is_applied = app.intake.put_attempt(_observed(app, AttemptId(attempt_id), cluster, body))
    response.status_code = 201 if is_first else 200
    return AttemptPut(applied=is_applied, attempt=attempt_told(app, record))


@router.get("/attempts", operation_id="listAttempts", responses=documented())
@permits(Permission.READ)
def list_attempts(
    caller: Caller,
    app: App,
    state: AttemptState | None = None,
    workload_id: Annotated[str | None, Query(max_length=200)] = None,
    job_id: Annotated[str | None, Query(max_length=128)] = None,
    cluster: Annotated[str | None, Query(max_length=128)] = None,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
) -> Page[AttemptTold]:
    """Newest first."""
    with app.journal.view:
        found = [
            one
            for one in app.journal.state.attempts.values()
            if caller.may_see(one.seen.cluster)
            and cluster in (None, one.seen.cluster)
            and state in (None, one.seen.state)
            and workload_id in (None, one.seen.workload)
            and job_id in (None, one.seen.scheduler.get("job_id"))
        ]
        cut, following = page(found, lambda one: one.position, limit, cursor)
        return Page(items=[attempt_told(app, one) for one in cut], next_cursor=following)


@router.get(
    "/attempts/{attempt_id}", operation_id="getAttempt", response_model=AttemptTold,
    responses=documented(404),
)  # fmt: skip
@permits(Permission.READ)
def get_attempt(attempt_id: PathId, caller: Caller, app: App, request: Request, response: Response) -> Any:
    """One attempt as last observed."""
    known = attempt_of(caller, app, attempt_id)
    with app.journal.view:
        return single(request, response, attempt_told(app, known))


@router.get("/attempts/{attempt_id}/timeline", operation_id="getAttemptTimeline", responses=documented(404))
@permits(Permission.READ)
def get_attempt_timeline(
    attempt_id: PathId, caller: Caller, app: App, limit: Limit = DEFAULT_PAGE, cursor: Cursor = None
) -> Page[TimelineEntry]:
    """Everything on record about the attempt, oldest first."""
    known = attempt_of(caller, app, attempt_id)
    after = position_of(cursor) if cursor is not None else 0
    stored = app.journal.audit.read(after, limit + 1, AuditFilter(attempt=known.id))
    items = [
        TimelineEntry(position=one.position, at=one.event.at, kind=one.event.kind, event=to_json(one.event))
        for one in stored[:limit]
    ]
    return Page(items=items, next_cursor=cursor_of(items[-1].position) if len(stored) > limit else None)


def attempt_told(app: App, known: AttemptRecord) -> AttemptTold:
    seen, state = known.seen, app.journal.state
    recommendation, incident = state.latest_recommendation(known.id), state.open_incident(known.id)
    shape = shape_of(known)
    body = AttemptTold(
        id=known.id,
        cluster_id=seen.cluster,
        workload_id=seen.workload,
        scheduler=dict(seen.scheduler),
        attempt_index=seen.attempt_index,
        name=known.detail("name", ""),
        user=known.detail("user", ""),
        account=known.detail("account", ""),
        partition=known.detail("partition"),
        namespace=known.detail("namespace"),
        allocated_nodes=list(seen.nodes),
        failed_nodes=list(seen.failed_nodes),
        requested_nodes=known.detail("requested_nodes"),
        requeueable=known.detail("requeueable"),
        state=seen.state,
        reason=seen.reason,
        exit_code=seen.exit_code,
        signal=seen.signal,
        last_step=known.last_step,
        last_checkpoint=known.last_checkpoint,
        log_lines=known.lines,
        global_batch_size=shape.batch,
        sequence_length=shape.sequence_length,
        opt_in=known.detail("opt_in"),
        observed_at=known.observed_at,
        first_seen_at=known.first_seen_at,
        ended_at=known.ended_at,
        revision=known.revision,
        recommendation_id=recommendation.id if recommendation else None,
        incident_id=incident.id if incident else None,
    )
    return body.model_copy(update={"etag": tag(body)})


def _observed(app: App, name: AttemptId, cluster: ClusterId, body: AttemptAsk) -> AttemptObserved:
    detail = body.model_dump(mode="json", exclude=_FOLDED, exclude_none=True, exclude_defaults=True)
    return AttemptObserved(
        at=app.journal.now(),
        attempt=name,
        workload=WorkloadId(body.workload_id),
        cluster=cluster,
        state=body.state,
        attempt_index=body.attempt_index,
        nodes=tuple(map(NodeName, body.allocated_nodes)),
        failed_nodes=tuple(map(NodeName, body.failed_nodes)),
        reason=body.reason,
        exit_code=body.exit_code,
        signal=body.signal,
        actor=body.actor,
        scheduler=body.scheduler.model_dump(exclude_none=True),
        detail={**detail, "observed_at": body.observed_at.isoformat()},
    )
