# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Silences: set from the API and the console, over by themselves, and mute towards people only."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from relight.promotion import Stage
from relight.types import ClusterId, FailureClass
from service.notify.muting import Muting
from service.tokens import Role
from tests.api.browsing import Browser
from tests.api.running import START, Service
from tests.api.test_notify import Receiver, dispatcher

UNTIL = "2026-11-02T16:00:00Z"


def silenced(service: Service, **over: Any) -> dict[str, Any]:
    body = {"ends_at": UNTIL, "actor": "ada", "reason": "the rack is being moved"} | over
    made = service.post("/v1/silences", json=body)
    assert made.status_code == 201, made.text
    told: dict[str, Any] = made.json()
    return told


def messages(service: Service, folder: Path, receiver: Receiver | None = None) -> tuple[Any, Receiver]:
    got = receiver or Receiver()
    journal = service.application.journal
    muting = Muting(journal, Stage.ACT)
    return dispatcher(service.audit, got, folder, muted=muting, folded=lambda: journal.state.position), got


# ------------------------------------------------------------------ what may be set


def test_a_silence_is_set_listed_read_and_ended_and_stays_on_record(service: Service) -> None:
    made = silenced(service, workload_id="llm-7b", node="n2")
    assert (made["is_standing"], made["starts_at"], made["ends_at"]) == (
        True, "2026-11-02T12:00:00.000Z", "2026-11-02T16:00:00.000Z",
    )  # fmt: skip
    assert service.get("/v1/silences?is_standing=true").json()["items"] == [made]
    one = service.get(f"/v1/silences/{made['id']}")
    assert service.get(one.request.url.path, headers={"If-None-Match": one.headers["ETag"]}).status_code == 304
    service.clock.advance(minutes=5)
    for _ in range(2):
        gone = service.delete(f"/v1/silences/{made['id']}", params={"actor": "bo", "reason": "moved"}).json()
        assert (gone["is_standing"], gone["ended_by"], gone["end_reason"]) == (False, "bo", "moved")
    assert service.get("/v1/silences?is_standing=true").json()["items"] == []
    assert len(service.get("/v1/silences").json()["items"]) == 1
    assert [kind for kind in service.audit.kinds() if kind.startswith("silence")] == ["silence.added", "silence.ended"]
    assert service.get("/v1/audit?node=n2").json()["items"][0]["event"]["silence"]["reason"] == made["reason"]


def test_a_silence_needs_a_matter_an_end_a_person_and_a_reason(service: Service) -> None:
    good = {"workload_id": "llm-7b", "ends_at": UNTIL, "actor": "ada", "reason": "bench"}
    for fault in ({"workload_id": None}, {"ends_at": "2026-11-02T12:00:00Z"}, {"ends_at": "2026-12-02T12:00:01Z"},
                  {"actor": ""}, {"reason": ""}, {"node": "n 2"}, {"until": UNTIL}):  # fmt: skip
        assert service.post("/v1/silences", json=good | fault).status_code == 422, fault
    body = {key: value for key, value in good.items() if key != "ends_at"}
    assert service.post("/v1/silences", json=body).status_code == 422
    assert service.post("/v1/silences", json=good | {"ends_at": "2026-12-02T12:00:00Z"}).status_code == 201


def test_only_operators_silence_and_only_their_own_cluster(service: Service) -> None:
    body = {"workload_id": "w", "ends_at": UNTIL, "actor": "ada", "reason": "bench"}
    for role in (Role.VIEWER, Role.CONTROLLER, Role.AUTHOR):
        assert service.as_(role).post("/v1/silences", json=body).status_code == 403
    other = silenced(service, workload_id="w", cluster_id="other")
    here = service.as_(Role.CONTROLLER)
    assert here.get("/v1/silences").json()["items"] == []
    assert here.get(f"/v1/silences/{other['id']}").status_code == 404


# ------------------------------------------------------------------ what it mutes


@pytest.mark.parametrize(
    "matcher",
    [
        {"workload_id": "llm-7b"},
        {"node": "n2"},
        {"failure": "gpu_fell_off_bus"},
        {"workload_id": "llm-7b", "node": "n2"},
    ],
)
def test_nobody_is_told_and_everything_else_goes_on(service: Service, tmp_path: Path, matcher: dict[str, str]) -> None:
    sender, receiver = messages(service, tmp_path)
    made = silenced(service, **matcher)
    service.crash()
    advice = service.advise().json()
    sender.look(service.clock.at)
    assert receiver.titles() == []
    incident = service.get(f"/v1/incidents/{advice['incident_id']}").json()
    assert (incident["silence_ids"], incident["silenced_until"]) == ([made["id"]], made["ends_at"])
    assert (advice["action"], advice["actionable"]) == ("restart_excluding", True)
    claim = {"controller_id": "c-1", "observed_generation": 1}
    assert service.post(f"/v1/recommendations/{advice['id']}/claim", json=claim).status_code == 200


@pytest.mark.parametrize("matcher", [{"workload_id": "other"}, {"node": "n3"}, {"failure": "cuda_oom"}])
def test_what_it_does_not_match_is_told(service: Service, tmp_path: Path, matcher: dict[str, str]) -> None:
    sender, receiver = messages(service, tmp_path)
    silenced(service, **matcher)
    service.crash()
    service.advise()
    sender.look(service.clock.at)
    assert len(receiver.titles()) == 2


def test_a_silence_by_signature_mutes_what_that_rule_found(service: Service, tmp_path: Path) -> None:
    service.crash()
    root = service.get(f"/v1/incidents/{service.advise().json()['incident_id']}/why").json()["root"]
    sender, receiver = messages(service, tmp_path)
    silenced(service, signature_id=root["signature_id"])
    service.crash("b-1", node="n3", workload_id="other")
    service.advise("b-1")
    sender.look(service.clock.at)
    assert receiver.titles() == []


def test_after_its_end_people_are_told_again(service: Service, tmp_path: Path) -> None:
    sender, receiver = messages(service, tmp_path)
    silenced(service, workload_id="llm-7b")
    service.clock.at = START + timedelta(hours=4)
    service.crash()
    service.advise()
    sender.look(service.clock.at)
    assert len(receiver.titles()) == 2
    assert service.application.silences.sweep() == 1
    assert service.application.silences.sweep() == 0
    (one,) = service.get("/v1/silences").json()["items"]
    assert (one["is_standing"], one["ended_by"], one["end_reason"]) == (False, "", "its time is over")


def test_a_message_counts_by_the_time_of_what_it_tells_and_not_of_its_sending(service: Service, tmp_path: Path) -> None:
    sender, receiver = messages(service, tmp_path)
    silenced(service, workload_id="llm-7b")
    service.crash()
    service.advise()
    service.clock.advance(hours=5)
    sender.look(service.clock.at)
    assert receiver.titles() == []


def test_an_alert_that_was_raised_before_a_silence_is_cleared_under_it(service: Service, tmp_path: Path) -> None:
    sender, receiver = messages(service, tmp_path)
    service.crash()
    service.advise()
    service.clock.advance(seconds=1)
    silenced(service, workload_id="llm-7b")
    service.put_attempt(state="COMPLETED")
    sender.look(service.clock.at)
    assert receiver.titles()[-1].startswith("llm-7b: over")
    service.crash("b-1", attempt_index=1, node="n3")
    service.put_attempt("b-1", attempt_index=1, state="COMPLETED")
    told = len(receiver.titles())
    sender.look(service.clock.at)
    assert len(receiver.titles()) == told


def test_a_class_that_is_only_recorded_is_not_told_of(service: Service, tmp_path: Path) -> None:
    sender, receiver = messages(service, tmp_path)
    stages = service.application.stages
    stages.set(ClusterId("default"), FailureClass.HARDWARE, Stage.RECORD, "ada", "too many")
    service.crash()
    advice = service.advise().json()
    sender.look(service.clock.at)
    assert (receiver.titles(), advice["state"], advice["action"]) == ([], "SHADOW", "restart_excluding")


def test_what_is_not_part_of_the_state_yet_waits(service: Service, tmp_path: Path) -> None:
    receiver, journal = Receiver(), service.application.journal
    last = journal.state.position
    sender = dispatcher(service.audit, receiver, tmp_path, folded=lambda: last)
    service.crash()
    sender.look(service.clock.at)
    assert receiver.titles() == []
    last = journal.state.position
    sender.look(service.clock.at)
    assert len(receiver.titles()) > 0


# ------------------------------------------------------------------ from the console


def test_an_incident_is_silenced_from_its_page_by_what_it_is_about(service: Service, advised: dict[str, Any]) -> None:
    page, browser = f"/console/incidents/{advised['incident_id']}", Browser(service)
    told = browser.get(f"{page}.json").json()
    assert {(one["by"], one["value"]) for one in told["silence_choices"]} >= {
        ("workload", "llm-7b"), ("node", "n2"), ("failure", "gpu_fell_off_bus"),
    }  # fmt: skip
    form = {"about": "node:n2", "for": "4h", "reason": "on the bench"}
    for fault in ({"about": "node:n9"}, {"for": "90d"}, {"reason": ""}):
        assert browser.send(page, f"{page}/silence", **(form | fault)).status_code == 422, fault
    done = browser.send(page, f"{page}/silence", **form)
    assert (done.status_code, done.headers["location"]) == (303, f"{page}?done=silenced")
    (one,) = browser.get(f"{page}.json").json()["silenced_by"]
    assert (one["about"], one["actor"], one["reason"]) == ("node n2", "client-operator", "on the bench")
    assert "advice and controllers go on" in browser.get(page).text
    assert browser.get("/console/incidents.json").json()["incidents"][0]["is_silenced"]
    assert browser.get(f"{page}.json").json()["answers"]["approve"], "an approval is still to be had"
    (asked,) = browser.get("/console/fleet.json").json()["attention"]
    assert asked["kind"] == "approval" and "nobody was sent a message" in asked["what"]


def test_silences_are_listed_set_and_ended_on_their_page(service: Service) -> None:
    browser = Browser(service)
    form = {"workload": "llm-7b", "node": "n2", "for": "1d", "reason": "moving"}
    assert browser.send("/console/silences", "/console/silences", **form).status_code == 303
    assert browser.send("/console/silences", "/console/silences", **{"for": "1d", "reason": "x"}).status_code == 422
    (one,) = browser.get("/console/silences.json").json()["silences"]
    assert (one["workload_id"], one["node"], one["reason"]) == ("llm-7b", "n2", "moving")
    ended = browser.send("/console/silences", f"/console/silences/{one['id']}/end")
    assert ended.status_code == 303
    assert browser.get("/console/silences.json").json()["silences"] == []
    assert browser.get("/console/silences.json?over=1").json()["silences"][0]["ended_by"] == "client-operator"
    viewer = Browser(service, Role.VIEWER).get("/console/silences").text
    assert "Silence something" not in viewer
