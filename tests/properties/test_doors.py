# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whatever a sender writes, a door reads it or says that it can't: nothing else may happen."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
from google.protobuf.message import Message
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from relight.events import AttemptObserved
from relight.testing.audit import MemoryAuditLog
from relight.types import AttemptId, AttemptState, ClusterId, NodeName, Stream, WorkloadId
from service.allocations import SLACK, Allocations
from service.doors import alertmanager, loki, nvsentinel, otlp_json, otlp_protobuf
from service.doors.labels import whose
from service.doors.records import BadBody, Record
from service.journal import Journal
from service.replay import EventClock

START = datetime(2026, 11, 2, tzinfo=UTC)
SCALARS = st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(max_size=20)
NAMES = ["resourceLogs", "resource", "scopeLogs", "logRecords", "attributes", "key", "value", "body", "timeUnixNano",
         "stringValue", "intValue", "arrayValue", "kvlistValue", "bytesValue", "doubleValue", "boolValue", "values",
         "streams", "stream", "healthEvent", "data", "nodeName", "errorCode", "specversion", "id", "source"]  # fmt: skip
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=5),
    max_leaves=30,
)  # fmt: skip


def wrapped(record: Any) -> bytes:
    return orjson.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}, option=orjson.OPT_NON_STR_KEYS)


def consumed(read: Any, body: bytes) -> None:
    try:
        for one in read(body):
            if isinstance(one, Record):
                assert isinstance(one.text, str)
                assert one.at is None or one.at.tzinfo is UTC
    except BadBody as why:
        assert str(why)


@given(JSON)
@settings(max_examples=300, deadline=None)
def test_any_json_is_read_or_refused_by_every_door(said: Any) -> None:
    try:
        body = orjson.dumps(said)
    except orjson.JSONEncodeError:  # half a character, or a number beyond 64 bits
        return
    for read in (otlp_json.read_json_logs, loki.read_json, lambda one: iter(nvsentinel.read_events(one, START))):
        consumed(read, body)
    try:
        consumed(otlp_json.read_json_logs, wrapped(said))
        consumed(otlp_json.read_json_logs, wrapped({"body": said, "attributes": [{"key": "rank", "value": said}]}))
    except orjson.JSONEncodeError:
        return


@given(st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_read_or_refused_by_every_door(body: bytes) -> None:
    for read in (otlp_protobuf.read_protobuf_logs, loki.read_protobuf, otlp_json.read_json_logs, loki.read_json):
        consumed(read, body)


VALUES: st.SearchStrategy[tuple[str, Any]] = st.one_of(
    st.tuples(st.just("string_value"), st.text(max_size=30)),
    st.tuples(st.just("bool_value"), st.booleans()),
    st.tuples(st.just("int_value"), st.integers(-(2**63), 2**63 - 1)),
    st.tuples(st.just("double_value"), st.floats(allow_nan=False, allow_infinity=False)),
)


@given(st.lists(st.tuples(st.text(min_size=1, max_size=10), VALUES), max_size=5, unique_by=lambda one: one[0]),
       VALUES, st.integers(0, 2**62))  # fmt: skip
@settings(max_examples=200, deadline=None)
def test_both_encodings_of_one_record_say_the_same(attributes: Any, body: tuple[str, Any], nanos: int) -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.time_unix_nano = nanos
    setattr(record.body, *body)
    for key, (kind, value) in attributes:
        pair = record.attributes.add()
        pair.key = key
        setattr(pair.value, kind, value)
    spelled = {
        "timeUnixNano": str(nanos), "body": spelled_value(*body),
        "attributes": [{"key": key, "value": spelled_value(*value)} for key, value in attributes],
    }  # fmt: skip
    (ours,) = otlp_json.read_json_logs(wrapped(spelled))
    (theirs,) = otlp_protobuf.read_protobuf_logs(serialized(request))
    assert ours == theirs


def serialized(message: Message) -> bytes:
    return message.SerializeToString()


def spelled_value(kind: str, value: Any) -> dict[str, Any]:
    head, tail = kind.split("_")
    return {head + tail.title(): str(value) if kind == "int_value" else value}


@given(st.dictionaries(st.text(max_size=8), st.text(max_size=12), max_size=6))
def test_what_a_program_sends_for_itself_is_never_the_kernels(labels: dict[str, str]) -> None:
    for own in ({"telemetry_sdk_language": "python"}, {"slurm_job_id": "1"}):
        said = {**labels, **own, "transport": "kernel", "appname": "kernel", "filename": "/tmp/kern.log"}
        try:
            assert whose(Record("x", said)).stream is not Stream.KERNEL or labels.get("stream") == "kernel"
        except ValueError:
            continue


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 20) | st.none()), min_size=1, max_size=6),
    st.integers(-5, 50),
)
@settings(deadline=None)
def test_who_held_a_node_is_who_held_it_then(spans: list[tuple[int, int | None]], asked: int) -> None:
    """Minutes; against the plain definition, whatever the number of attempts and their order."""
    clock = EventClock(START)
    journal = Journal(MemoryAuditLog(), clock)
    index = Allocations(journal)
    for number, (begin, lasts) in enumerate(spans):
        for state, minute in ((AttemptState.RUNNING, begin), (AttemptState.FAILED, begin + (lasts or 0))):
            if state is AttemptState.RUNNING or lasts is not None:
                journal.record(seen(f"a-{number}", state, START + timedelta(minutes=minute), begin))
    at = START + timedelta(minutes=asked)
    found = {one.id for one in index.holders(ClusterId("c"), "n1.lab", at)}
    exact = {f"a-{n}" for n, (b, d) in enumerate(spans) if b <= asked and (d is None or asked <= b + d)}
    if exact:
        assert found == exact
    else:
        assert len(found) <= 1
        near = [min(abs(b - asked), abs(b + (d or 0) - asked)) for b, d in spans]
        assert bool(found) == (timedelta(minutes=min(near)) <= SLACK)
    assert index.holders(ClusterId("other"), "n1", at) == ()


def seen(name: str, state: AttemptState, at: datetime, begin: int) -> AttemptObserved:
    started = (START + timedelta(minutes=begin)).isoformat()
    return AttemptObserved(
        at=at, attempt=AttemptId(name), workload=WorkloadId(name), cluster=ClusterId("c"), state=state,
        nodes=(NodeName("n1"),), detail={"observed_at": at.isoformat(), "started_at": started},
    )  # fmt: skip


@given(st.dictionaries(st.text(max_size=10), st.text(max_size=10), max_size=5), st.text(max_size=30))
def test_an_alert_accuses_nobody_unless_its_rule_says_so(labels: dict[str, str], words: str) -> None:
    labels = {name: value for name, value in labels.items() if "fatal" not in name.lower()} | {"node": "n1"}
    said = alertmanager.Webhook(
        alerts=[alertmanager.Alert(labels=labels, annotations={"summary": words}, startsAt=START)]
    )
    try:
        found = list(alertmanager.findings(said, lambda *_: None))
    except ValueError:
        return
    assert not any(one.is_fatal for one in found)
