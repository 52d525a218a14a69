# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`/v1/models`: which attribution model speaks beside the rules, promoted and taken back while the service runs."""

from __future__ import annotations

from pydantic import ConfigDict, Field

from relight.types import AttemptId
from service.api.access import App, attempt_of, resource
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.wire import Actor, Ask, FromLog, JsonObject, Moment, PathId, Reason, Told
from service.tokens import Permission

router = resource("models")
JUDGED_BY = "unseen_family"


class ModelTold(Told):
    """An artefact beside the audit log; `problem` says why it can't be believed."""

    model_config = ConfigDict(frozen=True, title="Model")

    digest: str
    model: str | None = Field(description="NAME@VERSION")
    created_at: Moment | None
    is_in_use: bool
    metrics: JsonObject = Field(description="of the cross-validation that a promotion looks at")
    problem: str | None


class ModelsTold(Told):
    model_config = ConfigDict(frozen=True, title="Models")

    items: list[ModelTold]


class ModelPromotionAsk(Ask):
    """A way back is the promotion of what was in use before."""

    model: str = Field(pattern=r"^[a-z][a-z0-9_-]{0,63}@[0-9A-Za-z][0-9A-Za-z._+-]{0,63}$", examples=["attribution@4"])
    actor: Actor
    reason: Reason
    even_if_worse: bool = Field(default=False, description="despite what the figures say; recorded")


class ModelPromotionTold(Told):
    """`is_new` is false if it was in use already, and then nothing was recorded."""

    model_config = ConfigDict(frozen=True, title="ModelPromotion")

    model: str
    digest: str
    previous: str | None
    is_new: bool
    position: int | None
    promoted_at: Moment
    actor: str
    reason: str
    objections: list[str]


class HintTold(Told):
    """A guess that moves no action; without one, `reason` says why nothing is said."""

    model_config = ConfigDict(frozen=True, populate_by_name=True, title="Hint")

    model: str | None
    reason: FromLog
    failure_class: str | None = Field(alias="class")
    confidence: float | None
    is_confident: bool
    classes: list[JsonObject]
    failures: list[JsonObject]


@router.get("/models", operation_id="listModels", responses=documented())
@permits(Permission.READ)
def list_models(app: App) -> ModelsTold:
    """Every artefact at hand, and which one is in use."""
    stored, used = app.models.listed()
    return ModelsTold(
        items=[
            ModelTold(
                digest=one.digest,
                model=one.manifest.reference if one.manifest is not None else None,
                created_at=one.manifest.created_at if one.manifest is not None else None,
                is_in_use=one.digest in used,
                metrics=dict(one.manifest.metrics.get(JUDGED_BY, {})) if one.manifest is not None else {},
                problem=one.problem or None,
            )
            for one in stored
        ]
    )


@router.post("/models/promotions", operation_id="promoteModel", responses=documented(409, 413, 415))
@permits(Permission.AUTHOR)
def promote_model(body: ModelPromotionAsk, caller: Caller, app: App) -> ModelPromotionTold:
    """Check an artefact, record its promotion, and let it speak from then on; repeats change nothing."""
    if caller.cluster is not None:
        raise Problem("forbidden", "a model is for every cluster, the token only for one")
    done = app.models.promote(body.model, body.actor, body.reason, even_if_worse=body.even_if_worse)
    event = done.event
    return ModelPromotionTold(
        model=f"{event.model}@{event.version}",
        digest=event.digest,
        previous=event.previous or None,
        is_new=done.position is not None,
        position=done.position,
        promoted_at=event.at,
        actor=event.actor,
        reason=event.reason,
        objections=list(done.objections),
    )


@router.get("/attempts/{attempt_id}/hint", operation_id="getHint", responses=documented(404))
@permits(Permission.READ)
def get_hint(attempt_id: PathId, caller: Caller, app: App) -> HintTold:
    """What the model in use guesses where the rules name no cause."""
    known = attempt_of(caller, app, attempt_id)
    hint, reason = app.models.hint(AttemptId(known.id))
    said = hint.as_json() if hint is not None else {}
    return HintTold(
        model=said.get("model"),
        reason=reason,
        failure_class=said.get("class"),
        confidence=said.get("confidence"),
        is_confident=bool(said.get("is_confident")),
        classes=said.get("classes", []),
        failures=said.get("failures", []),
    )
