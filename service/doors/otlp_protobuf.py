# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""OTLP/HTTP logs in protobuf, and the two answers that their senders understand."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse

from service.doors.otlp_json import MAX_DEPTH
from service.doors.records import BadBody, Item, Unreadable, moment_of, named_labels, record_of, trace_of


def read_protobuf_logs(body: bytes) -> Iterator[Item]:
    """Every log record of an `ExportLogsServiceRequest`. Errors: BadBody if it is not one."""
    said = ExportLogsServiceRequest()
    try:
        said.ParseFromString(body)
    except DecodeError as why:
        raise BadBody(f"not an ExportLogsServiceRequest: {why}") from why
    for resource_logs in said.resource_logs:
        resource = named_labels(dict(_pairs(resource_logs.resource.attributes, 0)))
        for scope_logs in resource_logs.scope_logs:
            for raw in scope_logs.log_records:
                yield _record(raw, resource)


def _record(raw: Any, resource: Mapping[str, str]) -> Item:
    try:
        own = dict(_pairs(raw.attributes, 0))
        at = moment_of(raw.time_unix_nano) or moment_of(raw.observed_time_unix_nano)
        return record_of(_value(raw.body, 0), {**resource, **named_labels(own)}, at, trace_of(own))
    except ValueError as why:
        return Unreadable(str(why))


def _pairs(pairs: Iterable[Any], depth: int) -> Iterator[tuple[str, Any]]:
    for pair in pairs:
        yield pair.key, _value(pair.value, depth)


def _value(said: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise ValueError(f"values are nested deeper than {MAX_DEPTH}")
    match said.WhichOneof("value"):
        case None:
            return None
        case "array_value":
            return [_value(one, depth + 1) for one in said.array_value.values]
        case "kvlist_value":
            return dict(_pairs(said.kvlist_value.values, depth + 1))
        case "bytes_value":
            return said.bytes_value.decode("utf-8", "replace")
        case kind:
            return getattr(said, kind)


def success(rejected: int, reason: str) -> bytes:
    """An `ExportLogsServiceResponse`: empty if everything was taken."""
    answer = ExportLogsServiceResponse()
    if rejected or reason:
        answer.partial_success.rejected_log_records = rejected
        answer.partial_success.error_message = reason
    return answer.SerializeToString()


def status(code: int, message: str) -> bytes:
    """A `google.rpc.Status` with code and message, which are its fields 1 and 2."""
    words = message.encode("utf-8", "replace")
    return b"\x08" + _varint(code) + b"\x12" + _varint(len(words)) + words


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
