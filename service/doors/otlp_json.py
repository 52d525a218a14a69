# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""OTLP/HTTP logs in JSON: hex ids, enums as integers, 64-bit integers as strings, unknown fields ignored."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from service.doors.records import BadBody, Item, Unreadable, moment_of, named_labels, record_of, trace_of

MAX_DEPTH = 32


def read_json_logs(body: bytes) -> Iterator[Item]:
    """Every log record of an `ExportLogsServiceRequest`. Errors: BadBody if it is not one."""
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as why:
        raise BadBody(f"not JSON: {why}") from why
    if not isinstance(said, dict):
        raise BadBody(f"need an object with resourceLogs, got {type(said).__name__}")
    for resource_logs in _objects(said, "resourceLogs"):
        resource = _labels(_object(resource_logs, "resource"))
        for scope_logs in _objects(resource_logs, "scopeLogs"):
            for raw in _list(scope_logs, "logRecords"):
                yield _record(raw, resource)


def _record(raw: Any, resource: Mapping[str, str]) -> Item:
    if not isinstance(raw, dict):
        return Unreadable(f"a log record must be an object, got {type(raw).__name__}")
    try:
        own = dict(_attributes(raw))
        at = moment_of(_integer(raw.get("timeUnixNano"))) or moment_of(_integer(raw.get("observedTimeUnixNano")))
        return record_of(_value(raw.get("body"), 0), {**resource, **named_labels(own)}, at, trace_of(own))
    except (ValueError, BadBody) as why:
        return Unreadable(str(why))


def _labels(owner: Mapping[str, Any]) -> dict[str, str]:
    try:
        return named_labels(dict(_attributes(owner)))
    except ValueError as why:
        raise BadBody(f"resource attributes: {why}") from why


def _attributes(owner: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for pair in _list(owner, "attributes"):
        if isinstance(pair, dict) and isinstance(key := pair.get("key"), str):
            yield key, _value(pair.get("value"), 0)


def _value(said: Any, depth: int) -> Any:
    """An AnyValue as a Python value; one that says nothing is None."""
    if said is None:
        return None
    if not isinstance(said, dict):
        raise ValueError(f"a value must be an object such as {{'stringValue': …}}, got {type(said).__name__}")
    if depth > MAX_DEPTH:
        raise ValueError(f"values are nested deeper than {MAX_DEPTH}")
    for kind, found in said.items():
        if found is not None and kind in _KINDS:
            return _KINDS[kind](found, depth)
    return None


def _string(said: Any, _: int) -> str:
    if not isinstance(said, str):
        raise ValueError(f"stringValue must be text, got {type(said).__name__}")
    return said


def _boolean(said: Any, _: int) -> bool:
    if not isinstance(said, bool):
        raise ValueError(f"boolValue must be true or false, got {said!r}")
    return said


def _double(said: Any, _: int) -> float:
    if isinstance(said, bool) or not isinstance(said, int | float | str):
        raise ValueError(f"doubleValue must be a number, got {said!r}")
    return float(said)  # "NaN" and "Infinity" are spelled as text


def _bytes(said: Any, _: int) -> str:
    try:
        return base64.b64decode(said, validate=True).decode("utf-8", "replace")
    except (binascii.Error, TypeError, ValueError) as why:
        raise ValueError(f"bytesValue must be base64: {why}") from why


def _array(said: Any, depth: int) -> list[Any]:
    return [_value(one, depth + 1) for one in _list(said, "values")]


def _mapping(said: Any, depth: int) -> dict[str, Any]:
    return {
        pair["key"]: _value(pair.get("value"), depth + 1)
        for pair in _list(said, "values")
        if isinstance(pair, dict) and isinstance(pair.get("key"), str)
    }


_KINDS = {
    "stringValue": _string,
    "boolValue": _boolean,
    "intValue": lambda said, _: _integer(said),
    "doubleValue": _double,
    "arrayValue": _array,
    "kvlistValue": _mapping,
    "bytesValue": _bytes,
}


def _integer(said: Any) -> int:
    match said:
        case None:
            return 0
        case bool():
            raise ValueError("need a whole number, got a boolean")
        case int():
            return said
        case str() if len(said) <= 20 and said.removeprefix("-").isascii() and said.removeprefix("-").isdigit():
            return int(said)
        case _:
            raise ValueError(f"need a whole number, as such or as text, got {str(said)[:40]!r}")


def _objects(owner: Mapping[str, Any], key: str) -> Iterator[dict[str, Any]]:
    for one in _list(owner, key):
        if not isinstance(one, dict):
            raise BadBody(f"{key} must hold objects, got {type(one).__name__}")
        yield one


def _object(owner: Mapping[str, Any], key: str) -> dict[str, Any]:
    found = owner.get(key)
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise BadBody(f"{key} must be an object, got {type(found).__name__}")
    return found


def _list(owner: Any, key: str) -> list[Any]:
    found = owner.get(key) if isinstance(owner, dict) else None
    if found is None:
        return []
    if not isinstance(found, list):
        raise BadBody(f"{key} must be a list, got {type(found).__name__}")
    return found
