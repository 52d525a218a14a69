# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Loki's push door: JSON, and the snappy-compressed protobuf of Promtail and Alloy."""

from __future__ import annotations

import gzip
from typing import Any

import cramjam
import orjson
import pytest

from service.doors.loki import read_labels
from service.doors.records import BadBody
from tests.api.otlp_bodies import JSON, PROTOBUF, lines_of, nanos, push, snappy_push
from tests.api.running import START, XID_79, Service

PATH = "/loki/api/v1/push"


@pytest.fixture
def known(service: Service) -> Service:
    service.put_attempt(started_at=START.isoformat())
    return service


def send(service: Service, said: Any, **headers: str) -> Any:
    return service.post(PATH, content=orjson.dumps(said), headers=JSON | headers)


def test_lines_find_their_attempt_by_label_or_by_metadata(known: Service) -> None:
    said = push({"job": "train", "slurm_job_id": "4711", "rank": "1"}, [str(nanos()), "one\ntwo"])
    assert send(known, said).status_code == 204
    said = push({"app": "train"}, [str(nanos()), "three", {"slurm.job.id": "4711"}])
    assert send(known, said).status_code == 204
    assert lines_of(known) == 3


def test_protobuf_in_snappy_is_read_with_labels_and_metadata(known: Service) -> None:
    body = snappy_push('{filename="/out/rank0.log", slurm_job_id="4711", note="a \\"b\\", c"}', "one", "two")
    assert known.post(PATH, content=body, headers=PROTOBUF).status_code == 204
    body = snappy_push('{app="train"}', "three", job_id="4711")
    assert known.post(PATH, content=body, headers=PROTOBUF).status_code == 204
    assert lines_of(known) == 3


def test_a_machines_journal_finds_the_attempts_on_it(known: Service) -> None:
    said = push({"transport": "kernel", "nodename": "n2"}, [str(nanos()), XID_79])
    assert send(known, said).status_code == 204
    known.put_attempt(state="FAILED")
    assert [one["node"] for one in known.advise().json()["exclusions"]] == ["n2"]


def test_the_same_push_again_is_a_repetition(known: Service) -> None:
    said = push({"job_id": "4711"}, [str(nanos()), "same"], [str(nanos()), "same"])
    assert [send(known, said).status_code for _ in range(2)] == [204, 204]
    assert lines_of(known) == 2


def test_a_push_of_which_something_is_usable_is_taken_and_one_of_nothing_is_400(known: Service) -> None:
    mixed = push({"job_id": "4711"}, [str(nanos()), "good"], ["yesterday", "bad"], ["1"], 5)
    assert send(known, mixed).status_code == 204
    answer = send(known, push({"app": "x"}, [str(nanos()), "x"]))
    assert answer.status_code == 400 and "no label names a job" in answer.json()["detail"]
    assert send(known, push({"job_id": "9"}, [str(nanos()), "x"])).status_code == 204, "held"
    assert send(known, {"streams": []}).status_code == 204


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"streams": {}}', b'{"streams": [1]}', b'{"streams":[{"stream":1}]}'])
def test_a_body_that_is_no_push_is_400(known: Service, body: bytes) -> None:
    assert known.post(PATH, content=body, headers=JSON).status_code == 400


@pytest.mark.parametrize("labels", ["", "job=train", '{job="a" rank="1"}', "{job=a}", '{job="a}'])
def test_labels_that_cannot_be_read_are_400(known: Service, labels: str) -> None:
    with pytest.raises(BadBody):
        read_labels(labels)
    assert known.post(PATH, content=snappy_push(labels, "x"), headers=PROTOBUF).status_code == 400


def test_labels_hold_escapes_commas_and_braces() -> None:
    assert read_labels(r'{a="x\"y\\z\n", b.c="{1, 2}" , D=""}') == {"a": 'x"y\\z\n', "b_c": "{1, 2}", "d": ""}
    assert read_labels("{}") == {}


def test_broken_snappy_is_400_and_a_bomb_413(known: Service) -> None:
    good = snappy_push('{job_id="4711"}', "x" * 1_000)
    for broken in (b"", good[:-4], b"\xff" * 20, b"\x05rubbish"):
        assert known.post(PATH, content=broken, headers=PROTOBUF).status_code == 400
    bomb = bytes(cramjam.snappy.compress_raw(b"\0" * (17 << 20)))
    lie = b"\xff\xff\xff\xff\x0f" + b"x" * 10
    for body in (bomb, lie):
        assert known.post(PATH, content=body, headers=PROTOBUF).status_code == 413


def test_json_may_come_in_gzip(known: Service) -> None:
    packed = gzip.compress(orjson.dumps(push({"job_id": "4711"}, [str(nanos()), "x"])))
    assert known.post(PATH, content=packed, headers=JSON | {"Content-Encoding": "gzip"}).status_code == 204
    assert lines_of(known) == 1
