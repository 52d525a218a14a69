# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Attempts are upserted by time of observation, and what nobody said stays unknown."""

from __future__ import annotations

from datetime import timedelta

from tests.api.running import START, Service


def test_an_older_observation_changes_nothing(service: Service) -> None:
    assert service.put_attempt(state="FAILED").status_code == 201
    old = service.put_attempt(state="RUNNING", observed_at=(START - timedelta(seconds=1)).isoformat())
    assert (old.status_code, old.json()["applied"]) == (200, False)
    assert old.json()["attempt"]["state"] == "FAILED"


def test_an_observation_that_says_nothing_new_is_not_recorded_again(service: Service) -> None:
    service.put_attempt()
    for _ in range(3):
        service.clock.advance(seconds=15)
        assert service.put_attempt().json()["applied"]
    assert service.audit.kinds().count("attempt.observed") == 1


def test_a_failed_attempt_opens_an_incident_by_itself(service: Service) -> None:
    service.put_attempt()
    service.put_attempt(state="NODE_FAILED", failed_nodes=["n3"], reason="NodeFail")
    (incident,) = service.get("/v1/incidents?is_open=true").json()["items"]
    assert incident["attempt_id"] == "a-1"
    (anomaly,) = service.get("/v1/anomalies?attempt=a-1").json()["items"]
    assert (anomaly["kind"], anomaly["incident_id"]) == ("crash", incident["id"])


def test_a_completed_attempt_heals_its_incident(service: Service) -> None:
    service.put_attempt()
    service.put_attempt(state="FAILED")
    service.put_attempt(state="COMPLETED", observed_at=(START + timedelta(seconds=1)).isoformat())
    (incident,) = service.get("/v1/incidents").json()["items"]
    assert incident["state"] == "CLOSED_SELF_HEALED"


def test_an_attempt_keeps_its_workload_and_cluster(service: Service) -> None:
    service.put_attempt()
    moved = service.put_attempt(workload_id="another")
    assert (moved.status_code, moved.json()["code"]) == (422, "invalid")


def test_attempts_are_found_by_job_workload_and_state(service: Service) -> None:
    service.put_attempt("a-1", scheduler={"kind": "slurm", "job_id": "1"}, workload_id="w-1")
    service.put_attempt("a-2", scheduler={"kind": "slurm", "job_id": "2"}, workload_id="w-2", state="FAILED")
    for query in ("job_id=2", "workload_id=w-2", "state=FAILED"):
        found = service.get(f"/v1/attempts?{query}").json()["items"]
        assert [one["id"] for one in found] == ["a-2"], query


def test_an_attempt_shows_its_etag_and_its_advice(service: Service) -> None:
    service.crash()
    advice = service.advise().json()
    answer = service.get("/v1/attempts/a-1")
    assert answer.json()["recommendation_id"] == advice["id"]
    assert answer.headers["ETag"] == answer.json()["etag"]


def test_a_job_that_cannot_be_requeued_is_shown_its_verdict_but_not_acted_on(service: Service) -> None:
    service.crash(requeueable=False)
    advice = service.advise().json()
    assert (advice["actionable"], advice["blocked_by"]) == (False, ["not_requeueable"])


def test_the_time_limit_may_be_spelled_both_ways(service: Service) -> None:
    assert service.put_attempt(time_limit_s=3600).status_code == 201
    assert service.put_attempt(time_limit=7200).status_code == 200
