# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Asking for advice: the same attempt gets the same answer, on record before it is given."""

from __future__ import annotations

import anyio
import pytest

from service.tokens import Role
from tests.api.running import Service
from tests.api.test_story import claimed

ASK = {"attempt_id": "a-1", "trigger": "exited"}


def test_asking_twice_gives_the_same_object_and_200(service: Service) -> None:
    service.crash()
    first, second = service.advise(), service.advise()
    assert (first.status_code, second.status_code) == (201, 200)
    assert second.json()["id"] == first.json()["id"]
    assert service.audit.kinds().count("recommendation.issued") == 1


def test_an_idempotency_key_with_another_body_is_a_conflict(service: Service) -> None:
    service.crash()
    key = {"Idempotency-Key": "k-1"}
    first = service.post("/v1/recommendations", json=ASK, headers=key)
    again = service.post("/v1/recommendations", json=ASK, headers=key)
    other = service.post("/v1/recommendations", json=ASK | {"trigger": "manual"}, headers=key)
    assert (first.status_code, again.status_code, other.status_code) == (201, 200, 409)
    assert other.json()["code"] == "idempotency_conflict"


def test_a_key_answered_with_an_open_recommendation_is_remembered_too(service: Service) -> None:
    service.crash()
    first = service.advise().json()
    key = {"Idempotency-Key": "k-2"}
    second = service.post("/v1/recommendations", json=ASK, headers=key)
    other = service.post("/v1/recommendations", json=ASK | {"trigger": "manual"}, headers=key)
    assert (second.status_code, second.json()["id"]) == (200, first["id"])
    assert other.status_code == 409


def test_how_long_somebody_waits_is_not_another_question(service: Service) -> None:
    service.crash()
    first = service.advise()
    second = service.post("/v1/recommendations", json=ASK | {"wait_ms": 1, "deadline_ms": 5000})
    assert (second.status_code, second.json()["id"]) == (200, first.json()["id"])


def test_what_cannot_be_recorded_is_not_advised(service: Service) -> None:
    service.crash()
    service.audit.is_broken = True
    refused = service.advise()
    assert (refused.status_code, refused.json()["code"]) == (503, "audit_unavailable")
    assert refused.headers["Retry-After"] == "3"
    assert service.get("/v1/recommendations").json()["items"] == []
    service.audit.is_broken = False
    assert service.advise().status_code == 201


def test_an_attempt_nobody_registered_is_not_found(service: Service) -> None:
    refused = service.advise("a-9")
    assert (refused.status_code, refused.json()["code"]) == (404, "unknown_attempt")


def test_monitor_mode_casts_a_shadow_that_nobody_may_act_on(service: Service) -> None:
    service.set_mode("monitor")
    service.crash()
    advice = service.advise().json()
    assert (advice["state"], advice["actionable"], advice["mode_at_decision"]) == ("SHADOW", False, "monitor")
    assert "mode_monitor" in advice["blocked_by"]
    body = {"controller_id": "c-1", "observed_generation": 1}
    refused = service.post(f"/v1/recommendations/{advice['id']}/claim", json=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_actionable")


def test_a_promotion_does_not_revive_a_shadow(service: Service) -> None:
    service.set_mode("monitor")
    service.crash()
    advice = service.advise().json()
    service.set_mode("act")
    assert not service.get(f"/v1/recommendations/{advice['id']}").json()["actionable"]


def test_approve_mode_waits_for_a_person_and_then_goes_on(service: Service) -> None:
    service.set_mode("approve")
    service.crash()
    advice = service.advise().json()
    where = f"/v1/recommendations/{advice['id']}"
    assert (advice["actionable"], advice["blocked_by"]) == (False, ["awaiting_approval"])
    assert service.get(f"/v1/incidents/{advice['incident_id']}").json()["state"] == "AWAITING_APPROVAL"
    early = service.post(f"{where}/claim", json={"controller_id": "c", "observed_generation": 1})
    assert early.status_code == 409
    yes = service.post(f"{where}/approve", json={"actor": "ada"})
    again = service.post(f"{where}/approve", json={"actor": "ada"})
    assert (yes.json()["state"], yes.json()["actionable"], again.status_code) == ("APPROVED", True, 200)
    assert service.audit.kinds().count("recommendation.approved") == 1
    claimed(service, advice)


def test_rejected_is_final_and_repeated_answers_are_fine(service: Service) -> None:
    service.crash()
    where = f"/v1/recommendations/{service.advise().json()['id']}"
    assert service.post(f"{where}/reject", json={"actor": "ada"}).json()["state"] == "REJECTED"
    assert service.post(f"{where}/reject", json={"actor": "ada"}).status_code == 200
    refused = service.post(f"{where}/approve", json={"actor": "bob"})
    assert (refused.status_code, refused.json()["code"]) == (409, "already_answered")


def test_advice_expires_and_fails_open(service: Service) -> None:
    service.crash()
    advice = service.advise().json()
    service.clock.advance(minutes=15)
    late = service.get(f"/v1/recommendations/{advice['id']}").json()
    assert (late["actionable"], "expired" in late["blocked_by"]) == (False, True)
    assert service.application.advisor.sweep() > 0
    assert service.get(f"/v1/recommendations/{advice['id']}").json()["state"] == "EXPIRED"
    assert service.get(f"/v1/incidents/{advice['incident_id']}").json()["state"] == "CLOSED_FAIL_OPEN"
    assert service.application.advisor.sweep() == 0


def test_richer_evidence_raises_a_generation_until_it_is_acted_on(service: Service) -> None:
    service.put_attempt()
    service.put_attempt(state="FAILED", exit_code=1)
    first = service.advise().json()
    assert (first["generation"], first["failure"]) == (1, "cause_not_in_log")
    service.clock.advance(seconds=11)
    service.crash()
    second = service.get(f"/v1/recommendations/{first['id']}").json()
    assert (second["generation"], second["failure"]) == (2, "gpu_fell_off_bus")
    claimed(service, second)
    body = {"attempt_id": "a-1", "failure": "cuda_oom", "class": "resource", "attributor": "mine",
            "evidence_status": "established", "version": "1"}  # fmt: skip
    assert service.post("/v1/attributions", json=body).status_code == 201
    assert service.get(f"/v1/recommendations/{first['id']}").json()["generation"] == 2


def test_a_persons_proposal_passes_the_same_gates(service: Service) -> None:
    service.crash()
    proposal = {
        "attempt_id": "a-1",
        "author": "ada",
        "proposed": {"action": "restart_excluding", "exclusions": [{"node": "n3", "reason": "I saw smoke"}]},
    }
    made = service.as_(Role.OPERATOR).post("/v1/recommendations", json=proposal)
    told = made.json()
    assert (made.status_code, told["origin"], told["author"]) == (201, "person", "ada")
    assert [one["node"] for one in told["exclusions"]] == ["n3"]


def test_a_proposal_that_policy_would_not_do_is_refused_with_the_reason(service: Service) -> None:
    service.crash()
    nodes = [{"node": f"n{number}"} for number in range(1, 5)]
    proposal = {"attempt_id": "a-1", "author": "ada",
                "proposed": {"action": "restart_excluding", "exclusions": nodes}}  # fmt: skip
    refused = service.post("/v1/recommendations", json=proposal)
    assert (refused.status_code, refused.json()["code"]) == (422, "refused_by_policy")


def test_an_open_recommendation_answers_a_proposal(service: Service) -> None:
    service.crash()
    first = service.advise().json()
    proposal = {"attempt_id": "a-1", "author": "ada", "proposed": {"action": "stop"}}
    second = service.post("/v1/recommendations", json=proposal)
    assert (second.status_code, second.json()["id"]) == (200, first["id"])
    service.post(f"/v1/recommendations/{first['id']}/reject", json={"actor": "ada"})
    third = service.post("/v1/recommendations", json=proposal, headers={"Idempotency-Key": "after"})
    assert third.status_code == 201
    assert (third.json()["supersedes"], third.json()["action"]) == (first["id"], "stop")
    assert third.json()["stop_grace_s"] == 1800


@pytest.mark.parametrize(
    "body",
    [
        {"attempt_id": "a-1"},
        ASK | {"proposed": {"action": "stop"}, "author": "ada"},
        {"attempt_id": "a-1", "proposed": {"action": "stop"}},
        ASK | {"surprise": 1},
        ASK | {"deadline_ms": 0},
        {"attempt_id": "a-1", "author": "a", "proposed": {"action": "restart_excluding"}},
        {"attempt_id": "a-1", "author": "a", "proposed": {"action": "continue"}},
    ],
)
def test_a_body_that_does_not_fit_is_refused(service: Service, body: dict[str, object]) -> None:
    refused = service.post("/v1/recommendations", json=body)
    assert (refused.status_code, refused.json()["code"]) == (422, "invalid")
    assert refused.json()["errors"]


def test_lists_are_filtered_and_paged_newest_first(service: Service) -> None:
    for number in range(5):
        service.put_attempt(f"a-{number}", workload_id=f"w-{number}", state="FAILED")
        service.advise(f"a-{number}")
    first = service.get("/v1/recommendations?limit=2").json()
    second = service.get(f"/v1/recommendations?limit=2&cursor={first['next_cursor']}").json()
    seen = [one["attempt_id"] for one in first["items"] + second["items"]]
    assert seen == ["a-4", "a-3", "a-2", "a-1"]
    only = service.get("/v1/recommendations?attempt=a-2&state=PROPOSED").json()["items"]
    assert [one["attempt_id"] for one in only] == ["a-2"]
    assert service.get("/v1/recommendations?actionable=false&attempt=a-2").json()["items"] == []
    assert service.get("/v1/recommendations?cluster=other").json()["items"] == []


def test_since_revision_gives_only_what_changed_in_its_order(service: Service) -> None:
    service.crash()
    advice = service.advise().json()
    page = service.get("/v1/recommendations?since_revision=0").json()
    assert [one["id"] for one in page["items"]] == [advice["id"]]
    after = page["revision"]
    assert service.get(f"/v1/recommendations?since_revision={after}").json()["items"] == []
    claimed(service, advice)
    changed = service.get(f"/v1/recommendations?since_revision={after}").json()
    assert [one["state"] for one in changed["items"]] == ["CLAIMED"]
    assert changed["revision"] > after


def test_a_revision_from_another_store_starts_again_from_nothing(service: Service) -> None:
    service.crash()
    service.advise()
    page = service.get("/v1/recommendations?since_revision=999999&wait=30s").json()
    assert len(page["items"]) == 1
    assert page["revision"] < 999999


def test_a_long_poll_wakes_up_when_advice_appears(service: Service) -> None:
    service.crash()
    since = service.get("/v1/stats").json()["revision"]
    woken: list[list[str]] = []

    async def wait() -> None:
        answer = await service.send("GET", f"/v1/recommendations?since_revision={since}&wait=30s")
        woken.append([one["attempt_id"] for one in answer.json()["items"]])

    async def story() -> None:
        async with anyio.create_task_group() as both:
            both.start_soon(wait)
            await anyio.lowlevel.checkpoint()
            await service.send("POST", "/v1/recommendations", json=ASK)

    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(story)
    assert woken == [["a-1"]]


def test_a_long_poll_with_nothing_to_say_ends_empty(service: Service) -> None:
    since = service.get("/v1/stats").json()["revision"]
    page = service.get(f"/v1/recommendations?since_revision={since}&wait=10ms").json()
    assert (page["items"], page["revision"]) == ([], since)


def test_an_unchanged_resource_is_not_sent_again(service: Service) -> None:
    service.crash()
    advice = service.advise()
    where = f"/v1/recommendations/{advice.json()['id']}"
    fresh = service.get(where)
    same = service.get(where, headers={"If-None-Match": fresh.headers["ETag"]})
    assert (same.status_code, same.content) == (304, b"")
    claimed(service, advice.json())
    assert service.get(where, headers={"If-None-Match": fresh.headers["ETag"]}).status_code == 200


def test_the_aliases_at_the_root_are_the_same_resource(service: Service) -> None:
    service.crash()
    made = service.post("/recommendations", json=ASK)
    assert made.status_code == 201
    assert service.get("/recommendations").json()["items"][0]["id"] == made.json()["id"]


def test_waiting_for_evidence_ends_when_a_cause_arrives(service: Service) -> None:
    service.put_attempt()
    line = {"attempt_id": "a-1", "file": "k", "number": 1, "stream": "kernel", "node": "n2",
            "text": "NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus."}  # fmt: skip
    said: list[str] = []

    async def ask() -> None:
        answer = await service.send("POST", "/v1/recommendations", json=ASK | {"wait_ms": 30_000})
        said.append(answer.json()["failure"])

    async def tell() -> None:
        headers = {"Content-Type": "application/x-ndjson"}
        await service.send("POST", "/v1/logs/ndjson", json=line, headers=headers)

    async def story() -> None:
        async with anyio.create_task_group() as both:
            both.start_soon(ask)
            await anyio.lowlevel.checkpoint()
            both.start_soon(tell)

    with anyio.from_thread.start_blocking_portal() as portal:
        portal.call(story)
    assert said == ["gpu_fell_off_bus"]
