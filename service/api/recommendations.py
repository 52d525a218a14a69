# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`/v1/recommendations`: ask what to do about an attempt, read answers, wait for new ones."""

from __future__ import annotations

import asyncio
import hashlib
import re
import time
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from fastapi import Header, Query, Request, Response
from pydantic import Field, model_validator
from starlette.concurrency import run_in_threadpool

from relight.types import Action, AttemptId, Exclusion, NodeName, Trigger
from service.advisor import Advice, Advisor
from service.advisor import Request as AdviceRequest
from service.api.access import App, attempt_of, recommendation_of, resource
from service.api.problems import Problem, documented
from service.api.recommendation_wire import RecommendationTold, recommendation_told
from service.api.security import Caller, permits
from service.api.wire import (
    DEFAULT_PAGE,
    Actor,
    Ask,
    Cursor,
    Identifier,
    Limit,
    Node,
    Page,
    PathId,
    Reason,
    body_hash,
    page,
    single,
)
from service.application import Application
from service.journal import Journal
from service.records import RecommendationRecord
from service.tokens import Permission, Principal
from service.verdicts import Proposal

router = resource("recommendations")
_DURATION = re.compile(r"(\d{1,6}(?:\.\d{1,3})?)(ms|s|m)?")
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, None: 1.0}
MAX_EVIDENCE_WAIT_MS = 60_000


class ExclusionAsked(Ask):
    node: Node
    reason: Reason = "proposed by a person"
    score: float = Field(default=1.0, ge=0, le=1)


class ProposedAction(Ask):
    action: Literal["restart", "restart_excluding", "stop"]
    exclusions: list[ExclusionAsked] = Field(default=[], max_length=64)

    @model_validator(mode="after")
    def _excludes_only_when_it_says_so(self) -> Self:
        if bool(self.exclusions) != (self.action == "restart_excluding"):
            raise ValueError("exclusions go with the action restart_excluding, and only with that one")
        return self


class RecommendationAsk(Ask):
    """Either a trigger (decide now) or a person's proposal with its author."""

    attempt_id: Identifier
    trigger: Trigger | None = Field(default=None, examples=["exited"])
    deadline_ms: int | None = Field(default=None, ge=100, le=240_000)
    wait_ms: int | None = Field(default=None, ge=0, le=MAX_EVIDENCE_WAIT_MS)
    proposed: ProposedAction | None = None
    author: Actor | None = None

    @model_validator(mode="after")
    def _is_one_of_the_two_forms(self) -> Self:
        if (self.trigger is None) == (self.proposed is None):
            raise ValueError("send either trigger or proposed")
        if self.trigger is Trigger.DETECTED:
            raise ValueError("detected is for advice that nobody asked for; send exited, manual or external")
        if (self.proposed is None) != (self.author is None):
            raise ValueError("proposed and author go together")
        if self.proposed is not None and (self.deadline_ms, self.wait_ms) != (None, None):
            raise ValueError("deadline_ms and wait_ms go with a trigger")
        return self


class RecommendationPage(Page[RecommendationTold]):
    """`revision` goes into the next `since_revision`; one lower than before means: start again from 0."""

    revision: int


Key = Annotated[str | None, Header(alias="Idempotency-Key", min_length=1, max_length=255)]


@router.post(
    "/recommendations",
    operation_id="requestRecommendation",
    response_model=RecommendationTold,
    status_code=201,
    responses=documented(404, 409, 413, 415)
    | {200: {"model": RecommendationTold, "description": "The answer given before"}},
)
@permits(Permission.ADVISE)
async def request_recommendation(
    body: RecommendationAsk, caller: Caller, app: App, response: Response, idempotency_key: Key = None
) -> RecommendationTold:
    """Decide now, or hand in a person's proposal. Recorded first, answered second."""
    attempt = _registered(caller, app, body.attempt_id)
    if body.wait_ms:
        await _evidence(app.advisor, app.journal, attempt, body.wait_ms / 1000)
    advice = await run_in_threadpool(_advised, app, caller, body, idempotency_key)
    if not advice.is_new:
        response.status_code = 200
    told = recommendation_told(app, advice.recommendation, app.journal.now())
    response.headers["ETag"] = told.etag
    response.headers["Location"] = f"/v1/recommendations/{told.id}"
    return told


@router.get(
    "/recommendations",
    operation_id="listRecommendations",
    responses=documented(),
)
@permits(Permission.READ)
async def list_recommendations(
    caller: Caller,
    app: App,
    cluster: Annotated[str | None, Query(max_length=128)] = None,
    state: Annotated[str | None, Query(max_length=32)] = None,
    actionable: bool | None = None,
    attempt: Annotated[str | None, Query(max_length=200)] = None,
    since_revision: Annotated[int | None, Query(ge=0)] = None,
    wait: Annotated[str | None, Query(max_length=12, examples=["30s"])] = None,
    limit: Limit = DEFAULT_PAGE,
    cursor: Cursor = None,
) -> RecommendationPage:
    """Newest first; with `since_revision` in the order of change, waiting up to `wait` for the first one.

    An early empty answer promises nothing: ask again with the revision it carries.
    """
    if since_revision is not None and cursor is not None:
        raise Problem("malformed_parameter", "since_revision goes on by itself, without a cursor")
    wanted = _Wanted(caller, cluster, state, actionable, attempt)
    if since_revision is None:
        return _listed(app, wanted, limit, cursor)
    left = time.monotonic() + min(_seconds(wait), app.settings.server.max_wait_s)
    with app.journal.bell.listening() as changed:
        while True:
            changed.clear()
            found = _changed(app, wanted, since_revision, limit)
            remaining = left - time.monotonic()
            if found.items or found.revision < since_revision or remaining <= 0:
                return found
            try:
                await asyncio.wait_for(changed.wait(), remaining)
            except TimeoutError:
                return _changed(app, wanted, since_revision, limit)


@router.get(
    "/recommendations/{recommendation_id}",
    operation_id="getRecommendation",
    response_model=RecommendationTold,
    responses=documented(404),
)
@permits(Permission.READ)
def get_recommendation(
    recommendation_id: PathId, caller: Caller, app: App, request: Request, response: Response
) -> Any:
    """One recommendation in its newest generation."""
    known = recommendation_of(caller, app, recommendation_id)
    with app.journal.view:
        return single(request, response, recommendation_told(app, known, app.journal.now()))


class _Wanted:
    """The filters of a listing."""

    def __init__(
        self,
        caller: Principal,
        cluster: str | None,
        state: str | None,
        actionable: bool | None,
        attempt: str | None,
    ) -> None:
        self.caller, self.cluster, self.state = caller, cluster, state
        self.actionable, self.attempt = actionable, attempt

    def matches(self, app: Application, known: RecommendationRecord) -> bool:
        cluster = known.issued.cluster or ""
        return (
            self.caller.may_see(cluster)
            and self.cluster in (None, cluster)
            and self.state in (None, known.state)
            and self.attempt in (None, known.issued.attempt)
            and self.actionable in (None, app.gates.is_actionable(known, app.journal.now()))
        )


def _listed(app: Application, wanted: _Wanted, limit: int, cursor: str | None) -> RecommendationPage:
    with app.journal.view:
        state, now = app.journal.state, app.journal.now()
        found = [one for one in state.recommendations.values() if wanted.matches(app, one)]
        cut, following = page(found, lambda one: one.position, limit, cursor)
        items = [recommendation_told(app, one, now) for one in cut]
        return RecommendationPage(items=items, next_cursor=following, revision=state.position)


def _changed(app: Application, wanted: _Wanted, since: int, limit: int) -> RecommendationPage:
    with app.journal.view:
        state, now = app.journal.state, app.journal.now()
        start = since if since <= state.position else 0
        fresh = (one for one in state.recommendations.values() if one.revision > start)
        found = sorted((one for one in fresh if wanted.matches(app, one)), key=lambda one: one.revision)
        cut = found[:limit]
        revision = cut[-1].revision if len(found) > limit else state.position
        items = [recommendation_told(app, one, now) for one in cut]
        return RecommendationPage(items=items, revision=revision)


def _seconds(wait: str | None) -> float:
    if wait is None:
        return 0.0
    found = _DURATION.fullmatch(wait.strip())
    if found is None:
        raise Problem("malformed_parameter", f"wait={wait!r}: write it as 30s, 500ms or 1m")
    return float(found[1]) * _UNITS[found[2]]


def _registered(caller: Principal, app: Application, name: str) -> AttemptId:
    try:
        return attempt_of(caller, app, name).id
    except Problem as why:
        raise Problem("unknown_attempt", f"attempt {name!r}: PUT /v1/attempts/{name} first") from why


def _advised(app: Application, caller: Principal, body: RecommendationAsk, key: str | None) -> Advice:
    attempt = attempt_of(caller, app, body.attempt_id)
    # A key made by us stands for the question alone: how long somebody waits for it is no other question.
    question = f"{attempt.seen.cluster}/{attempt.id}/{body.trigger or body_hash(body)}"
    ask = AdviceRequest(
        attempt=attempt.id,
        trigger=body.trigger or Trigger.MANUAL,
        key=key if key is not None else "default:" + hashlib.sha256(question.encode()).hexdigest(),
        body_sha256=body_hash(body) if key is not None else hashlib.sha256(question.encode()).hexdigest(),
        actor=body.author or caller.client,
        deadline_s=body.deadline_ms / 1000 if body.deadline_ms else None,
    )
    return app.advisor.advise(ask, _proposal(app, body))


def _proposal(app: Application, body: RecommendationAsk) -> Proposal | None:
    if body.proposed is None or body.author is None:
        return None
    expires_at = app.journal.now() + timedelta(seconds=app.settings.recommend.exclusion_ttl_s)
    exclusions = tuple(
        Exclusion(
            node=NodeName(one.node),
            reason=one.reason,
            score=one.score,
            expires_at=expires_at,
            source=f"person:{body.author}",
        )
        for one in body.proposed.exclusions
    )
    return Proposal(action=Action(body.proposed.action), exclusions=exclusions, author=body.author)


async def _evidence(advisor: Advisor, journal: Journal, attempt: AttemptId, wait_s: float) -> None:
    """Give late lines a moment to arrive, while the log names no cause yet."""
    left = time.monotonic() + wait_s
    with journal.bell.listening() as changed:
        while not await run_in_threadpool(advisor.knows_cause, attempt):
            remaining = left - time.monotonic()
            if remaining <= 0:
                return
            try:
                await asyncio.wait_for(changed.wait(), remaining)
            except TimeoutError:
                return
            changed.clear()
