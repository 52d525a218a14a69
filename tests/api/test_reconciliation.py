# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Claims, fencing, generations and terminal answers: what a controller may say, and when."""

from __future__ import annotations

from typing import Any

import pytest

from service.tokens import Role
from tests.api.running import Service
from tests.api.test_story import claimed

CLAIM = {"controller_id": "c-1", "observed_generation": 1, "lease_s": 60}


@pytest.fixture
def advice(service: Service) -> dict[str, Any]:
    service.crash()
    found: dict[str, Any] = service.advise().json()
    return found


def report(service: Service, advice: dict[str, Any], disposition: str, **over: Any) -> Any:
    body = {"observed_generation": 1, "disposition": disposition} | over
    return service.put(f"/v1/recommendations/{advice['id']}/reconciliation", json=body)


def test_another_controller_is_refused_until_the_lease_ends(service: Service, advice: dict[str, Any]) -> None:
    claimed(service, advice)
    other = CLAIM | {"controller_id": "c-2"}
    where = f"/v1/recommendations/{advice['id']}/claim"
    refused = service.post(where, json=other)
    assert (refused.status_code, refused.json()["code"]) == (409, "claimed")
    service.clock.advance(seconds=60)
    assert service.post(where, json=other).status_code == 200


def test_renewing_gives_a_new_token_and_voids_the_old_one(service: Service, advice: dict[str, Any]) -> None:
    old = claimed(service, advice)
    new = claimed(service, advice)
    assert (new["is_renewal"], old["is_renewal"]) == (True, False)
    stale = report(service, advice, "PENDING", claim_token=old["claim_token"])
    assert (stale.status_code, stale.json()["code"]) == (409, "stale_claim")
    assert report(service, advice, "PENDING", claim_token=new["claim_token"]).status_code == 200


def test_only_the_digest_of_a_claim_token_is_on_record(service: Service, advice: dict[str, Any]) -> None:
    token = claimed(service, advice)["claim_token"]
    assert all(token not in repr(event) for event in service.audit.events())


def test_a_lease_never_outlasts_the_advice(service: Service, advice: dict[str, Any]) -> None:
    service.clock.advance(minutes=14, seconds=30)
    lease = claimed(service, advice)
    assert lease["lease_expires_at"] == advice["expires_at"]


def test_expired_advice_cannot_be_claimed(service: Service, advice: dict[str, Any]) -> None:
    service.clock.advance(minutes=15)
    refused = service.post(f"/v1/recommendations/{advice['id']}/claim", json=CLAIM)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_actionable")


def test_the_mode_is_read_afresh_at_the_claim_and_before_each_verb(service: Service, advice: dict[str, Any]) -> None:
    claimed(service, advice)
    service.set_mode("monitor")
    intent = {"recommendation_id": advice["id"], "step": "requeue_hold", "phase": "intent",
              "idempotency_key": "k"}  # fmt: skip
    refused = service.post("/v1/milestones", json=intent)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_actionable")
    renewed = service.post(f"/v1/recommendations/{advice['id']}/claim", json=CLAIM)
    assert (renewed.status_code, renewed.json()["code"]) == (409, "not_actionable")


def test_work_under_way_may_be_finished_after_a_demotion_and_taken_over_after_a_crash(
    service: Service, advice: dict[str, Any]
) -> None:
    token = claimed(service, advice)["claim_token"]
    report(service, advice, "PENDING", claim_token=token)
    service.set_mode("monitor")
    service.clock.advance(minutes=20)
    service.application.advisor.sweep()
    taken = service.post(f"/v1/recommendations/{advice['id']}/claim", json=CLAIM | {"controller_id": "c-2"}).json()
    done = report(service, advice, "CONVERGED", claim_token=taken["claim_token"])
    assert done.json()["state"] == "CONVERGED"


@pytest.mark.parametrize(("generation", "code"), [(0, "stale_generation"), (2, "unknown_generation")])
def test_another_generation_is_refused(service: Service, advice: dict[str, Any], generation: int, code: str) -> None:
    token = claimed(service, advice)["claim_token"]
    refused = report(service, advice, "PENDING", claim_token=token, observed_generation=generation)
    assert (refused.status_code, refused.json()["code"]) == (409, code)
    claim = service.post(f"/v1/recommendations/{advice['id']}/claim", json=CLAIM | {"observed_generation": generation})
    assert (claim.status_code, claim.json()["code"]) == (409, code)


def test_the_last_writer_of_a_generation_wins_and_repetitions_are_not_recorded_again(
    service: Service, advice: dict[str, Any]
) -> None:
    token = claimed(service, advice)["claim_token"]
    for held in (True, True, False):
        said = report(service, advice, "PENDING", claim_token=token, observation={"held": held})
    assert said.json()["reconciliation"]["observation"] == {"held": False}
    assert service.audit.kinds().count("reconciliation.reported") == 2


@pytest.mark.parametrize("disposition", ["CONVERGED", "ABANDONED", "FAILED"])
def test_a_terminal_answer_stands(service: Service, advice: dict[str, Any], disposition: str) -> None:
    token = claimed(service, advice)["claim_token"]
    assert report(service, advice, disposition, claim_token=token).json()["state"] == disposition
    assert report(service, advice, disposition, claim_token=token).status_code == 200
    other = "FAILED" if disposition != "FAILED" else "CONVERGED"
    refused = report(service, advice, other, claim_token=token)
    assert (refused.status_code, refused.json()["code"]) == (409, "already_answered")


def test_work_cannot_be_reported_without_a_claim_but_giving_up_can(service: Service, advice: dict[str, Any]) -> None:
    for disposition in ("PENDING", "CONVERGED", "FAILED"):
        refused = report(service, advice, disposition)
        assert (refused.status_code, refused.json()["code"]) == (409, "not_claimed")
    given_up = report(service, advice, "ABANDONED", reason="already_satisfied")
    assert given_up.json()["state"] == "ABANDONED"


def test_a_late_controller_finds_the_advice_expired(service: Service, advice: dict[str, Any]) -> None:
    token = claimed(service, advice)["claim_token"]
    service.clock.advance(minutes=16)
    late = report(service, advice, "CONVERGED", claim_token=token)
    assert (late.status_code, late.json()["code"]) == (409, "already_answered")
    assert report(service, advice, "ABANDONED", claim_token=token, reason="expired").status_code == 200


def test_nothing_is_excluded_before_the_decision_took_effect(service: Service, advice: dict[str, Any]) -> None:
    assert service.get("/v1/exclusions").json()["items"] == []
    token = claimed(service, advice)["claim_token"]
    report(service, advice, "FAILED", claim_token=token, reason="scheduler_refused")
    assert service.get("/v1/exclusions").json()["items"] == []


def test_a_milestone_is_inserted_once_for_each_key(service: Service, advice: dict[str, Any]) -> None:
    said = {"recommendation_id": advice["id"], "step": "release", "phase": "intent", "idempotency_key": "k"}
    unclaimed = service.post("/v1/milestones", json=said)
    assert (unclaimed.status_code, unclaimed.json()["code"]) == (409, "not_claimed")
    claimed(service, advice)
    first, second = service.post("/v1/milestones", json=said), service.post("/v1/milestones", json=said)
    other = service.post("/v1/milestones", json=said | {"step": "cancel"})
    assert (first.status_code, second.status_code, other.status_code) == (201, 200, 409)
    assert service.audit.kinds().count("milestone.recorded") == 1


def test_feedback_of_one_person_is_kept_once(service: Service, advice: dict[str, Any]) -> None:
    said = {"actor": "ada", "verdict": "wrong", "true_failure": "cuda_oom", "note": "it was memory"}
    for _ in range(2):
        assert service.post(f"/v1/recommendations/{advice['id']}/feedback", json=said).status_code == 200
    assert service.audit.kinds().count("feedback.given") == 1


def test_when_a_report_cannot_be_recorded_the_state_does_not_move(service: Service, advice: dict[str, Any]) -> None:
    token = claimed(service, advice)["claim_token"]
    service.audit.is_broken = True
    refused = report(service, advice, "CONVERGED", claim_token=token)
    assert (refused.status_code, refused.json()["code"]) == (503, "audit_unavailable")
    assert service.get(f"/v1/recommendations/{advice['id']}").json()["state"] == "CLAIMED"


def test_the_record_names_the_controller_that_acted_and_not_its_token(service: Service, advice: dict[str, Any]) -> None:
    token = claimed(service, advice)["claim_token"]
    intent = {"recommendation_id": advice["id"], "step": "set_exclusions", "phase": "intent", "idempotency_key": "k"}
    told = service.as_(Role.CONTROLLER).post("/v1/milestones", json=intent)
    assert told.json()["actor"] == "c-1"
    report(service.as_(Role.CONTROLLER), advice, "CONVERGED", reason="desired_state_observed", claim_token=token)
    kinds = {"exclusion.added", "milestone.recorded", "reconciliation.reported", "outcome.reported"}
    named = {(one.kind, one.actor) for one in service.audit.events() if one.kind in kinds}  # type: ignore[union-attr]
    assert named == {(kind, "c-1") for kind in kinds}
    assert service.get("/v1/audit?actor=c-1").json()["items"]


def test_whoever_gives_up_what_nobody_claimed_is_named_by_its_token(service: Service, advice: dict[str, Any]) -> None:
    report(service.as_(Role.CONTROLLER), advice, "ABANDONED", reason="user_released")
    (event,) = [one for one in service.audit.events() if one.kind == "reconciliation.reported"]
    assert event.actor == "client-controller"  # type: ignore[union-attr]
