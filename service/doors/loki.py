# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Loki's push request, as JSON and as the snappy-compressed protobuf that Promtail and Alloy send."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from service.doors.records import BadBody, Item, Record, Unreadable, moment_of, named_labels, normal_name

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_.]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", "t": "\t", "r": "\r"}
_NANOS = 1_000_000_000


def read_json(body: bytes) -> Iterator[Item]:
    """Every entry of `{"streams": [{"stream": {…}, "values": [[nanoseconds, line], …]}]}`.

    Errors: BadBody if it is not of that form.
    """
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as why:
        raise BadBody(f"not JSON: {why}") from why
    streams = said.get("streams") if isinstance(said, dict) else None
    if not isinstance(streams, list):
        raise BadBody("need an object with a list of streams")
    for stream in streams:
        if not isinstance(stream, dict):
            raise BadBody(f"a stream must be an object, got {type(stream).__name__}")
        yield from _of_stream(stream)


def _of_stream(stream: Mapping[str, Any]) -> Iterator[Item]:
    labels, values = stream.get("stream", {}), stream.get("values", [])
    if not isinstance(labels, dict) or not isinstance(values, list):
        raise BadBody("a stream needs an object `stream` and a list `values`")
    named = named_labels(labels)
    for value in values:
        yield _entry(value, named)


def _entry(value: Any, labels: Mapping[str, str]) -> Item:
    if not isinstance(value, list) or len(value) < 2 or not isinstance(value[1], str):
        return Unreadable("an entry must be [nanoseconds, line] or [nanoseconds, line, metadata]")
    try:
        at = moment_of(int(value[0]))
    except (TypeError, ValueError, OverflowError):
        return Unreadable(f"time {str(value[0])[:40]!r} is not in nanoseconds since 1970")
    more = named_labels(value[2]) if len(value) > 2 and isinstance(value[2], dict) else {}
    return Record(value[1], {**labels, **more}, at)


def read_protobuf(body: bytes) -> Iterator[Item]:
    """Every entry of a `logproto.PushRequest`, already decompressed. Errors: BadBody if it is not one."""
    said = _PushRequest()
    try:
        said.ParseFromString(body)
    except DecodeError as why:
        raise BadBody(f"not a logproto.PushRequest: {why}") from why
    for stream in said.streams:
        labels = read_labels(stream.labels)
        for entry in stream.entries:
            more = {normal_name(pair.name): pair.value for pair in entry.structured_metadata}
            try:
                at = moment_of(entry.timestamp.seconds * _NANOS + entry.timestamp.nanos)
            except ValueError as why:
                yield Unreadable(str(why))
                continue
            yield Record(entry.line, {**labels, **more}, at)


def read_labels(text: str) -> dict[str, str]:
    """`{job="train", rank="1"}` as a mapping. Errors: BadBody if it is not of that form."""
    inner = text.strip()
    if not (inner.startswith("{") and inner.endswith("}")):
        raise BadBody(f"labels must be in braces, got {text[:80]!r}")
    inner, labels, place = inner[1:-1], dict[str, str](), 0
    while place < len(inner):
        found = _LABEL.match(inner, place)
        if found is None:
            raise BadBody(f"can't read labels at {inner[place : place + 40]!r}")
        labels[normal_name(found[1])] = _ESCAPE.sub(lambda one: _ESCAPED.get(one[1], one[1]), found[2])
        place = found.end()
        if place < len(inner):
            if inner[place] != ",":
                raise BadBody(f"labels are separated by commas, got {inner[place : place + 40]!r}")
            place += 1
    return labels


def _push_request() -> Any:
    """The message type, described here since Loki publishes no Python package; numbers are those of push.proto."""
    kinds = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(name="relight/loki_push.proto", package="relight.loki", syntax="proto3")

    def message(name: str, *fields: tuple[str, int, int, str]) -> None:
        made = file.message_type.add(name=name)
        for field, number, kind, of in fields:
            is_list = field in {"streams", "entries", "structured_metadata"}
            made.field.add(
                name=field, number=number, type=kind,
                type_name=f".relight.loki.{of}" if of else None,
                label=kinds.LABEL_REPEATED if is_list else kinds.LABEL_OPTIONAL,
            )  # fmt: skip

    text, nested = kinds.TYPE_STRING, kinds.TYPE_MESSAGE
    message("Timestamp", ("seconds", 1, kinds.TYPE_INT64, ""), ("nanos", 2, kinds.TYPE_INT32, ""))
    message("LabelPair", ("name", 1, text, ""), ("value", 2, text, ""))
    message("Entry", ("timestamp", 1, nested, "Timestamp"), ("line", 2, text, ""),
            ("structured_metadata", 3, nested, "LabelPair"))  # fmt: skip
    message("Stream", ("labels", 1, text, ""), ("entries", 2, nested, "Entry"))
    message("PushRequest", ("streams", 1, nested, "Stream"))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("relight.loki.PushRequest"))


_PushRequest = _push_request()
