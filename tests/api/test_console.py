# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The console as a browser's requests see it: who may, what twins say, and nothing foreign that runs."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import httpx
import pytest

from relight.events import ModeChanged
from relight.types import ClusterId, Mode
from service.tokens import Role
from service.web.console import PAGES, Entry
from service.web.live import Live
from service.web.sessions import Sessions
from tests.api.running import Service
from tests.api.test_roles import MAY

VIEWS = ("/fleet", "/incidents", "/incidents/{incident}", "/workload?id=llm-7b", "/attempts/a-1/steps", "/goodput",
         "/nodes", "/nodes/n2", "/rules", "/shadow", "/audit", "/audit?verify=1")  # fmt: skip
HOSTILE = (
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "\"><svg onload=alert(1)>", "'-alert(1)-'", "{{7*7}}",
    "{% raw %}", "&lt;b&gt;", "\x1b]0;owned\x07", "\x1b[2J\x1b[1;1H", "a\rb", "bell\x07", "\x9b31m", "\u202eevil\u202c",
    "\u2066x\u2069", "\u061cx", "zero\u200bwidth", "soft\u00adhyphen", "\U000e0041tag", "javascript:alert(1)",
    "[x](javascript:alert(1))", "![x](http://evil.example/x.png)", "`code` break", "``` fence", "| pipe |", "@channel",
    "<!-- comment -->", "</pre></code>", "]]>", "\ufeffbom", "\u2028line", "%0d%0aSet-Cookie:x=1",
)  # fmt: skip
DRIVING = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\U000e0000-\U000e007f]"
)


class Browser:
    """A cookie jar of one, and the proof read from the page, as a browser would hold them."""

    def __init__(self, service: Service, role: Role = Role.OPERATOR) -> None:
        self.service = service
        self.cookies: dict[str, str] = {}
        self.login(service.secrets[role])

    def login(self, secret: str, **form: str) -> httpx.Response:
        proof = self.proof(self.get("/console/login").text)
        return self.post("/console/login", proof=proof, token=secret, **form)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self._kept(self.service.get(path, headers=self._headers() | headers))

    def post(self, path: str, site: str = "same-origin", **form: str) -> httpx.Response:
        headers = self._headers() | {"Sec-Fetch-Site": site}
        return self._kept(self.service.post(path, data=form, headers=headers))

    def send(self, page: str, path: str, **form: str) -> httpx.Response:
        """Fill in a form of a page: its proof, and the words given."""
        return self.post(path, proof=self.proof(self.get(page).text), **form)

    @staticmethod
    def proof(page: str) -> str:
        found = re.search(r'name="proof" value="([0-9a-f]{64})"', page)
        assert found is not None, page
        return found[1]

    def _headers(self) -> dict[str, str]:
        return {"Authorization": "", "Cookie": "; ".join(f"{k}={v}" for k, v in self.cookies.items())}

    def _kept(self, answer: httpx.Response) -> httpx.Response:
        self.cookies |= dict(answer.cookies)
        return answer


class Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


@pytest.fixture
def advised(service: Service) -> dict[str, Any]:
    """A crash in approve mode: everything that a page may show is there."""
    service.set_mode("approve")
    service.crash()
    found: dict[str, Any] = service.advise().json()
    return found


def addresses(advice: dict[str, Any]) -> Iterator[str]:
    for view in VIEWS:
        yield "/console" + view.format(incident=advice["incident_id"])


def path_of(entry: Entry, advice: dict[str, Any]) -> str:
    filled = entry.path.format(incident=advice["incident_id"], attempt="a-1", node="n2", recommendation=advice["id"])
    return "/console" + filled + ("?id=llm-7b" if entry.path == "/workload" else "")


# ------------------------------------------------------------------ who may


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


# ------------------------------------------------------------------ what pages are


def test_every_view_has_a_json_twin_by_name_and_by_what_is_accepted(service: Service, advised: dict[str, Any]) -> None:
    for path in addresses(advised):
        page = service.get(path, headers={"Accept": "text/html,application/xhtml+xml"})
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        before, _, query = path.partition("?")
        twin = service.get(before + ".json" + (f"?{query}" if query else ""))
        accepted = service.get(path, headers={"Accept": "application/json"})
        assert twin.headers["content-type"] == "application/json"
        assert twin.json() == accepted.json(), path


def test_pages_hold_nothing_inline_and_nothing_from_elsewhere(service: Service, advised: dict[str, Any]) -> None:
    for path in (*addresses(advised), "/console/login", "/console/nowhere"):
        page = service.get(path, headers={"Accept": "text/html"})
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        for tag, attributes in Tags(page.text).found:
            assert tag not in {"style", "iframe", "object", "base"}, path
            assert "style" not in attributes and not any(name.startswith("on") for name in attributes), (path, tag)
            for name in ("src", "href", "action", "formaction"):
                target = attributes.get(name) or "/"
                assert target.startswith(("/", "#")) and not target.startswith("//"), (path, target)
            assert tag != "script" or attributes.get("src"), path


def test_every_control_has_a_label_and_every_id_is_one(service: Service, advised: dict[str, Any]) -> None:
    for path in (*addresses(advised), "/console/login"):
        page = service.get(path, headers={"Accept": "text/html"}).text
        tags = Tags(page).found
        ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
        assert len(ids) == len(set(ids)), path
        labels = {attributes.get("for") for tag, attributes in tags if tag == "label"}
        for tag, attributes in tags:
            if tag in {"input", "select", "textarea"} and attributes.get("type") not in {"hidden", "checkbox"}:
                assert attributes.get("id") in labels, (path, attributes)


def test_assets_are_named_by_their_digest_and_only_ours(service: Service) -> None:
    page = service.get("/console/login", headers={"Authorization": ""}).text
    for address in re.findall(r'"(/console/static/[^"]+)"', page):
        answer = service.get(address, headers={"Authorization": ""})
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
    assert service.get("/console/static/..%2Fconsole.py").status_code == 404
    assert service.get("/console/static/templates").status_code == 404


def test_a_parameter_that_makes_no_sense_is_told_so(service: Service) -> None:
    for path in ("/fleet?state=bold", "/fleet?page=-1", "/audit?kind=nothing", "/audit?since=yesterday",
                 "/audit?cursor=nonsense", "/attempts/none/steps", "/fleet?q=" + "x" * 300):  # fmt: skip
        answer = service.get("/console" + path, headers={"Accept": "application/json"})
        assert answer.status_code in {400, 404}, path
        assert answer.json()["detail"]


def test_hostile_text_is_shown_and_does_nothing(service: Service) -> None:
    service.set_mode("approve")
    text = " ".join(HOSTILE)
    assert service.put_attempt(user=text[:200]).status_code == 201
    line = {"attempt_id": "a-1", "file": "<b>\u202efile`|.log", "number": 1, "stream": "kernel", "node": "n2",
            "text": f"NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus. {text}"}  # fmt: skip
    assert service.send_lines(line).status_code == 200
    service.put_attempt(state="FAILED", reason=text[:1_000], user=text[:200])
    advice = service.advise().json()
    for path in addresses(advice):
        page = service.get(path, headers={"Accept": "text/html"}).text
        assert not DRIVING.search(page), (path, DRIVING.search(page))
        assert "<script>alert" not in page and "<img src=x" not in page and "<svg onload" not in page, path
        twin = service.get(path, headers={"Accept": "application/json"}).text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", twin), path
    incident = f"/console/incidents/{advice['incident_id']}"
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in service.get(incident).text
    assert "{{7*7}}" in service.get(incident).text
    told = service.get(incident + ".md")
    assert told.headers["content-type"].startswith("text/markdown")
    assert not DRIVING.search(told.text)
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", told.text)
    assert "<script" not in outside and "](javascript" not in outside and "\n```" not in told.text


# ------------------------------------------------------------------ what pages say


def test_the_incident_says_what_where_why_and_what_next(service: Service, advised: dict[str, Any]) -> None:
    path = f"/console/incidents/{advised['incident_id']}"
    told = service.get(path + ".json").json()
    assert (told["what"], told["where"], told["advice"]) == ("GPU fell off bus", "n2", "restart without n2")
    assert "kern.log:1" in told["because"]
    assert "approval" in told["next"]
    page = service.get(path).text
    assert "NVRM: <mark>Xid (PCI:0000:1a:00): 79</mark>" in page or re.search(r"<mark>Xid \(PCI:0000:1a:00\): 79", page)
    assert told["why"]["counterfactual"]


def test_the_timeline_names_all_stations_and_those_that_were_reached(service: Service) -> None:
    service.crash()
    advice = service.advise().json()
    body = {"controller_id": "c-1", "observed_generation": 1, "lease_s": 60}
    service.clock.advance(seconds=7)
    assert service.post(f"/v1/recommendations/{advice['id']}/claim", json=body).status_code == 200
    told = service.get(f"/console/incidents/{advice['incident_id']}.json").json()["timeline"]
    assert [one["name"] for one in told] == [
        "onset", "detect", "attribute", "recommend", "claim", "act", "allocation", "first step", "checkpoint",
    ]  # fmt: skip
    reached = {one["name"]: one for one in told if one["at"]}
    assert set(reached) == {"onset", "detect", "attribute", "recommend", "claim"}
    assert (reached["claim"]["by"], reached["claim"]["after_s"]) == ("c-1", 7)


def test_an_approval_from_the_console_clears_the_way_for_a_controller(
    service: Service, advised: dict[str, Any]
) -> None:
    page, browser = f"/console/incidents/{advised['incident_id']}", Browser(service)
    fleet = browser.get("/console/fleet.json").json()
    assert [one["kind"] for one in fleet["attention"]] == ["approval"]
    answer = browser.send(page, f"/console/recommendations/{advised['id']}/approve", generation="1", note="seen")
    assert (answer.status_code, answer.headers["location"]) == (303, f"{page}?done=approved")
    told = browser.get(f"{page}.json").json()
    assert told["answered"]["actor"] == "client-operator"
    assert told["answered"]["note"] == "seen"
    assert not told["answers"]["approve"]
    assert service.get(f"/v1/recommendations/{advised['id']}").json()["actionable"]
    assert browser.get("/console/fleet.json").json()["attention"] == []


def test_nobody_approves_what_they_did_not_see(service: Service, advised: dict[str, Any]) -> None:
    page, browser = f"/console/incidents/{advised['incident_id']}", Browser(service)
    stale = browser.send(page, f"/console/recommendations/{advised['id']}/approve", generation="7")
    assert stale.status_code == 409
    assert "look at the page again" in stale.text


def test_a_rejection_leaves_it_to_the_scheduler_and_a_proposal_may_follow(
    service: Service, advised: dict[str, Any]
) -> None:
    page, browser = f"/console/incidents/{advised['incident_id']}", Browser(service)
    browser.send(page, f"/console/recommendations/{advised['id']}/reject", generation="1")
    assert service.get(f"/v1/recommendations/{advised['id']}").json()["state"] == "REJECTED"
    assert browser.get(f"{page}.json").json()["answers"]["override"]
    form = {"action": "restart_excluding", "nodes": "n2, n3", "note": "both smell", "generation": "1",
            "incident": advised["incident_id"]}  # fmt: skip
    assert browser.send(page, "/console/attempts/a-1/override", **form).status_code == 303
    assert browser.send(page, "/console/attempts/a-1/override", **form).status_code == 303
    newest = service.get("/v1/recommendations").json()["items"]
    assert len(newest) == 2
    assert (newest[0]["origin"], [one["node"] for one in newest[0]["exclusions"]]) == ("person", ["n2", "n3"])
    wrong = browser.send(page, "/console/attempts/a-1/override", action="stop", nodes="n2")
    assert wrong.status_code == 422


def test_feedback_becomes_the_labelled_precision_of_a_rule(service: Service, advised: dict[str, Any]) -> None:
    page, browser = f"/console/incidents/{advised['incident_id']}", Browser(service)
    where = f"/console/recommendations/{advised['id']}/feedback"
    assert browser.send(page, where, verdict="wrong", true_failure="gpu_ecc_dbe").status_code == 303
    assert browser.send(page, where, verdict="perhaps").status_code == 422
    (row,) = browser.get("/console/rules.json").json()["signatures"]
    assert (row["roots"], row["wrong"], row["precision"]) == (1, 1, 0)


def test_a_pardon_needs_a_reason_and_forgets_what_was_held(service: Service) -> None:
    body = {"node": "n7", "scope": "cluster", "reason": "smells", "actor": "ada"}
    service.put("/v1/exclusions", json=body)
    browser = Browser(service)
    assert "smells" in browser.get("/console/nodes/n7").text
    form = {"scope": "cluster", "cluster": "default"}
    assert browser.send("/console/nodes/n7", "/console/nodes/n7/pardon", **form).status_code == 422
    assert (
        browser.send("/console/nodes/n7", "/console/nodes/n7/pardon", **form, reason="bench passed").status_code == 303
    )
    assert service.get("/v1/exclusions").json()["items"] == []
    dossier = browser.get("/console/nodes/n7.json").json()
    assert [one["kind"] for one in dossier["history"]] == ["exclusion.pardoned", "exclusion.added"]


def test_a_viewer_sees_no_button_that_would_not_work(service: Service, advised: dict[str, Any]) -> None:
    page = Browser(service, Role.VIEWER).get(f"/console/incidents/{advised['incident_id']}").text
    assert "/approve" not in page and "/override" not in page and "/feedback" not in page


def test_step_timings_become_a_map_with_the_slow_rank_outlined(service: Service) -> None:
    service.put_attempt(rank_to_node={str(rank): f"n{rank // 2 + 1}" for rank in range(8)})
    empty = service.get("/console/attempts/a-1/steps")
    assert "nothing of its health" in empty.text
    for step in range(10):
        signals = [
            {"source": "trainer", "source_event_id": f"{step}-{rank}", "event_time": service.clock.at.isoformat(),
             "attempt_id": "a-1",
             "step_timing": {"rank": rank, "step": step, "step_s": 1.5, "compute_s": 1.3 if rank == 5 else 1.0}}
            for rank in range(8)
        ]  # fmt: skip
        assert service.post("/v1/signals", json={"signals": signals}).json()["accepted"] == 8
    grid = service.get("/console/attempts/a-1/steps.json").json()["grid"]
    assert (grid["measure"], grid["ranks"], grid["stragglers"]) == ("compute_s", 8, 1)
    assert grid["slowest"][0] == {"rank": 5, "slowdown": 1.3, "node": "n3"}
    part = service.get("/console/attempts/a-1/steps.json?from=4&to=5&measure=step_s").json()["grid"]
    assert ([row["first"] for row in part["rows"]], part["stragglers"]) == ([4, 5], 0)
    assert service.get("/console/attempts/a-1/steps?from=5&to=4").status_code == 400


def test_goodput_is_told_in_gpu_hours_where_gpus_were_counted(service: Service) -> None:
    service.put_attempt(gpus_per_node=8)
    service.clock.advance(hours=1)
    told = service.get("/console/goodput.json").json()
    assert (told["total"]["unit"], told["total"]["total"]) == ("GPU-hours", 32)
    assert {one["part"]: one["hours"] for one in told["total"]["bars"]}["unknown"] == 32
    service.put_attempt("b-1", workload_id="uncounted")
    service.clock.advance(hours=1)
    assert service.get("/console/goodput.json").json()["left_out"] == ["uncounted"]


def test_what_people_did_in_monitor_mode_is_scored(service: Service) -> None:
    service.set_mode("monitor")
    service.crash()
    service.advise()
    service.clock.advance(minutes=30)
    service.put_attempt("a-2", attempt_index=1, allocated_nodes=["n1", "n3", "n4", "n5"])
    told = service.get("/console/shadow.json").json()
    assert (told["total"]["decided"], told["total"]["agreed"], told["total"]["median_lead_s"]) == (1, 1, 1800)
    row = next(one for one in told["matrix"] if one["action"] == "restart_excluding")
    assert dict(zip(told["did"], row["counts"], strict=True))["restarted_elsewhere"] == 1


def test_the_audit_page_filters_and_walks_the_chain(service: Service, advised: dict[str, Any]) -> None:
    told = service.get("/console/audit.json?kind=incident.opened&verify=1").json()
    assert [one["kind"] for one in told["entries"]] == ["incident.opened"]
    assert told["verification"]["is_sound"]
    assert told["head"]["position"] == told["verification"]["events"]
    assert "the chain holds" in service.get("/console/audit?verify=1").text


def test_an_open_page_hears_of_a_change_and_comes_back_where_it_was(service: Service) -> None:
    journal = service.application.journal
    live = Live(journal, Sessions(service.application.tokens, service.clock))

    async def heard() -> list[str]:
        stream = live.events(None)
        first = await anext(stream)
        journal.record(
            ModeChanged(at=service.clock.at, scope="cluster", target="default", mode=Mode.ACT, actor="ada",
                        reason="test", cluster=ClusterId("default"))
        )  # fmt: skip
        second = await anext(stream)
        await stream.aclose()
        missed = live.events(journal.state.position - 1)
        await anext(missed)
        third = await anext(missed)
        await missed.aclose()
        return [first, second, third]

    first, second, third = asyncio.run(heard())
    now = journal.state.position
    assert f"id: {now - 1}\n" in first
    assert second == third == f"event: changed\nid: {now}\ndata: {now}\n\n"


def test_live_updates_are_for_those_who_may_read(service: Service) -> None:
    assert service.get("/console/live", headers={"Authorization": ""}).status_code == 401
    assert service.as_(Role.INGESTER).get("/console/live").status_code == 403
