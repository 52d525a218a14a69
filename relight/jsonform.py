# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Turn kernel dataclasses into plain JSON values and back, guided by their annotations."""

from __future__ import annotations

import json
import math
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache
from typing import Any, NewType, TypeVar

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
JsonObject = Mapping[str, Any]
T = TypeVar("T")

_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
_AS_IT_IS = frozenset({str, int, bool, type(None)})
_NON_FINITE = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


class MalformedJson(ValueError):
    """A JSON value that does not have the form its type asks for."""


def canonical_json(value: object) -> str:
    """The one spelling of a JSON value that hashes are taken over.

    Sorted keys, no spaces, ASCII only: text from a job's log may hold lone surrogates, which have no
    UTF-8 form but do have an escape. NaN and infinities are refused, as no two readers agree on them.
    """
    return _CANONICAL.encode(value)


def timestamp(at: datetime) -> str:
    """RFC 3339 in UTC with microseconds; a naive datetime raises MalformedJson."""
    if at.tzinfo is None:
        raise MalformedJson(f"need an aware datetime, got {at.isoformat()} without a zone; add tzinfo=UTC")
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def encode(value: object) -> Any:
    """Plain JSON for a dataclass, enum, datetime or any JSON-friendly value; shares nothing mutable."""
    kind: Any = type(value)
    if kind in _AS_IT_IS:
        return value
    match value:
        case float():
            return value if math.isfinite(value) else str(value)
        case datetime():
            return timestamp(value)
        case StrEnum():
            return value.value
        case int() | str():
            return value
        case Mapping():
            return {_key(name): encode(item) for name, item in value.items()}
        case list() | tuple():
            return [encode(item) for item in value]
    if is_dataclass(kind):
        return {name: encode(getattr(value, name)) for name in _names_of(kind)}
    raise MalformedJson(f"no JSON form for {kind.__name__} {value!r}; use JSON values or kernel types")


def _names_of(kind: Any) -> tuple[str, ...]:
    return _names(kind)


@cache
def _names(dataclass_type: Any) -> tuple[str, ...]:
    return tuple(part.name for part in fields(dataclass_type))


def decode(wanted: type[T], value: object) -> T:
    """An instance of the dataclass `wanted`; unknown, missing or ill-typed fields raise MalformedJson."""
    if not isinstance(value, Mapping):
        raise MalformedJson(f"{wanted.__name__}: need an object, got {type(value).__name__}")
    forms = _forms(wanted)
    if unknown := sorted(set(value) - set(forms)):
        raise MalformedJson(f"{wanted.__name__}: unknown fields {unknown}; known are {sorted(forms)}")
    made: dict[str, Any] = {}
    for name, (form, is_required) in forms.items():
        if name in value:
            made[name] = _at(f"{wanted.__name__}.{name}", form, value[name])
        elif is_required:
            raise MalformedJson(f"{wanted.__name__}: field {name!r} is missing")
    return wanted(**made)


def _key(name: object) -> str:
    if not isinstance(name, str):
        raise MalformedJson(f"need text as an object's key, got {name!r}")
    return name


def _at(place: str, form: Callable[[Any], Any], value: object) -> Any:
    try:
        return form(value)
    except MalformedJson as why:
        raise MalformedJson(f"{place}: {why}") from why


def _forms(wanted: Any) -> Mapping[str, tuple[Callable[[Any], Any], bool]]:
    return _forms_of(wanted)


@cache
def _forms_of(dataclass_type: Any) -> dict[str, tuple[Callable[[Any], Any], bool]]:
    hints = typing.get_type_hints(dataclass_type)
    return {
        part.name: (_form(hints[part.name]), part.default is MISSING and part.default_factory is MISSING)
        for part in fields(dataclass_type)
    }


def _form(hint: Any) -> Callable[[Any], Any]:
    """The function that turns a JSON value into what the annotation `hint` promises."""
    if isinstance(hint, NewType):
        return _form(hint.__supertype__)
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(inside)
    if origin is tuple:
        return _fixed(inside) if Ellipsis not in inside else _many(inside[0])
    if origin is not None and issubclass(origin, Mapping):
        return _mapping
    if origin is not None and issubclass(origin, Sequence):
        return _many(inside[0])
    return _plain(hint)


def _plain(hint: Any) -> Callable[[Any], Any]:
    if hint is datetime:
        return _moment
    if hint is float:
        return _number
    if issubclass(hint, StrEnum):
        return lambda value: _member(hint, value)
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: decode(hint, value)
    return lambda value: _exactly(hint, value)


def _union(inside: Sequence[Any]) -> Callable[[Any], Any]:
    forms = [_form(one) for one in inside if one is not types.NoneType]

    def read(value: Any) -> Any:
        if value is None and types.NoneType in inside:
            return None
        problems = []
        for form in forms:
            try:
                return form(value)
            except MalformedJson as why:
                problems.append(str(why))
        raise MalformedJson("; ".join(problems))

    return read


def _many(item: Any) -> Callable[[Any], Any]:
    form = _form(item)

    def read(value: Any) -> tuple[Any, ...]:
        return tuple(_at(f"[{index}]", form, one) for index, one in enumerate(_listed(value)))

    return read


def _fixed(items: Sequence[Any]) -> Callable[[Any], Any]:
    forms = [_form(item) for item in items]

    def read(value: Any) -> tuple[Any, ...]:
        listed = _listed(value)
        if len(listed) != len(forms):
            raise MalformedJson(f"need {len(forms)} values, got {len(listed)}")
        return tuple(form(one) for form, one in zip(forms, listed, strict=True))

    return read


def _listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, list | tuple):
        raise MalformedJson(f"need a list, got {type(value).__name__}")
    return value


def _mapping(value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise MalformedJson(f"need an object, got {type(value).__name__}")
    return dict(value)


def _moment(value: Any) -> datetime:
    try:
        at = datetime.fromisoformat(_exactly(str, value))
    except ValueError as why:
        raise MalformedJson(f"need an RFC 3339 time, got {value!r}") from why
    if at.tzinfo is None:
        raise MalformedJson(f"need a time with a zone, got {value!r}; append Z if it is UTC")
    return at.astimezone(UTC)


def _number(value: Any) -> float:
    if isinstance(value, str) and value in _NON_FINITE:
        return _NON_FINITE[value]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise MalformedJson(f"need a number, got {value!r}")
    return float(value)


def _member(enum: type[StrEnum], value: Any) -> StrEnum:
    try:
        return enum(value)
    except ValueError as why:
        raise MalformedJson(f"{value!r} is no {enum.__name__}; choose from {[str(one) for one in enum]}") from why


def _exactly(kind: type[T], value: Any) -> T:
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise MalformedJson(f"need {kind.__name__}, got {type(value).__name__} {value!r}")
    return value
