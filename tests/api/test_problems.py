# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Every way to get a request wrong, answered as problem+json with a stable code."""

from __future__ import annotations

import pytest

from service.api.problems import PROBLEMS
from tests.api.running import Service

JSON = {"Content-Type": "application/json"}


def test_broken_json_is_400_and_says_where(service: Service) -> None:
    answer = service.put("/v1/attempts/a-1", content=b'{"workload_id": ', headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_body")
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("body", [b"[" * 100_000, b"\xff\xfe", b'{"a":' * 50_000])
def test_hostile_json_is_refused_and_never_a_fault(service: Service, body: bytes) -> None:
    assert service.put("/v1/attempts/a-1", content=body, headers=JSON).status_code in {400, 413, 422}


def test_a_faulty_field_is_named_by_its_pointer(service: Service) -> None:
    answer = service.put_attempt(scheduler={"kind": "slurm"})
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["pointer"] == "/scheduler/job_id"


def test_unknown_fields_are_refused(service: Service) -> None:
    answer = service.put_attempt(colour="red")
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/colour")


@pytest.mark.parametrize("value", ["2026-11-02T12:00:00", "yesterday", 1_793_620_800, "1793620800"])
def test_a_time_without_a_zone_is_refused(service: Service, value: object) -> None:
    answer = service.put_attempt(observed_at=value)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/observed_at")


def test_half_a_character_is_refused_since_no_answer_could_spell_it(service: Service) -> None:
    body = b'{"actor": "a\\ud800"}'
    answer = service.post("/v1/recommendations/r-1/approve", content=body, headers=JSON)
    assert answer.status_code == 422
    assert "half a character" in answer.json()["errors"][0]["detail"]


def test_a_path_that_does_not_exist_is_404(service: Service) -> None:
    answer = service.get("/v1/nowhere")
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("DELETE", "/v1/recommendations", "GET, POST"),
        ("POST", "/v1/attempts/a-1", "GET, PUT"),
        ("PATCH", "/v1/exclusions", "DELETE, GET, PUT"),
        ("PUT", "/recommendations", "GET, POST"),
        ("DELETE", "/livez", "GET"),
    ],
)
def test_a_wrong_method_is_405_with_every_right_one(service: Service, method: str, path: str, allow: str) -> None:
    answer = service.request(method, path)
    assert (answer.status_code, answer.headers["allow"]) == (405, allow)
    assert answer.json()["code"] == "method_not_allowed"


def test_a_body_beyond_the_limit_is_413_as_a_problem(service: Service) -> None:
    answer = service.put("/v1/attempts/a-1", content=b" " * (1 << 20) + b" ", headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (413, "body_too_large")
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_another_content_type_is_415(service: Service, kind: str) -> None:
    answer = service.put("/v1/attempts/a-1", content=b"{}", headers={"Content-Type": kind})
    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")


def test_who_may_not_call_is_told_so_before_the_body_is_read(service: Service) -> None:
    for header in ("Bearer nonsense", "Basic YTpi", ""):
        headers = JSON | {"Authorization": header}
        answer = service.put("/v1/attempts/a-1", content=b"{broken", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("query", ["limit=0", "limit=251", "limit=x", "cursor=zzz", "since_revision=-1"])
def test_a_parameter_out_of_bounds_is_refused(service: Service, query: str) -> None:
    answer = service.get(f"/v1/recommendations?{query}")
    assert answer.status_code in {400, 422}
    assert answer.headers["content-type"] == "application/problem+json"


def test_a_wait_that_cannot_be_read_is_400(service: Service) -> None:
    answer = service.get("/v1/recommendations?since_revision=0&wait=soon")
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_parameter")


def test_the_callers_trace_is_carried_into_the_problem(service: Service) -> None:
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    headers = {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    assert service.get("/v1/nowhere", headers=headers).json()["trace_id"] == trace


def test_a_fault_of_ours_is_500_for_people_and_503_for_senders(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object, **__: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(type(service.application.journal.audit), "read", fault)
    monkeypatch.setattr(type(service.application.intake), "accept_lines", fault)
    service.put_attempt()
    assert service.get("/v1/audit").status_code == 500
    sent = service.send_lines({"attempt_id": "a-1", "text": "x"})
    assert (sent.status_code, "retry-after" in sent.headers) == (503, True)


@pytest.mark.parametrize("code", sorted(PROBLEMS))
def test_every_code_is_explained_where_its_type_points(service: Service, code: str) -> None:
    assert service.get(f"/problems/{code}").json()["status"] == PROBLEMS[code][0]
