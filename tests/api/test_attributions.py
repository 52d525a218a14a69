# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Attributions from outside: recorded once, revising only what is poorer and not acted on, never acting."""

from __future__ import annotations

from typing import Any

import pytest

from service.tokens import Role
from tests.api.running import Service

BODY = {
    "attempt_id": "a-1",
    "failure": "gpu_fell_off_bus",
    "class": "hardware",
    "evidence_status": "established",
    "implicated": [{"node": "n3", "reason": "model"}],
    "attributor": "our-model",
    "version": "1",
}


@pytest.fixture
def advice(service: Service) -> dict[str, Any]:
    service.put_attempt()
    service.put_attempt(state="FAILED")
    found: dict[str, Any] = service.advise().json()
    return found


def test_a_richer_attribution_raises_a_new_generation(service: Service, advice: dict[str, Any]) -> None:
    added = service.as_(Role.AUTHOR).post("/v1/attributions", json=BODY)
    assert (added.status_code, added.json()["generation"]) == (201, 2)
    told = service.get(f"/v1/recommendations/{advice['id']}").json()
    assert (told["failure"], told["id"], told["expires_at"]) == (
        "gpu_fell_off_bus",
        advice["id"],
        advice["expires_at"],
    )


def test_the_same_version_is_recorded_once(service: Service, advice: dict[str, Any]) -> None:
    first = service.post("/v1/attributions", json=BODY)
    again = service.post("/v1/attributions", json=BODY | {"failure": "cuda_oom"})
    assert (again.status_code, again.json()["failure"]) == (200, "gpu_fell_off_bus")
    assert again.json()["generation"] == first.json()["generation"]


def test_a_poorer_attribution_is_kept_and_changes_nothing(service: Service) -> None:
    service.crash()
    advice = service.advise().json()
    poorer = BODY | {"failure": "cuda_oom", "class": "resource", "evidence_status": "hypothesis"}
    assert service.post("/v1/attributions", json=poorer).json()["generation"] == 1
    assert service.get(f"/v1/recommendations/{advice['id']}").json()["failure"] == "gpu_fell_off_bus"


def test_a_revision_takes_the_approval_back(service: Service) -> None:
    service.set_mode("approve")
    service.put_attempt()
    service.put_attempt(state="FAILED")
    where = f"/v1/recommendations/{service.advise().json()['id']}"
    service.post(f"{where}/approve", json={"actor": "ada"})
    service.post("/v1/attributions", json=BODY)
    told = service.get(where).json()
    assert (told["generation"], told["state"], told["actionable"]) == (2, "PROPOSED", False)


def test_nobody_may_speak_in_our_name_or_of_an_unknown_attempt(service: Service) -> None:
    assert service.post("/v1/attributions", json=BODY).status_code == 404
    service.put_attempt()
    assert service.post("/v1/attributions", json=BODY | {"attributor": "builtin"}).status_code == 422
