# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`/v1/policy` and `/v1/modes`: how bold Relight is, changed only with an actor and a reason."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import Request, Response
from pydantic import ConfigDict, Field

from relight.types import FailureClass, Mode
from rules.problems import RulesInvalid
from service.api.access import App, cluster_of, resource
from service.api.problems import Problem, ProblemError, documented
from service.api.security import Caller, permits
from service.api.wire import Actor, Ask, Identifier, Moment, Reason, Told, require_match, single, tag
from service.application import Application
from service.records import ModeEntry
from service.tokens import Permission, Principal

router = resource("policy")


class PolicyAsk(Ask):
    """The whole table as YAML: what is loaded is what was reviewed, comments and all."""

    text: str = Field(min_length=1, max_length=500_000)
    actor: Actor
    reason: Reason


class PolicyTold(Told):
    model_config = ConfigDict(frozen=True, title="Policy")

    version: str
    text: str
    actor: str
    reason: str
    changed_at: Moment | None
    etag: str = ""


class ModeAsk(Ask):
    cluster_id: Identifier | None = None
    scope: Literal["cluster", "partition", "class", "workload"]
    target: str = Field(min_length=1, max_length=200)
    mode: Mode
    actor: Actor
    reason: Reason


class ModeTold(Told):
    cluster_id: str | None
    scope: str
    target: str
    mode: str
    actor: str
    reason: str
    changed_at: Moment


class ModesTold(Told):
    """Every mode that was set; the lowest of those that apply wins, `default` where a cluster has none."""

    model_config = ConfigDict(frozen=True, title="Modes")

    default: str
    entries: list[ModeTold]
    etag: str = ""


@router.get("/policy", operation_id="getPolicy", response_model=PolicyTold, responses=documented())
@permits(Permission.READ)
def get_policy(app: App, request: Request, response: Response) -> Any:
    """The policy table in force."""
    return single(request, response, _policy(app))


@router.put("/policy", operation_id="putPolicy", responses=documented(412, 413, 415, 428))
@permits(Permission.OPERATE)
def put_policy(body: PolicyAsk, caller: Caller, app: App, request: Request, response: Response) -> PolicyTold:
    """Replace the table; a faulty one is refused whole, with the place and the way out of each fault."""
    _require_every_cluster(caller)
    with app.journal.lock:
        require_match(request, _policy(app))
        try:
            app.policies.put(body.text, body.actor, body.reason)
        except RulesInvalid as why:
            errors = [ProblemError(detail=str(one), pointer="/text") for one in why.problems]
            raise Problem("invalid", f"{len(errors)} faults in the policy table", errors=errors) from why
        told = _policy(app)
    response.headers["ETag"] = told.etag
    return told


@router.get("/modes", operation_id="getModes", response_model=ModesTold, responses=documented())
@permits(Permission.READ)
def get_modes(caller: Caller, app: App, request: Request, response: Response) -> Any:
    """The modes that were set, for the clusters that the caller may see."""
    with app.journal.view:
        return single(request, response, _modes(app, caller))


@router.put("/modes", operation_id="putMode", responses=documented(412, 413, 415, 428))
@permits(Permission.OPERATE)
def put_mode(body: ModeAsk, caller: Caller, app: App, request: Request, response: Response) -> ModesTold:
    """Set one mode; an unknown class is refused, and the ETag of all modes must match."""
    cluster = cluster_of(caller, app, body.cluster_id)
    if body.scope == "class" and body.target not in set(FailureClass):
        raise Problem("invalid", f"no class {body.target!r}, choose from {', '.join(FailureClass)}")
    with app.journal.lock:
        require_match(request, _modes(app, caller))
        app.operation.set_mode(cluster, body.scope, body.target, body.mode, body.actor, body.reason)
        told = _modes(app, caller)
    response.headers["ETag"] = told.etag
    return told


def _policy(app: Application) -> PolicyTold:
    known = app.policies.current()
    body = PolicyTold(
        version=known.version,
        text=known.text,
        actor=known.actor,
        reason=known.reason,
        changed_at=known.changed_at,
    )
    return body.model_copy(update={"etag": tag(body)})


def _modes(app: Application, caller: Principal) -> ModesTold:
    entries = sorted(app.journal.state.modes.items())
    body = ModesTold(
        default=app.settings.recommend.mode,
        entries=[_mode(one) for (owner, _, _), one in entries if not owner or caller.may_see(owner)],
    )
    return body.model_copy(update={"etag": tag(body)})


def _mode(entry: ModeEntry) -> ModeTold:
    return ModeTold(
        cluster_id=entry.cluster,
        scope=entry.scope,
        target=entry.target,
        mode=entry.mode,
        actor=entry.actor,
        reason=entry.reason,
        changed_at=entry.changed_at,
    )


def _require_every_cluster(caller: Principal) -> None:
    if caller.cluster is not None:
        raise Problem("forbidden", "the policy table is for every cluster, the token only for one")
