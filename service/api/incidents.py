# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`/v1/incidents`: what is going on, and why Relight says so."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Request, Response
from pydantic import ConfigDict, Field

from relight.incidents import IncidentState
from relight.jsonform import decode
from relight.trace_ids import trace_id
from relight.types import Attribution, Evidence, LogRef
from relight.watching import opens_incident
from service.api.access import App, incident_of, resource
from service.api.anomalies import AnomalyTold, Place, anomaly_told
from service.api.problems import documented
from service.api.recommendation_wire import RecommendationTold, recommendation_told
from service.api.security import Caller, permits
from service.api.wire import (
    DEFAULT_PAGE,
    Cursor,
    FromLog,
    JsonObject,
    Limit,
    Moment,
    Page,
    PathId,
    Told,
    page,
    single,
    tag,
)
from service.application import Application
from service.records import IncidentRecord, RecommendationRecord
from service.silencing import silences_on
from service.tokens import Permission

router = resource("incidents")


class IncidentTold(Told):
    """`silence_ids` are the silences that stand over it: nobody is sent messages, and nothing else changes."""

    model_config = ConfigDict(frozen=True, title="Incident")

    id: str
    attempt_id: str
    workload_id: str | None
    cluster_id: str | None
    state: str
    onset_at: Moment
    opened_at: Moment
    changed_at: Moment
    anomalies: list[str]
    summary: FromLog
    reason: FromLog
    recurrence_of: str | None
    recommendation_id: str | None
    silenced_until: Moment | None
    silence_ids: list[str]
    trace_id: str = Field(description="of the recovery's trace, where traces are sent to a collector")
    revision: int
    etag: str = ""


class EvidenceTold(Told):
    """A line that bears the verdict; its text is shown with control characters as codes."""

    signature_id: str
    title: FromLog
    failure: str
    role: str
    severity: str
    stream: str
    where: Place
    text: FromLog
    at: Moment | None
    node: str | None
    rank: int | None
    captures: JsonObject
    count: int
    does_not_prove: str


class LoserTold(Told):
    signature_id: str
    failure: str
    where: Place
    lost_to: FromLog


class SuspectTold(Told):
    node: str | None
    rank: int | None
    gpu: str | None
    score: float
    is_independent: bool
    reason: FromLog


class WhyTold(Told):
    """The verdict with its evidence, what lost to what, what was spent, and what would change it."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, title="Why")

    incident: IncidentTold
    anomalies: list[AnomalyTold]
    failure: str | None
    failure_class: str | None = Field(alias="class")
    evidence_status: str | None
    attributor: str | None
    summary: FromLog
    root: EvidenceTold | None
    confirmations: list[Place]
    losers: list[LoserTold]
    suspects: list[SuspectTold]
    ranks: list[int]
    last_step: int | None
    made_progress: str
    decision_basis: list[FromLog]
    ledgers_before: JsonObject
    ledgers_after: JsonObject
    counterfactual: FromLog
    recommendation: RecommendationTold | None


@router.get("/incidents", operation_id="listIncidents", responses=documented())
@permits(Permission.READ)
def list_incidents(
    caller: Caller,
    app: App,
    state: IncidentState | None = None,
    attempt: Annotated[str | None, Query(max_length=200)] = None,
    workload_id: Annotated[str | None, Query(max_length=200)] = None,
    is_open: bool | None = None,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
) -> Page[IncidentTold]:
    """Newest first."""
    with app.journal.view:
        found = [
            one
            for one in app.journal.state.incidents.values()
            if caller.may_see(one.opened.cluster or "")
            and state in (None, one.state)
            and attempt in (None, one.opened.attempt)
            and workload_id in (None, one.opened.workload)
            and is_open in (None, one.is_open)
        ]
        cut, following = page(found, lambda one: one.position, limit, cursor)
        return Page(items=[incident_told(app, one) for one in cut], next_cursor=following)


@router.get(
    "/incidents/{incident_id}", operation_id="getIncident", response_model=IncidentTold,
    responses=documented(404),
)  # fmt: skip
@permits(Permission.READ)
def get_incident(incident_id: PathId, caller: Caller, app: App, request: Request, response: Response) -> Any:
    """One incident."""
    known = incident_of(caller, app, incident_id)
    with app.journal.view:
        return single(request, response, incident_told(app, known))


@router.get("/incidents/{incident_id}/why", operation_id="explainIncident", responses=documented(404))
@permits(Permission.READ)
def explain_incident(incident_id: PathId, caller: Caller, app: App) -> WhyTold:
    """Why: lines, losers and what they lost to, ledgers before and after, and the counterfactual."""
    known = incident_of(caller, app, incident_id)
    with app.journal.view:
        return _why(app, known)


def incident_told(app: Application, known: IncidentRecord) -> IncidentTold:
    """`anomalies` are what opened it and every kind confirmed since: a slow job may come to hang."""
    opened = known.opened
    joined = (
        one.event.anomaly.kind
        for one in app.journal.state.anomalies_of.get(opened.attempt, ())
        if one.event.incident == known.id and opens_incident(one.event.anomaly)
    )
    muted = silences_on(app.journal.state, known, app.journal.now())
    body = IncidentTold(
        id=known.id,
        attempt_id=opened.attempt,
        workload_id=opened.workload,
        cluster_id=opened.cluster,
        state=known.state,
        onset_at=opened.onset_at,
        opened_at=opened.at,
        changed_at=known.changed_at,
        anomalies=list(dict.fromkeys([*opened.anomalies, *joined])),
        summary=opened.summary,
        reason=known.reason,
        recurrence_of=opened.recurrence_of,
        recommendation_id=known.recommendation,
        silenced_until=max((one.silence.ends_at for one in muted), default=None),
        silence_ids=[one.id for one in muted],
        trace_id=trace_id(known.id),
        revision=known.revision,
    )
    return body.model_copy(update={"etag": tag(body)})


def _why(app: Application, known: IncidentRecord) -> WhyTold:
    state, attempt = app.journal.state, known.opened.attempt
    advice = state.recommendations.get(known.recommendation) if known.recommendation else None
    said = _attribution(app, known, advice)
    verdict = advice.issued.verdict if advice else {}
    basis = verdict.get("decision_basis") or ([advice.issued.decision_basis] if advice else [])
    ledgers = advice.issued.ledgers if advice else {}
    return WhyTold(
        incident=incident_told(app, known),
        anomalies=[anomaly_told(one) for one in state.anomalies_of.get(attempt, ())],
        failure=said.failure if said else None,
        failure_class=said.failure_class if said else None,
        evidence_status=said.evidence_status if said else None,
        attributor=said.attributor if said else None,
        summary=said.summary if said else "",
        root=_evidence(said.root) if said and said.root else None,
        confirmations=[_place(where) for where in said.confirmations] if said else [],
        losers=_losers(said),
        suspects=_suspects(said),
        ranks=list(said.ranks) if said else [],
        last_step=said.last_step if said else None,
        made_progress=said.made_progress if said else "unknown",
        decision_basis=list(basis),
        ledgers_before=dict(ledgers.get("before") or {}),
        ledgers_after=dict(ledgers.get("after") or {}),
        counterfactual=str(verdict.get("counterfactual", "")),
        recommendation=recommendation_told(app, advice, app.journal.now()) if advice else None,
    )


def _attribution(app: Application, known: IncidentRecord, advice: RecommendationRecord | None) -> Attribution | None:
    """The attribution that the advice rests on: the newest of its failure, else the newest of all."""
    made = app.journal.state.attributions.get(known.opened.attempt, [])
    wanted = [one for one in made if advice is not None and one.event.failure == advice.issued.failure]
    chosen = (wanted or made)[-1:]
    return decode(Attribution, chosen[0].event.attribution) if chosen else None


def _evidence(one: Evidence) -> EvidenceTold:
    return EvidenceTold(
        signature_id=one.signature,
        title=one.title,
        failure=one.failure,
        role=one.role,
        severity=one.severity,
        stream=one.stream,
        where=_place(one.where),
        text=one.text,
        at=one.at,
        node=one.node,
        rank=one.rank,
        captures=dict(one.captures),
        count=one.count,
        does_not_prove=one.does_not_prove,
    )


def _losers(said: Attribution | None) -> list[LoserTold]:
    return [
        LoserTold(signature_id=one.signature, failure=one.failure, where=_place(one.where), lost_to=one.reason)
        for one in (said.losers if said else ())
    ]


def _suspects(said: Attribution | None) -> list[SuspectTold]:
    return [
        SuspectTold(
            node=one.node, rank=one.rank, gpu=one.gpu, score=one.score, is_independent=one.is_independent,
            reason=one.reason,
        )
        for one in (said.suspects if said else ())
    ]  # fmt: skip


def _place(where: LogRef) -> Place:
    return Place(file=where.file, line=where.line)
