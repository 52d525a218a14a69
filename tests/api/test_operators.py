# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Modes, policy and exclusions: changed with an actor, a reason and the ETag that was read."""

from __future__ import annotations

from typing import Any

from service.tokens import Role
from tests.api.running import Service

MODE = {"scope": "cluster", "target": "default", "mode": "approve", "actor": "ada", "reason": "trial over"}
EXCLUSION = {"node": "n7", "scope": "cluster", "reason": "smells", "actor": "ada"}


def test_a_mode_needs_the_etag_that_was_read(service: Service) -> None:
    etag = service.get("/v1/modes").headers["ETag"]
    assert service.put("/v1/modes", json=MODE).status_code == 428
    first = service.put("/v1/modes", json=MODE, headers={"If-Match": etag})
    raced = service.put("/v1/modes", json=MODE, headers={"If-Match": etag})
    assert (first.status_code, raced.status_code) == (200, 412)
    assert raced.json()["code"] == "precondition_failed"
    assert service.get("/v1/modes").headers["ETag"] == first.headers["ETag"]


def test_a_mode_needs_a_reason_a_person_and_a_known_target(service: Service) -> None:
    headers = {"If-Match": service.get("/v1/modes").headers["ETag"]}
    for fault in ({"reason": ""}, {"actor": ""}, {"mode": "bold"}, {"scope": "class", "target": "gpu"},
                  {"target": "elsewhere"}):  # fmt: skip
        assert service.put("/v1/modes", json=MODE | fault, headers=headers).status_code == 422, fault


def test_the_lowest_mode_that_applies_wins(service: Service) -> None:
    etag = service.get("/v1/modes").headers["ETag"]
    body = MODE | {"scope": "class", "target": "hardware"}
    service.put("/v1/modes", json=body, headers={"If-Match": etag})
    service.crash()
    assert service.advise().json()["mode_at_decision"] == "approve"


def test_the_policy_is_replaced_whole_or_not_at_all(service: Service) -> None:
    known = service.get("/v1/policy")
    headers = {"If-Match": known.headers["ETag"]}
    said = {"actor": "ada", "reason": "stricter"}
    faulty = service.put("/v1/policy", json=said | {"text": "schema: 1\nsurprise: true\n"}, headers=headers)
    assert (faulty.status_code, service.get("/v1/policy").json()) == (422, known.json())
    assert "surprise" in faulty.json()["errors"][0]["detail"]
    text = known.json()["text"] + "\n# reviewed\n"
    assert service.put("/v1/policy", json=said | {"text": text}).status_code == 428
    changed = service.put("/v1/policy", json=said | {"text": text}, headers=headers)
    assert changed.status_code == 200
    assert changed.json()["version"] != known.json()["version"]
    service.crash()
    assert service.advise().json()["policy_version"] == changed.json()["version"]


def test_only_operators_change_how_bold_it_is(service: Service) -> None:
    for role in (Role.VIEWER, Role.CONTROLLER, Role.AUTHOR, Role.INGESTER):
        assert service.as_(role).put("/v1/modes", json=MODE).status_code == 403


def test_an_exclusion_is_added_changed_with_its_etag_and_pardoned(service: Service) -> None:
    made = service.put("/v1/exclusions", json=EXCLUSION)
    assert (made.status_code, made.json()["expires_at"]) == (201, "2026-11-03T12:00:00.000Z")
    longer = EXCLUSION | {"expires_at": "2026-11-05T12:00:00Z"}
    assert service.put("/v1/exclusions", json=longer).status_code == 428
    changed = service.put("/v1/exclusions", json=longer, headers={"If-Match": made.json()["etag"]})
    assert (changed.status_code, changed.json()["expires_at"]) == (200, "2026-11-05T12:00:00.000Z")
    gone: dict[str, Any] = {"node": "n7", "scope": "cluster", "actor": "ada", "reason": "replaced"}
    assert service.delete("/v1/exclusions", params=gone).status_code == 428
    stale = service.delete("/v1/exclusions", params=gone, headers={"If-Match": made.json()["etag"]})
    assert stale.status_code == 412
    done = service.delete("/v1/exclusions", params=gone, headers={"If-Match": changed.json()["etag"]})
    assert (done.status_code, service.get("/v1/exclusions").json()["items"]) == (204, [])
    assert service.delete("/v1/exclusions", params=gone).status_code == 404


def test_a_pardon_forgets_the_suspicion_too(service: Service) -> None:
    service.crash(node="n2")
    service.advise()
    past = service.application.journal.state.past
    assert [one.node for one in past.accusations] == ["n2"]
    made = service.put("/v1/exclusions", json=EXCLUSION | {"node": "n2"}).json()
    gone = {"node": "n2", "scope": "cluster", "actor": "ada", "reason": "checked"}
    service.delete("/v1/exclusions", params=gone, headers={"If-Match": made["etag"]})
    assert past.accusations == []


def test_exclusions_end_by_themselves(service: Service) -> None:
    service.put("/v1/exclusions", json=EXCLUSION)
    service.clock.advance(hours=24)
    assert service.get("/v1/exclusions").json()["items"] == []
    assert service.application.operation.sweep() == 1
    assert service.audit.kinds()[-1] == "exclusion.expired"


def test_an_exclusion_that_is_over_already_or_for_nobody_is_refused(service: Service) -> None:
    for fault in ({"expires_at": "2026-11-02T12:00:00Z"}, {"scope": "workload"}, {"node": "n 7"},
                  {"node": "$(reboot)"}):  # fmt: skip
        assert service.put("/v1/exclusions", json=EXCLUSION | fault).status_code == 422, fault


def test_one_failure_in_many_workloads_opens_the_breaker_until_a_person_closes_it(service: Service) -> None:
    answers = []
    for number in range(4):
        service.crash(f"a-{number}", node=f"n{number}", workload_id=f"w-{number}")
        answers.append(service.advise(f"a-{number}").json())
    assert [one["actionable"] for one in answers] == [True, True, False, False]
    assert "breaker_open" in answers[-1]["blocked_by"]
    (entry,) = service.get("/v1/modes").json()["entries"]
    assert (entry["mode"], entry["actor"]) == ("monitor", "relight:breaker")
    assert "relight_circuit_open 1.0" in service.get("/metrics").text
    service.set_mode("act")
    service.clock.advance(minutes=10)
    service.crash("a-9", workload_id="w-9", node="n9")
    assert service.advise("a-9").json()["actionable"]


def test_many_workloads_on_one_dead_node_are_one_failure_and_open_nothing(service: Service) -> None:
    for number in range(4):
        service.crash(f"a-{number}", node="n2", workload_id=f"w-{number}")
        said = service.advise(f"a-{number}").json()
        assert said["actionable"], said["blocked_by"]
        assert [one["node"] for one in said["exclusions"]] == ["n2"]
    assert service.get("/v1/modes").json()["entries"] == []
