# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Signals and log lines: each has a result of its own, and a repetition is known as one."""

from __future__ import annotations

import gzip
from typing import Any

import orjson
import pytest

from service.api.logs import Inflater
from service.api.problems import Problem
from service.config import Ingest, Recommend, Server, Settings
from service.rules_store import RuleStore
from service.tokens import Role
from tests.api.running import START, XID_79, Service, start

NDJSON = {"Content-Type": "application/x-ndjson"}
Portal = Any


def signal(number: int, **payload: Any) -> dict[str, Any]:
    return {
        "source": "agent",
        "source_event_id": f"e-{number}",
        "event_time": START.isoformat(),
        "attempt_id": "a-1",
    } | (payload or {"heartbeat": {"rank": 0}})


def send(service: Service, *signals: Any) -> Any:
    return service.as_(Role.INGESTER).post("/v1/signals", json={"signals": list(signals)})


# ------------------------------------------------------------------ signals


def test_each_signal_has_its_own_result(service: Service) -> None:
    service.put_attempt()
    answer = send(
        service,
        signal(1),
        signal(1),
        signal(2, attempt_id="a-9", heartbeat={"rank": 0}),
        signal(3, heartbeat={"rank": -1}),
        signal(4, heartbeat={"rank": 0}, progress={"step": 1}),
        "nonsense",
    ).json()
    assert [one["status"] for one in answer["results"]] == [
        "accepted", "duplicate", "failed", "failed", "failed", "failed",
    ]  # fmt: skip
    assert (answer["accepted"], answer["duplicates"], answer["failed"]) == (1, 1, 4)
    assert all(one["detail"] for one in answer["results"] if one["status"] == "failed")


def test_a_rank_that_knows_only_its_slurm_job_and_restart_is_heard(service: Service) -> None:
    service.put_attempt("a-1", attempt_index=0)
    service.put_attempt("a-2", attempt_index=1)
    answer = send(
        service,
        signal(1, attempt_id="slurm:4711:1", progress={"step": 7}),
        signal(2, attempt_id="slurm:4711:2", progress={"step": 9}),
    ).json()
    assert [one["status"] for one in answer["results"]] == ["accepted", "failed"]
    assert answer["results"][1]["detail"].startswith("unknown attempt"), "the client sends such items again"
    assert service.get("/v1/attempts/a-2").json()["last_step"] == 7


def test_sending_a_batch_again_changes_nothing(service: Service) -> None:
    service.put_attempt()
    batch = [signal(1, progress={"step": 5}), signal(2, node="n1", step_timing={"rank": 0, "step": 5, "step_s": 1})]
    assert send(service, *batch).json()["accepted"] == 2
    recorded = len(service.audit.records)
    assert send(service, *batch).json()["duplicates"] == 2
    assert len(service.audit.records) == recorded


def test_signals_that_could_not_be_recorded_are_accepted_the_next_time(service: Service) -> None:
    service.put_attempt()
    service.audit.is_broken = True
    assert send(service, signal(1)).status_code == 503
    service.audit.is_broken = False
    assert send(service, signal(1)).json()["accepted"] == 1


def test_more_than_a_thousand_signals_are_refused_whole(service: Service) -> None:
    assert send(service, *[signal(n) for n in range(1_001)]).status_code == 422


def test_only_completed_steps_count_as_reached(service: Service) -> None:
    service.put_attempt()
    send(service, signal(1, progress={"step": 7, "kind": "started"}), signal(2, progress={"step": 6}))
    assert service.get("/v1/attempts/a-1").json()["last_step"] == 6


def test_a_schedulers_event_moves_the_attempt(service: Service) -> None:
    service.put_attempt()
    send(service, signal(1, scheduler_event={"state": "NODE_FAILED", "failed_nodes": ["n3"]}))
    attempt = service.get("/v1/attempts/a-1").json()
    assert (attempt["state"], attempt["failed_nodes"]) == ("NODE_FAILED", ["n3"])
    assert attempt["allocated_nodes"] == ["n1", "n2", "n3", "n4"]


def test_a_fatal_node_event_is_an_independent_witness(service: Service) -> None:
    service.put_attempt()
    event = {"is_fatal": True, "error_code": ["79"], "check_name": "GpuXidError"}
    evidence_only = event | {"processing_strategy": "STORE_ONLY"}
    send(
        service,
        signal(1, attempt_id=None, node="n2", node_event=event),
        signal(2, attempt_id=None, node="n3", node_event=evidence_only),
    )
    accused = service.application.journal.state.past.accusations
    assert [(one.node, one.is_independent) for one in accused] == [("n2", True)]


# ------------------------------------------------------------------ log lines


def test_lines_find_their_attempt_by_id_or_by_job(service: Service) -> None:
    service.put_attempt("a-1", attempt_index=0)
    service.put_attempt("a-2", attempt_index=1)
    answer = service.send_lines(
        {"attempt_id": "a-1", "text": "one"},
        {"job_id": "4711", "text": "the newest"},
        {"SLURM_JOB_ID": 4711, "restart_count": 0, "text": "the first run"},
        {"slurm.job.id": "9", "text": "unknown"},
    ).json()
    assert (answer["accepted"], answer["held"], answer["rejected"]) == (3, 1, 0)
    counts = {one["id"]: one["log_lines"] for one in service.get("/v1/attempts").json()["items"]}
    assert counts == {"a-1": 2, "a-2": 1}


@pytest.mark.parametrize(
    "line",
    [
        {"text": "whose?"},
        {"attempt_id": "a-1"},
        {"attempt_id": "a-1", "text": 5},
        {"attempt_id": "a-1", "text": "x", "stream": "rumour"},
        {"attempt_id": "a-1", "text": "x", "stream": []},
        {"attempt_id": "a-1", "text": "x", "node": ["n1"]},
        {"attempt_id": "a-1", "text": "x", "file": {"a": 1}},
        {"attempt_id": "a-1", "text": "x", "number": 1.5},
        {"job_id": [4711], "text": "x"},
        {"attempt_id": "a-1", "text": "x", "rank": -1},
        {"attempt_id": "a-1", "text": "x", "rank": True},
        {"attempt_id": "a-1", "text": "x", "at": "2026-11-02T12:00:00"},
        {"attempt_id": "a-1", "text": "x" * 64_001},
        ["a", "list"],
    ],
)
def test_a_line_that_cannot_be_used_is_named_and_the_others_are_taken(service: Service, line: Any) -> None:
    service.put_attempt()
    answer = service.send_lines({"attempt_id": "a-1", "text": "good"}, line).json()
    assert (answer["accepted"], answer["rejected"], answer["errors"][0]["line"]) == (1, 1, 2)


def test_numbered_and_timed_lines_are_known_again_and_bare_ones_by_their_batch(service: Service) -> None:
    service.put_attempt()
    numbered = {"attempt_id": "a-1", "file": "f", "number": 1, "text": "x"}
    timed = {"attempt_id": "a-1", "file": "f", "at": START.isoformat(), "text": "y"}
    bare = {"attempt_id": "a-1", "file": "g", "text": "same words"}
    first = service.send_lines(numbered, timed, bare, bare).json()
    again = service.send_lines(numbered, timed, bare, bare).json()
    later = service.send_lines(timed, bare).json()
    assert (first["accepted"], first["duplicates"]) == (4, 0)
    assert (again["accepted"], again["duplicates"]) == (0, 4)
    assert (later["accepted"], later["duplicates"]) == (1, 1)


def test_equal_lines_of_one_moment_count_each_and_once(service: Service) -> None:
    service.put_attempt()
    same = {"attempt_id": "a-1", "file": "f", "at": START.isoformat(), "text": "loss is NaN"}
    batch: list[dict[str, Any]] = [same, same | {"rank": 0}, same | {"rank": 1}, same]
    assert service.send_lines(*batch).json()["accepted"] == 4
    for again in (batch, batch[:2], [*batch, {"attempt_id": "a-1", "text": "more"}]):
        service.send_lines(*again)
    assert service.get("/v1/attempts/a-1").json()["log_lines"] == 5


def test_a_batch_with_a_broken_line_counts_its_lines_as_they_stand(service: Service) -> None:
    service.put_attempt()
    body = b'{"attempt_id": "a-1", "text": "a"}\n\n{"broken\n{"attempt_id": "a-1", "text": "b"}, {}\n{"job_id": "4711", "text": "c"}'
    answer = service.post("/v1/logs/ndjson", content=body, headers=NDJSON).json()
    assert (answer["accepted"], answer["rejected"], [one["line"] for one in answer["errors"]]) == (2, 2, [3, 4])


def test_a_body_of_nothing_but_rubbish_is_400(service: Service) -> None:
    answer = service.post("/v1/logs/ndjson", content=b"not json\n{also not", headers=NDJSON)
    assert (answer.status_code, answer.json()["code"]) == (400, "malformed_body")


def test_gzip_is_taken_in_members_too_and_broken_gzip_is_400(service: Service) -> None:
    service.put_attempt()
    one, two = (gzip.compress(orjson.dumps({"attempt_id": "a-1", "text": t}) + b"\n") for t in "ab")
    headers = NDJSON | {"Content-Encoding": "gzip"}
    assert service.post("/v1/logs/ndjson", content=one + two, headers=headers).json()["accepted"] == 2
    for broken in (one[:-5], b"rubbish", one + b"tail"):
        answer = service.post("/v1/logs/ndjson", content=broken, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "malformed_body")


@pytest.mark.parametrize("encoding", ["zstd", "br", "deflate"])
def test_another_encoding_is_415(service: Service, encoding: str) -> None:
    answer = service.post("/v1/logs/ndjson", content=b"x", headers=NDJSON | {"Content-Encoding": encoding})
    assert answer.status_code == 415


def inflated(body: bytes, limit: int, ratio: int = 10_000) -> int:
    inflater = Inflater("gzip", limit, ratio)
    inflater.feed(body)
    return len(inflater.whole())


def test_the_limit_holds_after_decompression_to_the_byte() -> None:
    assert inflated(gzip.compress(b"x" * 3_000_000), limit=3_000_000) == 3_000_000
    with pytest.raises(Problem, match="body_too_large"):
        inflated(gzip.compress(b"x" * 3_000_001), limit=3_000_000)


def test_a_bomb_is_stopped_by_its_ratio_long_before_the_limit() -> None:
    with pytest.raises(Problem, match="200 times"):
        inflated(gzip.compress(b"\0" * 8_000_000), limit=1 << 30, ratio=200)


def test_overload_is_503_with_retry_after(rules: RuleStore, portal: Portal) -> None:
    settings = Settings(recommend=Recommend(), ingest=Ingest(max_inflight_bytes=10), server=Server())
    service = start(rules, portal, settings=settings)
    service.put_attempt()
    answer = service.send_lines({"attempt_id": "a-1", "text": "more than ten bytes"})
    assert (answer.status_code, answer.json()["code"]) == (503, "overloaded")
    assert answer.headers["retry-after"] == "5"


def test_lines_that_could_not_be_recorded_are_accepted_the_next_time(service: Service) -> None:
    service.put_attempt()
    line = {"attempt_id": "a-1", "file": "f", "number": 1, "text": "x"}
    service.audit.is_broken = True
    assert service.send_lines(line).status_code == 503
    service.audit.is_broken = False
    assert service.send_lines(line).json()["accepted"] == 1


def test_a_fatal_line_of_a_running_attempt_opens_an_incident_at_once(service: Service) -> None:
    service.put_attempt()
    line = {"attempt_id": "a-1", "file": "kern.log", "number": 1, "stream": "kernel", "node": "n2"}
    service.send_lines(line | {"text": XID_79, "at": START.isoformat()})
    (anomaly,) = service.get("/v1/anomalies").json()["items"]
    assert (anomaly["onset_at"], anomaly["evidence"]) == (
        "2026-11-02T12:00:00.000Z",
        [{"file": "kern.log", "line": 1}],
    )
    service.clock.advance(seconds=11)
    service.send_lines(line | {"number": 2, "text": XID_79})
    assert len(service.get("/v1/anomalies").json()["items"]) == 1


def test_what_a_log_says_is_shown_without_characters_that_drive_a_terminal(service: Service) -> None:
    service.put_attempt()
    service.send_lines(
        {"attempt_id": "a-1", "file": "k", "number": 1, "stream": "kernel", "node": "n2",
         "text": "\x1b[2J\u202e" + XID_79}
    )  # fmt: skip
    service.put_attempt(state="FAILED")
    advice = service.advise().json()
    for path in (f"/v1/incidents/{advice['incident_id']}/why", "/v1/attempts/a-1/timeline", "/v1/audit"):
        text = service.get(path).text
        assert "\\u001b" not in text and "\u202e" not in text, path
