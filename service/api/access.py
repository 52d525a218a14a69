# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How an endpoint gets at the application, and whether its caller may see an object."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request

from relight.types import AttemptId, ClusterId, IncidentId, RecommendationId
from service.api.problems import Problem
from service.api.security import GuardedRoute, bearer
from service.application import Application
from service.records import AttemptRecord, IncidentRecord, RecommendationRecord
from service.tokens import Principal

Found = TypeVar("Found")


def resource(tag: str) -> APIRouter:
    """A router whose routes must say who may call them."""
    return APIRouter(route_class=GuardedRoute, tags=[tag], dependencies=[Depends(bearer)])


def _application(request: Request) -> Application:
    application: Application = request.app.state.application
    return application


App = Annotated[Application, Depends(_application)]


def cluster_of(caller: Principal, app: Application, asked: str | None) -> ClusterId:
    """The cluster a caller speaks for. Errors: 403 if its token is for another one."""
    cluster = asked or caller.cluster or app.settings.recommend.cluster
    if not caller.may_see(cluster):
        raise Problem("forbidden", f"the token is for cluster {caller.cluster!r}, not {cluster!r}")
    return ClusterId(cluster)


def attempt_of(caller: Principal, app: Application, name: str) -> AttemptRecord:
    return _visible(
        caller, app, lambda: app.journal.state.attempts.get(AttemptId(name)),
        lambda found: found.seen.cluster, f"no attempt {name!r}",
    )  # fmt: skip


def incident_of(caller: Principal, app: Application, name: str) -> IncidentRecord:
    return _visible(
        caller, app, lambda: app.journal.state.incidents.get(IncidentId(name)),
        lambda found: found.opened.cluster, f"no incident {name!r}",
    )  # fmt: skip


def recommendation_of(caller: Principal, app: Application, name: str) -> RecommendationRecord:
    return _visible(
        caller, app, lambda: app.journal.state.recommendations.get(RecommendationId(name)),
        lambda found: found.issued.cluster, f"no recommendation {name!r}",
    )  # fmt: skip


def _visible(
    caller: Principal,
    app: Application,
    find: Callable[[], Found | None],
    cluster: Callable[[Found], str | None],
    missing: str,
) -> Found:
    """What belongs to another cluster does not exist for this caller."""
    with app.journal.view:
        found = find()
    if found is None or not caller.may_see(cluster(found) or ""):
        raise Problem("not_found", missing)
    return found
