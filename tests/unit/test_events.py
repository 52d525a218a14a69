# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Every event has one JSON form, and comes back from it unchanged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime, timedelta, timezone
from enum import StrEnum
from types import UnionType
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from relight.events import EVENT_TYPES, Event, ModeChanged, UnknownEvent, from_json, to_json
from relight.jsonform import MalformedJson, canonical_json
from relight.testing.audit import NOON, samples
from relight.types import LogRef, Mode, Rank

TEXT = st.text(st.characters(), max_size=8)
ZONES = st.sampled_from([UTC, timezone(timedelta(hours=5, minutes=45)), timezone(timedelta(hours=-8))])
MOMENTS = st.builds(
    lambda seconds, micros, zone: (NOON + timedelta(seconds=seconds, microseconds=micros)).astimezone(zone),
    st.integers(-(10**9), 10**9),
    st.integers(0, 999_999),
    ZONES,
)
PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(TEXT, PLAIN, max_size=3)

SIMPLE: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(),
    bool: st.booleans(),
    float: st.floats(allow_nan=False),
    datetime: MOMENTS,
    type(None): st.none(),
}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Anything that the annotation allows, nested kernel types included."""
    if isinstance(hint, NewType):
        return values(hint.__supertype__)
    origin, inside = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return st.one_of([values(one) for one in inside])
    if origin in (tuple, Sequence):
        return st.lists(values(inside[0]), max_size=2).map(tuple)
    if origin is Mapping:
        return OBJECTS
    if isinstance(hint, type) and is_dataclass(hint):
        hints = get_type_hints(hint)
        return st.builds(hint, **{one.name: values(hints[one.name]) for one in fields(hint)})
    return st.sampled_from(list(hint)) if issubclass(hint, StrEnum) else SIMPLE[hint]


@pytest.mark.parametrize("event_type", get_args(Event), ids=lambda one: one.kind)
def test_an_event_comes_back_from_its_json_unchanged(event_type: type[Event]) -> None:
    @settings(max_examples=25, deadline=None)
    @given(values(event_type))
    def check(event: Event) -> None:
        text = canonical_json(to_json(event))
        assert from_json(json.loads(text)) == event
        assert canonical_json(to_json(from_json(json.loads(text)))) == text
        assert text.isascii()

    check()


def test_kinds_are_a_noun_and_a_past_participle_and_belong_to_one_event_each() -> None:
    assert len(EVENT_TYPES) == len(get_args(Event))
    assert all(re.fullmatch(r"[a-z]+\.[a-z]+", kind) for kind in EVENT_TYPES)


def test_the_json_form_names_kind_and_schema() -> None:
    said = to_json(samples()[4])
    assert (said["kind"], said["schema"], said["at"]) == ("mode.changed", 1, "2026-11-02T12:02:00.123456Z")


def test_an_unknown_kind_is_refused_by_name() -> None:
    with pytest.raises(UnknownEvent, match=r"'moon\.landed'"):
        from_json({"kind": "moon.landed", "schema": 1})


@pytest.mark.parametrize("schema", [2, 99])
def test_a_newer_schema_is_refused_with_the_way_out(schema: int) -> None:
    with pytest.raises(UnknownEvent, match=f"schema {schema} is newer than the 1 known here; upgrade"):
        from_json({**to_json(samples()[0]), "schema": schema})


@pytest.mark.parametrize("schema", [0, None, "1", True])
def test_a_schema_that_is_no_positive_number_is_refused(schema: object) -> None:
    with pytest.raises(MalformedJson, match="schema"):
        from_json({**to_json(samples()[0]), "schema": schema})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"surprise": 1}, r"unknown fields \['surprise'\]"),
        ({"mode": "berserk"}, r"ModeChanged\.mode: 'berserk' is no Mode; choose from"),
        ({"at": "2026-11-02T12:00:00"}, r"ModeChanged\.at: need a time with a zone"),
        ({"at": "yesterday"}, r"ModeChanged\.at: need an RFC 3339 time, got 'yesterday'"),
        ({"actor": 5}, r"ModeChanged\.actor: need str, got int 5"),
    ],
)
def test_a_malformed_field_is_refused_by_name_and_value(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(MalformedJson, match=complaint):
        from_json({**to_json(samples()[4]), **change})


def test_a_missing_field_is_refused_unless_it_has_a_default() -> None:
    said = to_json(samples()[4])
    del said["previous"]
    assert from_json(said) == samples()[4]
    del said["mode"]
    with pytest.raises(MalformedJson, match="'mode' is missing"):
        from_json(said)


def test_a_naive_time_has_no_json_form() -> None:
    naive = ModeChanged(at=NOON.replace(tzinfo=None), scope="cluster", target="n", mode=Mode.ACT, actor="a", reason="r")
    with pytest.raises(MalformedJson, match="aware"):
        to_json(naive)


def test_a_nested_fault_is_named_with_its_place() -> None:
    said = to_json(samples()[1])
    said["anomaly"]["evidence"] = [{"file": "a", "line": 1}, {"file": "a", "line": "two"}]
    with pytest.raises(MalformedJson, match=r"AnomalyDetected\.anomaly: Anomaly\.evidence: \[1\]: LogRef\.line"):
        from_json(said)


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"b": 1, "a": [Rank(1), None]}) == canonical_json({"a": [1, None], "b": 1})
    with pytest.raises(ValueError, match="JSON"):
        canonical_json(float("nan"))


def test_a_kernel_type_inside_free_detail_is_encoded_as_an_object() -> None:
    started = samples()[0]
    object.__setattr__(started, "loaded", {"where": LogRef(file="f", line=1)})
    assert to_json(started)["loaded"] == {"where": {"file": "f", "line": 1}}
