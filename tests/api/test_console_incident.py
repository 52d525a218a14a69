# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The incident page: what it says, and what people answer from it."""

from __future__ import annotations

import re
from typing import Any

from tests.api.browsing import Browser
from tests.api.running import Service


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
    (row,) = browser.get("/console/rules.json?fired=yes").json()["signatures"]
    assert (row["roots"], row["wrong"], row["precision"]) == (1, 1, 0)
