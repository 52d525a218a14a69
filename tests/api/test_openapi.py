# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The published contract: unchanged unless somebody means it, and true of what is served."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from service.api import bodies, otlp
from service.api.app import routes
from service.api.examples import EXAMPLES
from service.api.openapi import SNAPSHOT, document
from tests.api.running import Service

DESCRIBED: dict[str, Any] = json.loads(SNAPSHOT.read_text("utf-8"))
OPERATIONS = [
    (method, path, operation) for path, item in DESCRIBED["paths"].items() for method, operation in item.items()
]


def test_the_contract_is_the_one_in_the_tree(service: Service) -> None:
    assert document(service.app) == SNAPSHOT.read_text("utf-8"), "python -m service.api.openapi"


def test_operation_ids_are_unique_and_verbs() -> None:
    names = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z]+[A-Z][A-Za-z]+", name) for name in names)


def test_every_served_path_is_described_but_for_the_aliases() -> None:
    served = {(m.lower(), path) for path, route in routes() for m in route.methods or ()}
    described = {(method, path) for method, path, _ in OPERATIONS}
    assert served - described == {("get", "/recommendations"), ("post", "/recommendations")}


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=[f"{m} {p}" for m, p, _ in OPERATIONS])
def test_an_operation_says_how_it_fails(method: str, path: str, operation: dict[str, Any]) -> None:
    if path in {"/livez", "/readyz"}:
        return
    wanted = {"404"} if path.startswith("/problems") else {"400", "401", "403", "405", "422", "503"}
    assert wanted <= set(operation["responses"])
    if "requestBody" in operation:
        assert {"413", "415"} <= set(operation["responses"])
    if path == otlp.PATH:  # its senders read a Status, in the encoding that they sent
        assert all(set(one["content"]) == {bodies.JSON, bodies.PROTOBUF} for one in operation["responses"].values())
        return
    for status, response in operation["responses"].items():
        if status >= "400":
            assert response == {"$ref": f"#/components/responses/Problem{status}"}, f"{status} of {path}"


def test_every_operation_but_the_open_ones_asks_for_a_token() -> None:
    open_paths = {path for _, path, operation in OPERATIONS if not operation.get("security")}
    assert open_paths == {"/livez", "/readyz", "/problems/{code}"}


def test_problems_are_described_as_problem_json() -> None:
    shared = DESCRIBED["components"]["responses"]
    assert {tuple(response["content"]) for response in shared.values()} == {("application/problem+json",)}


def test_every_body_has_an_example() -> None:
    schemas = [
        operation["requestBody"]["content"]["application/json"]["schema"]
        for _, _, operation in OPERATIONS
        if "application/json" in operation.get("requestBody", {}).get("content", {})
    ]
    bodies = {schema["$ref"].rpartition("/")[2] for schema in schemas if "$ref" in schema}
    foreign = {schema["title"] for schema in schemas if "$ref" not in schema}
    assert foreign == {"ExportLogsServiceRequest", "LokiPush", "AlertmanagerWebhook"}
    assert bodies == set(EXAMPLES)


def test_every_reference_leads_somewhere() -> None:
    for place in set(re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DESCRIBED))):
        found: Any = DESCRIBED
        for part in place.split("/"):
            assert part in found, place
            found = found[part]


def test_the_examples_work_as_written(service: Service) -> None:
    """In the order of a recovery, with the ids that the service gave."""
    assert service.put("/v1/attempts/a-1", json=EXAMPLES["AttemptAsk"]).status_code == 201
    assert service.post("/v1/signals", json=EXAMPLES["SignalBatch"]).json()["accepted"] == 2
    advice = service.post("/v1/recommendations", json=EXAMPLES["RecommendationAsk"]).json()
    where = f"/v1/recommendations/{advice['id']}"
    assert service.post("/v1/attributions", json=EXAMPLES["AttributionAsk"]).status_code == 201
    generation = {"observed_generation": service.get(where).json()["generation"]}
    assert service.post(f"{where}/approve", json=EXAMPLES["AnswerAsk"]).status_code == 200
    lease = service.post(f"{where}/claim", json=EXAMPLES["ClaimAsk"] | generation).json()
    said = EXAMPLES["MilestoneAsk"] | {"recommendation_id": advice["id"]}
    assert service.post("/v1/milestones", json=said).status_code == 201
    report = EXAMPLES["ReconciliationAsk"] | generation | {"claim_token": lease["claim_token"]}
    assert service.put(f"{where}/reconciliation", json=report).status_code == 200
    assert service.post(f"{where}/feedback", json=EXAMPLES["FeedbackAsk"]).status_code == 200
    assert service.put("/v1/exclusions", json=EXAMPLES["ExclusionAsk"]).status_code == 201
    assert service.post("/v1/audit/verify", json=EXAMPLES["VerifyAsk"]).json()["is_sound"]
    for path, name in (("/v1/modes", "ModeAsk"), ("/v1/policy", "PolicyAsk")):
        etag = service.get(path).headers["ETag"]
        assert service.put(path, json=EXAMPLES[name], headers={"If-Match": etag}).status_code == 200, path
