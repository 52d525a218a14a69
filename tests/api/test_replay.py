# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A service that starts again from the same log gives the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from service.adapters.duckdb_audit import DuckDBAuditLog
from service.rules_store import RuleStore
from tests.api.running import START, BrittleAuditLog, Service, StandingClock, start
from tests.api.test_story import claimed

Portal = Any
PATHS = ("/v1/attempts", "/v1/incidents", "/v1/anomalies", "/v1/recommendations", "/v1/exclusions",
         "/v1/modes", "/v1/policy")  # fmt: skip


def busy(service: Service) -> dict[str, Any]:
    """A bit of everything: a finished recovery, an open one, a shadow, a pardon, a changed policy."""
    service.crash("a-1", node="n2")
    first: dict[str, Any] = service.advise("a-1").json()
    token = claimed(service, first)["claim_token"]
    where = f"/v1/recommendations/{first['id']}"
    said = {"observed_generation": 1, "disposition": "CONVERGED", "claim_token": token}
    service.put(f"{where}/reconciliation", json=said)
    service.post(f"{where}/feedback", json={"actor": "ada", "verdict": "right"})
    service.clock.advance(minutes=11)
    service.put_attempt("a-2", attempt_index=1)
    policy = service.get("/v1/policy")
    body = {"text": policy.json()["text"] + "\n# reviewed\n", "actor": "ada", "reason": "review"}
    service.put("/v1/policy", json=body, headers={"If-Match": policy.headers["ETag"]})
    service.set_mode("approve")
    service.crash("b-1", node="n9", workload_id="other")
    service.advise("b-1")
    return first


def answers(service: Service) -> dict[str, Any]:
    found = {path: service.get(path).json() for path in PATHS}
    for incident in found["/v1/incidents"]["items"]:
        path = f"/v1/incidents/{incident['id']}/why"
        found[path] = service.get(path).json()
    found["/v1/recommendations"].pop("revision")
    return found


def test_replay_gives_identical_answers(rules: RuleStore, portal: Portal) -> None:
    before = start(rules, portal)
    busy(before)
    after = start(rules, portal, audit=before.audit, clock=before.clock)
    assert answers(after) == answers(before)


def test_what_was_asked_before_a_restart_is_answered_the_same_after_it(rules: RuleStore, portal: Portal) -> None:
    before = start(rules, portal)
    first = busy(before)
    ask = {"attempt_id": "a-1", "trigger": "exited"}
    before.post("/v1/recommendations", json=ask, headers={"Idempotency-Key": "k"})
    after = start(rules, portal, audit=before.audit, clock=before.clock)
    recorded = after.audit.kinds().count("recommendation.issued")
    assert after.advise("a-1").json()["id"] == first["id"]
    other = after.post("/v1/recommendations", json=ask | {"trigger": "manual"}, headers={"Idempotency-Key": "k"})
    assert other.status_code == 409
    assert after.audit.kinds().count("recommendation.issued") == recorded


def test_evidence_seen_before_a_restart_still_names_the_cause(rules: RuleStore, portal: Portal) -> None:
    before = start(rules, portal)
    before.crash()
    after = start(rules, portal, audit=before.audit, clock=before.clock)
    after.send_lines({"attempt_id": "a-1", "file": "rank0.log", "number": 900, "text": "Killed"})
    assert after.advise("a-1").json()["failure"] == "gpu_fell_off_bus"


def test_a_claim_outlives_a_restart(rules: RuleStore, portal: Portal) -> None:
    before = start(rules, portal)
    before.crash()
    advice = before.advise().json()
    token = claimed(before, advice)["claim_token"]
    after = start(rules, portal, audit=before.audit, clock=before.clock)
    refused = after.post(
        f"/v1/recommendations/{advice['id']}/claim",
        json={"controller_id": "c-2", "observed_generation": 1},
    )
    assert refused.json()["code"] == "claimed"
    said = {"observed_generation": 1, "disposition": "CONVERGED", "claim_token": token}
    done = after.put(f"/v1/recommendations/{advice['id']}/reconciliation", json=said)
    assert done.json()["state"] == "CONVERGED"


def test_spent_retries_are_remembered_over_attempts_and_restarts(rules: RuleStore, portal: Portal) -> None:
    service = start(rules, portal)
    totals = []
    for number in range(3):
        service.crash(f"a-{number}", attempt_index=number, node=f"n{number}")
        advice = service.advise(f"a-{number}").json()
        totals.append(advice["ledgers"]["after"]["total_restarts"])
        service.clock.advance(minutes=30)
        service = start(rules, portal, audit=service.audit, clock=service.clock)
    assert totals == [1, 2, 3]


def test_the_same_story_in_duckdb_gives_the_same_answers(rules: RuleStore, portal: Portal, tmp_path: Path) -> None:
    memory = start(rules, portal)
    busy(memory)
    clock = StandingClock(START)
    log = DuckDBAuditLog(tmp_path / "audit.duckdb", clock)
    copied = 0
    for record in memory.audit.records:
        log.append([record.event()])
        copied += 1
    log.close()
    clock.at = memory.clock.at
    reopened = DuckDBAuditLog(tmp_path / "audit.duckdb", clock)
    replica = BrittleAuditLog()
    replica.append([stored.event for stored in reopened.read(limit=copied)])
    reopened.close()
    assert answers(start(rules, portal, audit=replica, clock=memory.clock)) == answers(memory)
