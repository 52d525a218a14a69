# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Who may see and press what in the console, and how a browser gets in and out."""

from __future__ import annotations

from typing import Any

import pytest

from service.tokens import Role
from service.web.console import PAGES, Entry
from tests.api.browsing import Browser, path_of
from tests.api.running import Service
from tests.api.test_roles import MAY


@pytest.mark.parametrize("entry", PAGES, ids=[f"{one.method} {one.path}" for one in PAGES])
def test_a_page_serves_the_roles_it_grants_and_no_other(
    service: Service, advised: dict[str, Any], entry: Entry
) -> None:
    path = path_of(entry, advised)
    nobody = service.request(entry.method, path, headers={"Authorization": "", "Accept": "application/json"})
    assert (nobody.status_code, nobody.json()["code"]) == (401, "unauthenticated")
    for role in Role:
        answer = service.as_(role).request(entry.method, path, headers={"Accept": "application/json"})
        is_denied = answer.status_code == 403 and "has no permission" in answer.json()["detail"]
        assert is_denied != (entry.permission.value in MAY[role]), f"{role}: {answer.status_code} {answer.text}"


def test_without_a_session_a_page_leads_to_the_login_and_back(service: Service) -> None:
    answer = service.get("/console/incidents?open=1", headers={"Authorization": "", "Accept": "text/html"})
    assert (answer.status_code, answer.headers["location"]) == (
        303, "/console/login?next=%2Fconsole%2Fincidents%3Fopen%3D1",
    )  # fmt: skip
    browser = Browser(service)
    back = browser.login(service.secrets[Role.VIEWER], next="/console/incidents?open=1")
    assert back.headers["location"] == "/console/incidents?open=1"


def test_a_link_from_elsewhere_comes_again_as_our_own_before_anybody_must_log_in(service: Service) -> None:
    headers = {"Authorization": "", "Sec-Fetch-Site": "cross-site"}
    answer = service.get("/console/incidents", headers=headers)
    assert answer.status_code == 200
    assert 'http-equiv="refresh"' in answer.text


def test_the_session_cookie_is_out_of_reach_of_scripts_and_of_other_sites(service: Service) -> None:
    browser = Browser(service)
    cookie = browser.login(service.secrets[Role.VIEWER]).headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/console"} <= {part.strip() for part in cookie.split(";")}
    assert browser.get("/console/fleet").status_code == 200


@pytest.mark.parametrize(
    "following", ["https://evil.example/", "//evil.example", "/\\evil.example", "/v1/stats", "/console//evil"]
)
def test_login_leads_to_pages_of_the_console_only(service: Service, following: str) -> None:
    answer = Browser(service).login(service.secrets[Role.VIEWER], next=following)
    assert answer.headers["location"] == "/console/fleet"


def test_a_wrong_token_and_one_that_may_not_read_stay_outside(service: Service) -> None:
    browser = Browser(service, Role.INGESTER)
    assert "relight_session" not in browser.cookies
    assert browser.login("rlt_admin_nonsense").status_code == 403
    assert browser.get("/console/fleet").status_code == 303


def test_a_revoked_token_ends_its_session(service: Service) -> None:
    browser = Browser(service)
    tokens = service.application.tokens
    tokens.revoke(next(one.sha256 for one in tokens.tokens() if one.role is Role.OPERATOR))
    assert browser.get("/console/fleet").status_code == 303


def test_after_logging_out_the_cookie_is_gone(service: Service) -> None:
    browser = Browser(service)
    left = browser.send("/console/fleet", "/console/logout")
    assert 'relight_session=""' in left.headers["set-cookie"]


def test_a_form_needs_its_proof_its_cookie_and_our_own_page(service: Service, advised: dict[str, Any]) -> None:
    path, page = f"/console/recommendations/{advised['id']}/approve", f"/console/incidents/{advised['incident_id']}"
    browser, other = Browser(service), Browser(service, Role.ADMIN)
    proof, form = browser.proof(browser.get(page).text), {"generation": "1"}
    assert browser.post(path, **form).status_code == 403
    assert browser.post(path, **form, proof="0" * 64).status_code == 403
    assert other.post(path, **form, proof=proof).status_code == 403
    assert service.post(path, data=form | {"proof": proof}).status_code == 403, "a bearer token is no session"
    assert browser.post(path, "cross-site", **form, proof=proof).status_code == 403
    assert browser.post(path, "same-origin", **form, proof=proof).status_code == 303


def test_a_form_is_bounded_and_nothing_but_a_form(service: Service, advised: dict[str, Any]) -> None:
    path = f"/console/recommendations/{advised['id']}/approve"
    assert Browser(service).post(path, note="x" * 70_000).status_code == 413
    assert service.as_(Role.OPERATOR).post(path, json={}).status_code == 415


def test_a_token_for_one_cluster_sees_nothing_of_another(service: Service) -> None:
    service.put_attempt(
        "b-1", cluster_id="other", workload_id="secret-w", allocated_nodes=["secret-n"], user="secret-u"
    )
    advice = service.advise("b-1").json()
    here = service.as_(Role.CONTROLLER)
    for view in ("/fleet", "/incidents", "/goodput", "/nodes", "/rules", "/shadow", "/audit", "/nodes/x"):
        answer = here.get("/console" + view)
        assert answer.status_code == 200
        assert "secret-" not in answer.text, view
    for gone in (f"/incidents/{advice['incident_id']}", "/workload?id=secret-w", "/attempts/b-1/steps"):
        assert here.get("/console" + gone).status_code == 404
    assert "ran here" in here.get("/console/nodes/secret-n").text
    assert "secret-w" not in here.get("/console/nodes/secret-n").text
    assert here.get("/console/audit?cluster=other").status_code == 403


def test_a_viewer_sees_no_button_that_would_not_work(service: Service, advised: dict[str, Any]) -> None:
    page = Browser(service, Role.VIEWER).get(f"/console/incidents/{advised['incident_id']}").text
    assert "/approve" not in page and "/override" not in page and "/feedback" not in page


def test_live_updates_are_for_those_who_may_read(service: Service) -> None:
    assert service.get("/console/live", headers={"Authorization": ""}).status_code == 401
    assert service.as_(Role.INGESTER).get("/console/live").status_code == 403
