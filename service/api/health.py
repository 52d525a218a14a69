# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Probes, figures and the meaning of error codes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fastapi import Request, Response
from fastapi.responses import JSONResponse

from relight.ports import AuditUnavailable
from service.api.access import App, resource
from service.api.problems import PROBLEMS, Problem, documented
from service.api.security import Caller, permits, public
from service.api.wire import Moment, PathId, Told
from service.application import Application
from service.repairs import SERIOUS
from service.tokens import Permission

router = resource("health")
root = resource("health")
_DOUBT = timedelta(seconds=30)


class Alive(Told):
    status: str = "ok"


class Ready(Told):
    """`degraded` names what is amiss without making Relight useless: it never unreadies a pod."""

    is_ready: bool
    checks: dict[str, bool]
    degraded: list[str]


class RepairTold(Told):
    """Something that the audit log mended or doubts; `first` to `last` are the positions concerned."""

    at: Moment
    repair: str
    summary: str
    is_serious: bool
    first: int | None
    last: int | None
    kept_at: str


class Health(Ready):
    """As `/readyz`, with what the audit log has had to say of itself since this start."""

    audit_repairs: list[RepairTold]


class Stats(Told):
    revision: int
    attempts: dict[str, int]
    incidents: dict[str, int]
    recommendations: dict[str, int]
    actions: dict[str, int]
    events: dict[str, int]
    signals: dict[str, int]
    exclusions: int
    audit_position: int
    audit_hash: str
    rule_set_hash: str
    policy_version: str


class Meaning(Told):
    code: str
    status: int
    title: str


@root.get("/livez", operation_id="getLiveness")
@public
def get_liveness() -> Alive:
    """The process answers; touches nothing."""
    return Alive()


@root.get("/readyz", operation_id="getReadiness", responses={503: {"model": Ready}})
@public
def get_readiness(app: App, request: Request, response: Response) -> Ready:
    """Whether advice can be recorded and rules are loaded; a blind scheduler only degrades."""
    ready = _ready(app, request)
    response.status_code = 200 if ready.is_ready else 503
    return ready


@router.get("/health", operation_id="getHealth", responses=documented())
@permits(Permission.READ)
def get_health(app: App, request: Request) -> Health:
    """What `/readyz` says, and every repair of the audit log since this start."""
    repairs = [
        RepairTold(at=one.at, repair=one.repair, summary=one.summary, is_serious=one.repair in SERIOUS,
                   first=one.first, last=one.last, kept_at=one.kept_at)
        for one in app.repairs.all()
    ]  # fmt: skip
    return Health(**_ready(app, request).model_dump(), audit_repairs=repairs)


def _ready(app: Application, request: Request) -> Ready:
    journal = app.journal
    refused = journal.refused_at
    try:
        journal.audit.head()
        is_writable = refused is None or journal.now() - refused > _DOUBT
    except AuditUnavailable:
        is_writable = False
    checks = {
        "audit_writable": is_writable,
        "rules_loaded": bool(app.rules_digest()),
        "is_serving": not getattr(request.app.state, "is_stopping", False),
    }
    return Ready(is_ready=all(checks.values()), checks=checks, degraded=app.degraded())


@root.get("/metrics", operation_id="getMetrics", response_class=Response, responses=documented())
@permits(Permission.READ)
def get_metrics(app: App) -> Response:
    """Figures in the Prometheus text format."""
    return Response(app.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@root.get("/problems/{code}", operation_id="explainProblem", responses=documented(404))
@public
def explain_problem(code: PathId) -> Meaning:
    """What the `type` of a problem points to."""
    if code not in PROBLEMS:
        raise Problem("not_found", f"no problem {code!r}, known: {', '.join(PROBLEMS)}")
    status, title = PROBLEMS[code]
    return Meaning(code=code, status=status, title=title)


@router.get("/openapi.json", operation_id="getOpenapi", response_class=JSONResponse, responses=documented())
@permits(Permission.READ)
def get_openapi(request: Request) -> JSONResponse:
    """This API as an OpenAPI document."""
    return JSONResponse(request.app.openapi())


@router.get("/stats", operation_id="getStats", responses=documented())
@permits(Permission.READ)
def get_stats(caller: Caller, app: App) -> Stats:
    """Counts by state; for the clusters that the caller may see, but for the totals of events."""
    head = app.journal.audit.head()
    with app.journal.view:
        state, now = app.journal.state, app.journal.now()
        advice = [one for one in state.recommendations.values() if caller.may_see(one.issued.cluster or "")]
        return Stats(
            revision=state.position,
            attempts=_counted(one.seen.state for one in state.attempts.values() if caller.may_see(one.seen.cluster)),
            incidents=_counted(
                one.state for one in state.incidents.values() if caller.may_see(one.opened.cluster or "")
            ),
            recommendations=_counted(one.state for one in advice),
            actions=_counted(one.issued.action for one in advice),
            events=dict(state.counted.events),
            signals=dict(state.counted.signals),
            exclusions=sum(one.stands(now) and caller.may_see(one.cluster) for one in state.exclusions.values()),
            audit_position=head.position,
            audit_hash=head.hash,
            rule_set_hash=app.rules_digest(),
            policy_version=app.policies.current().version,
        )


def _counted(names: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        counts[str(name)] = counts.get(str(name), 0) + 1
    return counts
