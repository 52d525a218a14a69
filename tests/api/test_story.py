# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A whole recovery over HTTP: crash, advice, claim, action, restart, progress."""

from __future__ import annotations

from typing import Any

from service.tokens import Role
from tests.api.running import Service


def claimed(service: Service, advice: dict[str, Any], controller: str = "c-1") -> dict[str, Any]:
    body = {"controller_id": controller, "observed_generation": advice["generation"], "lease_s": 60}
    answer = service.post(f"/v1/recommendations/{advice['id']}/claim", json=body)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_a_crash_is_advised_on_acted_on_and_recovered_from(service: Service) -> None:
    controller = service.as_(Role.CONTROLLER)
    controller.crash(node="n2")
    asked = controller.advise()
    advice = asked.json()
    assert asked.status_code == 201
    assert (advice["action"], advice["failure"], advice["state"]) == (
        "restart_excluding",
        "gpu_fell_off_bus",
        "PROPOSED",
    )
    assert advice["actionable"]
    assert [one["node"] for one in advice["exclusions"]] == ["n2"]
    where = f"/v1/recommendations/{advice['id']}"

    token = claimed(controller, advice)["claim_token"]
    for step in ("requeue_hold", "set_exclusions", "release"):
        for phase in ("intent", "done"):
            said = {"recommendation_id": advice["id"], "step": step, "phase": phase,
                    "idempotency_key": f"{step}-{phase}"}  # fmt: skip
            assert controller.post("/v1/milestones", json=said).status_code == 201
    assert controller.get(where).json()["state"] == "ACTING"
    report = {
        "observed_generation": 1,
        "disposition": "CONVERGED",
        "reason": "desired_state_observed",
        "observation": {"job_state": "PENDING", "restart_count": 1, "exc_nodes": ["n2"], "held": False},
        "claim_token": token,
    }
    assert controller.put(f"{where}/reconciliation", json=report).json()["state"] == "CONVERGED"
    assert [one["node"] for one in controller.get("/v1/exclusions").json()["items"]] == ["n2"]

    service.clock.advance(minutes=2)
    controller.put_attempt("a-2", attempt_index=1, allocated_nodes=["n1", "n3", "n4", "n5"])
    incident = controller.get(f"/v1/incidents/{advice['incident_id']}").json()
    assert incident["state"] == "ALLOCATION_RESTARTED"

    for number in (1, 2):
        sent = controller.post(
            "/v1/signals",
            json={
                "signals": [
                    {
                        "source": "trainer",
                        "source_event_id": f"s-{number}",
                        "event_time": service.clock.at.isoformat(),
                        "attempt_id": "a-2",
                        "progress": {"step": number, "checkpoint_step": number},
                    }
                ]
            },
        )
        assert sent.json()["accepted"] == 1
    assert controller.get(f"/v1/incidents/{advice['incident_id']}").json()["state"] == "CLOSED_RECOVERED"
    outcomes = [e.outcome.value for e in service.audit.events() if e.kind == "outcome.reported"]  # type: ignore[union-attr]
    assert outcomes == ["decision_executed", "allocation_restarted", "progress_resumed"]


def test_why_names_the_line_the_losers_the_ledgers_and_what_would_change_it(service: Service) -> None:
    service.put_attempt()
    service.send_lines(
        {"attempt_id": "a-1", "file": "kern.log", "number": 1, "stream": "kernel", "node": "n2",
         "text": "NVRM: Xid (PCI:0000:1a:00): 79, pid=4242, name=python, GPU has fallen off the bus."},
        {"attempt_id": "a-1", "file": "rank0.log", "number": 1, "rank": 0, "node": "n1",
         "text": "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=118, "
         "OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600042 milliseconds before timing out."},
    )  # fmt: skip
    service.put_attempt(state="FAILED")
    advice = service.advise().json()
    why = service.get(f"/v1/incidents/{advice['incident_id']}/why").json()
    assert (why["failure"], why["class"]) == ("gpu_fell_off_bus", "hardware")
    assert why["root"]["where"] == {"file": "kern.log", "line": 1}
    assert "fallen off the bus" in why["root"]["text"]
    assert any(one["failure"].startswith("nccl_") and one["lost_to"] for one in why["losers"])
    assert why["ledgers_before"]["total_restarts"] == 0
    assert why["ledgers_after"]["total_restarts"] == 1
    assert why["counterfactual"]
    assert why["recommendation"]["id"] == advice["id"]


def test_a_second_crash_links_its_incident_to_the_first(service: Service) -> None:
    service.crash("a-1")
    first = service.advise("a-1").json()
    claimed(service, first)
    service.clock.advance(minutes=1)
    service.put_attempt("a-2", attempt_index=1)
    service.crash("a-2", attempt_index=1, node="n3")
    second = service.advise("a-2").json()
    incident = service.get(f"/v1/incidents/{second['incident_id']}").json()
    assert incident["recurrence_of"] == first["incident_id"]
    assert service.get(f"/v1/incidents/{first['incident_id']}").json()["state"] == "CLOSED_RECURRED"


def test_the_timeline_tells_the_story_in_order(service: Service) -> None:
    service.crash()
    service.advise()
    entries = service.get("/v1/attempts/a-1/timeline").json()["items"]
    kinds = [one["kind"] for one in entries]
    assert [one["position"] for one in entries] == sorted(one["position"] for one in entries)
    order = ["attempt.observed", "attribution.made", "incident.opened", "recommendation.issued"]
    assert [kinds.index(kind) for kind in order] == sorted(kinds.index(kind) for kind in order)
