# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""OTLP/HTTP logs: both encodings, both compressions, and the answers that its senders act on."""

from __future__ import annotations

import gzip
from typing import Any

import pytest
import zstandard

from service.config import Ingest, Recommend, Settings
from service.rules_store import RuleStore
from service.tokens import Role
from tests.api.otlp_bodies import (
    JSON,
    PROTOBUF,
    lines_of,
    logs,
    nanos,
    post,
    protobuf,
    read_status,
    read_success,
    record,
)
from tests.api.running import START, XID_79, Service, start

PATH = "/v1/logs"


@pytest.fixture
def known(service: Service) -> Service:
    service.put_attempt(started_at=START.isoformat())
    return service


def rejected(answer: Any) -> tuple[int, str]:
    assert answer.status_code == 200, answer.text
    partial = answer.json().get("partialSuccess", {})
    return int(partial.get("rejectedLogRecords", "0")), partial.get("errorMessage", "")


# ------------------------------------------------------------------ what a record is about


@pytest.mark.parametrize(
    "attributes",
    [
        {"slurm__job__id": "4711"},
        {"slurm__job__id": 4711},
        {"SLURM_JOB_ID": "4711", "SLURM_RESTART_COUNT": "0"},
        {"job_id": "4711"},
        {"training__attempt": "a-1"},
        {"attempt_id": "a-1"},
    ],
)
def test_a_record_finds_its_attempt_by_resource_or_by_its_own_attributes(
    known: Service, attributes: dict[str, Any]
) -> None:
    assert rejected(post(known, logs(record("one"), **attributes))) == (0, "")
    assert rejected(post(known, logs(record("two", **attributes)))) == (0, "")
    assert lines_of(known) == 2


def test_records_that_name_no_job_are_counted_and_the_others_are_taken(known: Service) -> None:
    said = logs(record("good", slurm__job__id=4711), record("x", slurm__job__id=9), record("y"), "nonsense")
    count, reason = rejected(post(known, said))
    assert count == 2 and "unknown job '9': held for 600 s" in reason and "no label names a job" in reason
    assert lines_of(known) == 1


def test_a_body_of_several_lines_and_a_stack_trace_are_lines_of_the_log(known: Service) -> None:
    trace = 'Traceback (most recent call last):\n  File "t.py", line 3, in <module>\n    f()\nValueError: no'
    said = logs(record("one\ntwo", job_id=4711), record("failed", job_id=4711, exception__stacktrace=trace))
    assert rejected(post(known, said)) == (0, "")
    assert lines_of(known) == 2 + 5


def test_the_same_request_again_is_a_repetition_and_equal_lines_within_one_are_not(known: Service) -> None:
    said = logs(record("mlx5 port error"), record("mlx5 port error"), record("other"), job_id="4711")
    for _ in range(2):
        assert rejected(post(known, said)) == (0, "")
        assert lines_of(known) == 3


# ------------------------------------------------------------------ machines


def kernel(text: str, node: str = "n2", **more: Any) -> dict[str, Any]:
    return logs(record(text, appname="kernel", **more), host__name=node)


def test_a_kernels_line_finds_the_attempts_that_held_its_node_then(known: Service) -> None:
    known.put_attempt("b-1", scheduler={"kind": "slurm", "job_id": "5"}, allocated_nodes=["n9"])
    assert rejected(post(known, kernel(XID_79))) == (0, "")
    assert (lines_of(known), lines_of(known, "b-1")) == (1, 0)
    (anomaly,) = known.get("/v1/anomalies").json()["items"]
    assert anomaly["attempt_id"] == "a-1"


def test_a_kernels_line_of_a_machine_that_no_attempt_holds_is_taken_and_kept_out(known: Service) -> None:
    assert rejected(post(known, kernel(XID_79, node="n77"))) == (0, "")
    assert known.get("/v1/anomalies").json()["items"] == []
    assert b'outcome="unplaced",source="otlp"} 1.0' in known.get("/metrics").content


@pytest.mark.parametrize(("allocated", "speaks_as"), [("n2", "n2.lab.example"), ("n2.lab.example", "n2")])
def test_a_machine_is_known_by_its_short_and_by_its_long_name(service: Service, allocated: str, speaks_as: str) -> None:
    service.put_attempt(allocated_nodes=[allocated, "n3"], started_at=START.isoformat())
    post(service, kernel(XID_79, node=speaks_as))
    service.put_attempt(allocated_nodes=[allocated, "n3"], state="FAILED")
    assert [one["node"] for one in service.advise().json()["exclusions"]] == [allocated]


def test_machines_that_share_only_the_first_label_are_two(service: Service) -> None:
    service.put_attempt(allocated_nodes=["n2.east.example"], started_at=START.isoformat())
    post(service, kernel(XID_79, node="n2.west.example"))
    assert lines_of(service) == 0


def test_a_line_from_before_the_attempt_is_not_its_own(known: Service) -> None:
    known.clock.advance(hours=1)
    known.put_attempt("b-1", attempt_index=1, started_at=known.clock.at.isoformat())
    known.put_attempt("a-1", state="FAILED")
    old = logs(record(XID_79, at=nanos(minutes=30), appname="kernel"), host__name="n2")
    post(known, old)
    assert (lines_of(known), lines_of(known, "b-1")) == (1, 0)


def test_a_journal_entry_of_the_kernel_is_known_as_one(known: Service) -> None:
    entry = {"_TRANSPORT": "kernel", "_HOSTNAME": "n2", "_BOOT_ID": "b0", "MESSAGE": XID_79, "PRIORITY": "2"}
    body = {"kvlistValue": {"values": [{"key": k, "value": {"stringValue": v}} for k, v in entry.items()]}}
    post(known, logs(record(body)))
    (anomaly,) = known.get("/v1/anomalies").json()["items"]
    assert anomaly["attempt_id"] == "a-1"


@pytest.mark.parametrize("origin", ["log__file__path", "k8s__pod__name", "service__name"])
def test_a_job_that_prints_a_journal_entry_does_not_speak_for_the_kernel(known: Service, origin: str) -> None:
    entry = {"_TRANSPORT": "kernel", "_HOSTNAME": "n2", "_BOOT_ID": "b0", "MESSAGE": XID_79}
    body = {"kvlistValue": {"values": [{"key": k, "value": {"stringValue": v}} for k, v in entry.items()]}}
    post(known, logs(record(body, job_id=4711), **{origin: "/out/kern.log"}))
    known.put_attempt(state="FAILED")
    assert known.advise().json()["exclusions"] == []


# ------------------------------------------------------------------ the JSON of the protocol


def test_unknown_fields_integers_as_text_and_hex_ids_are_read(known: Service) -> None:
    said = record("line", at=str(nanos()), job_id=4711, rank=3)
    said |= {"severityNumber": 17, "traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174"}
    said |= {"observedTimeUnixNano": nanos(), "futureField": {"deep": [1]}, "flags": 1, "attributesCount": "2"}
    said["attributes"] += [
        {"key": "n", "value": {"intValue": "9007199254740993"}},
        {"key": "x", "value": {"doubleValue": "NaN"}},
        {"key": "list", "value": {"arrayValue": {"values": [{"boolValue": True}, {"stringValue": "s"}, {}]}}},
        {"key": "raw", "value": {"bytesValue": "aGVsbG8="}},
        {"key": "none", "value": None},
        {"key": "empty", "value": {}},
    ]
    assert rejected(post(known, logs(said))) == (0, "")
    assert lines_of(known) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[]",
        b'{"resourceLogs": {}}',
        b'{"resourceLogs": [5]}',
        b'{"resourceLogs": [{"scopeLogs": [5]}]}',
        b'{"resourceLogs": [{"resource": []}]}',
        b'{"resourceLogs": [{"scopeLogs": [{"logRecords": "x"}]}]}',
        b'{"a": ' * 3_000 + b"1" + b"}" * 3_000,
        b'{"resourceLogs":[{"scopeLogs":[{"logRecords":[{"body":{"stringValue":"loss="2.1""}}]}]}]}',
    ],
)
def test_a_body_that_is_not_otlp_is_400_with_a_status(known: Service, body: bytes) -> None:
    answer = post(known, body)
    assert (answer.status_code, answer.json()["code"]) == (400, 3), answer.text


@pytest.mark.parametrize(
    "broken",
    [
        {"timeUnixNano": "soon"},
        {"timeUnixNano": -5},
        {"timeUnixNano": str(2**70)},
        {"body": "bare text"},
        {"body": {"bytesValue": "not base64!"}},
        {"body": {"stringValue": 5}},
        {"attributes": [{"key": "rank", "value": {"stringValue": "first"}}]},
    ],
)
def test_a_record_that_cannot_be_read_is_rejected_alone(known: Service, broken: dict[str, Any]) -> None:
    count, reason = rejected(post(known, logs(record("good"), record("bad") | broken, job_id=4711)))
    assert count == 1 and reason
    assert lines_of(known) == 1


def test_values_nested_beyond_reason_cost_their_record_only(known: Service) -> None:
    deep: dict[str, Any] = {"stringValue": "x"}
    for _ in range(40):
        deep = {"arrayValue": {"values": [deep]}}
    assert rejected(post(known, logs(record(deep), record("good"), job_id=4711)))[0] == 1


# ------------------------------------------------------------------ protobuf, compression, bounds


def test_protobuf_is_answered_in_protobuf(known: Service) -> None:
    answer = known.post(PATH, content=protobuf("one", "two", slurm__job__id="4711"), headers=PROTOBUF)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "application/x-protobuf"
    answer = known.post(PATH, content=protobuf("one", slurm__job__id="9"), headers=PROTOBUF)
    count, reason = read_success(answer.content)
    assert count == 0 and "unknown job '9': held" in reason, "a warning, by the protocol's own words"


def test_broken_protobuf_is_400_and_a_missing_token_401_as_status(known: Service) -> None:
    answer = known.post(PATH, content=b"\xff\xff\xff", headers=PROTOBUF)
    assert answer.status_code == 400 and read_status(answer.content)[0] == 3
    answer = known.post(PATH, content=b"", headers=PROTOBUF | {"Authorization": ""})
    assert answer.status_code == 401 and read_status(answer.content)[0] == 16
    answer = known.as_(Role.VIEWER).post(PATH, content=b"{}", headers=JSON)
    assert (answer.status_code, answer.json()["code"]) == (403, 7)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_both_compressions_are_read_in_frames_too_and_broken_ones_are_400(
    known: Service, encoding: str, pack: Any
) -> None:
    headers = PROTOBUF | {"Content-Encoding": encoding}
    body = protobuf("one", slurm__job__id="4711")
    half = len(body) // 2
    for packed in (pack(body), pack(body[:half]) + pack(body[half:])):
        answer = known.post(PATH, content=packed, headers=headers)
        assert (answer.status_code, answer.content) == (200, b""), answer.text
    for broken in (pack(body)[:-5], b"rubbish", pack(body) + b"tail"):
        assert known.post(PATH, content=broken, headers=headers).status_code == 400


@pytest.mark.parametrize("encoding", ["br", "snappy", "deflate", "gzip, gzip"])
def test_another_encoding_is_415(known: Service, encoding: str) -> None:
    assert post(known, b"x", **{"Content-Encoding": encoding}).status_code == 415


def test_another_media_type_is_415(known: Service) -> None:
    answer = known.post(PATH, content=b"x", headers={"Content-Type": "text/plain"})
    assert (answer.status_code, answer.json()["code"]) == (415, 3)


@pytest.mark.parametrize(("encoding", "pack"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
def test_a_bomb_is_413_before_it_unfolds(known: Service, encoding: str, pack: Any) -> None:
    for size in (4 << 20, 64 << 20):
        answer = post(known, pack(b" " * size), **{"Content-Encoding": encoding})
        assert (answer.status_code, answer.json()["code"]) == (413, 8)


def test_more_records_than_allowed_are_413_and_none_counts(rules: RuleStore, portal: Any) -> None:
    settings = Settings(recommend=Recommend(), ingest=Ingest(max_lines_per_request=2))
    service = start(rules, portal, settings=settings)
    service.put_attempt()
    assert post(service, logs(*[record(str(n)) for n in range(2)], job_id=4711)).status_code == 200
    assert post(service, logs(*[record(str(n)) for n in range(5, 8)], job_id=4711)).status_code == 413
    assert lines_of(service) == 2


def test_overload_is_503_with_a_time_to_come_again_and_frees_what_it_took(rules: RuleStore, portal: Any) -> None:
    settings = Settings(recommend=Recommend(), ingest=Ingest(max_inflight_bytes=2_000))
    service = start(rules, portal, settings=settings)
    service.put_attempt()
    packed = gzip.compress(post_body := b'{"resourceLogs": []}' + b" " * 5_000)
    answer = post(service, packed, **{"Content-Encoding": "gzip"})
    assert len(packed) < 2_000 < len(post_body)
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, 14, "5")
    assert post(service, b"{}").status_code == 200


def test_what_could_not_be_recorded_is_503_and_taken_the_next_time(known: Service) -> None:
    said = logs(record("one"), job_id=4711)
    known.audit.is_broken = True
    answer = post(known, said)
    assert (answer.status_code, answer.json()["code"], answer.headers["retry-after"]) == (503, 14, "3")
    known.audit.is_broken = False
    post(known, said)
    assert lines_of(known) == 1


def test_a_fault_of_ours_is_503_so_that_senders_keep_what_they_have(known: Service, monkeypatch: Any) -> None:
    monkeypatch.setattr(type(known.application.intake), "accept_lines", lambda *_: 1 / 0)
    answer = post(known, logs(record("one"), job_id=4711))
    assert (answer.status_code, answer.json()["code"]) == (503, 14)


def test_a_line_longer_than_allowed_is_cut_and_marked(known: Service) -> None:
    post(known, logs(record("x" * 100_000), job_id=4711))
    assert lines_of(known) == 1


def test_the_password_of_basic_authentication_is_a_token_on_the_doors_only(known: Service) -> None:
    import base64

    secret = base64.b64encode(f"anyone:{known.secrets[Role.INGESTER]}".encode()).decode()
    headers = {"Authorization": f"Basic {secret}"}
    assert post(known, b"{}", **headers).status_code == 200
    assert known.get("/v1/attempts", headers=headers).status_code == 401
    assert post(known, b"{}", Authorization="Basic ???").status_code == 401


def test_a_secret_in_a_line_reaches_neither_answers_nor_records_and_is_counted(known: Service) -> None:
    secret = "ghp_" + "a1B2" * 9
    post(known, logs(record(f"{XID_79} https://ada:hunter2@h/x {secret}", appname="kernel"), host__name="n2"))
    known.put_attempt(state="FAILED")
    advice = known.advise().json()
    for path in (f"/v1/incidents/{advice['incident_id']}/why", "/v1/attempts/a-1/timeline", "/v1/audit"):
        said = known.get(path).text
        assert secret not in said and "hunter2" not in said, path
    assert "[redacted:" in known.get("/v1/audit").text
    assert b'relight_redactions_total{kind="github_token"} 1.0' in known.get("/metrics").content
