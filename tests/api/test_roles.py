# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Every route is walked with every role: denied unless the route grants it."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest

from service.api.app import routes
from service.api.security import PUBLIC, GuardedRoute
from service.tokens import GRANTS, Permission, Role
from tests.api.running import START, Service

# Written down here once more, so that a widened grant must be widened in two places.
MAY = {
    Role.VIEWER: {"read"},
    Role.INGESTER: {"ingest"},
    Role.CONTROLLER: {"read", "ingest", "advise", "control"},
    Role.AUTHOR: {"read", "author", "feedback"},
    Role.OPERATOR: {"read", "advise", "operate", "feedback"},
    Role.ADMIN: {"read", "ingest", "advise", "control", "author", "operate", "feedback"},
}
OPEN_PATHS = {"/livez", "/readyz", "/problems/{code}"}
ROUTES = [(method, path, route) for path, route in routes() for method in sorted(route.methods or ())]


def filled(path: str) -> str:
    return re.sub(r"\{[^}]+\}", "some-id", path)


def test_the_grants_are_those_written_down() -> None:
    assert {role: {str(one) for one in granted} for role, granted in GRANTS.items()} == MAY


def test_only_probes_and_the_meaning_of_errors_are_open() -> None:
    assert {path for _, path, route in ROUTES if route.permission == PUBLIC} == OPEN_PATHS


@pytest.mark.parametrize(("method", "path", "route"), ROUTES, ids=[f"{m} {p}" for m, p, _ in ROUTES])
def test_a_route_serves_the_roles_it_grants_and_no_other(
    service: Service, method: str, path: str, route: GuardedRoute
) -> None:
    if route.permission == PUBLIC:
        assert service.request(method, filled(path), headers={"Authorization": ""}).status_code != 401
        return
    assert service.request(method, filled(path), headers={"Authorization": ""}).status_code == 401
    for role in Role:
        answer = service.as_(role).request(method, filled(path))
        is_denied = answer.status_code == 403 and '"forbidden' in answer.text  # or a Status that says so
        assert is_denied != (route.permission in MAY[role]), f"{role}: {answer.status_code} {answer.text}"


def test_a_route_that_does_not_say_who_may_call_it_cannot_exist() -> None:
    with pytest.raises(LookupError, match="say who may call it"):
        GuardedRoute("/open", lambda: None)


def test_an_expired_or_revoked_token_is_worth_nothing(service: Service) -> None:
    tokens = service.application.tokens
    assert service.get("/v1/stats").status_code == 200
    tokens.revoke(next(t.sha256 for t in tokens.tokens() if t.role is Role.ADMIN))
    assert service.get("/v1/stats").status_code == 401
    service.clock.at = START + timedelta(days=91)
    assert service.as_(Role.VIEWER).get("/v1/stats").status_code == 401


def test_a_token_for_one_cluster_neither_sees_nor_touches_another(service: Service) -> None:
    service.put_attempt("b-1", cluster_id="other")
    advice = service.advise("b-1").json()
    here = service.as_(Role.CONTROLLER)
    assert here.get("/v1/attempts").json()["items"] == []
    assert here.get("/v1/recommendations").json()["items"] == []
    assert here.get("/v1/audit").json()["items"] and all(
        one["event"]["cluster"] == "default" for one in here.get("/v1/audit").json()["items"]
    )
    for path in ("/v1/attempts/b-1", f"/v1/recommendations/{advice['id']}", "/v1/attempts/b-1/timeline"):
        assert here.get(path).status_code == 404
    claim = {"controller_id": "c", "observed_generation": 1}
    assert here.post(f"/v1/recommendations/{advice['id']}/claim", json=claim).status_code == 404
    assert here.put_attempt("b-2", cluster_id="other").status_code == 403
    assert here.advise("b-1").status_code == 404
    lines = here.send_lines({"attempt_id": "b-1", "text": "x"}).json()
    assert (lines["accepted"], lines["held"]) == (0, 1), "as if nobody had registered it"


def test_the_permissions_are_all_used() -> None:
    used = {route.permission for _, _, route in ROUTES} - {PUBLIC}
    assert used == set(Permission)
