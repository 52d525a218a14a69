# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Strict YAML: what YAML would silently turn into something else is refused, with its place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rules.source import MAX_BYTES, read_source


@pytest.mark.parametrize(
    "scalar",
    ["NO", "no", "yes", "On", "off", "y", "N", "1:30", "12:30:45", "012", "0x1F", "0b11", "0o17", "1_000",
     "2026-01-02", "~", "null", "Null", "", ".inf", "-.INF", ".nan"],
)  # fmt: skip
def test_an_unquoted_scalar_that_yaml_would_turn_into_something_else_is_refused(scalar: str) -> None:
    source = read_source("a.yaml", f"key: {scalar}\n")
    (problem,) = source.problems
    assert problem.what.startswith(f"unquoted {scalar!r}: YAML reads it as")
    assert problem.fix == f"write '{scalar}'"


@pytest.mark.parametrize("scalar", ["NO", "1:30", "012", "2026-01-02", "null", ".nan"])
@pytest.mark.parametrize("quote", ["'", '"'])
def test_the_same_scalar_in_quotes_is_text(scalar: str, quote: str) -> None:
    source = read_source("a.yaml", f"key: {quote}{scalar}{quote}\n")
    assert source.problems == []
    assert source.value == {"key": scalar}


@pytest.mark.parametrize(
    ("text", "value"),
    [("true", True), ("false", False), ("7", 7), ("-7", -7), ("0", 0), ("1.5", 1.5), ("1.5.2", "1.5.2"),
     ("1e5", "1e5"), ("nccl.x", "nccl.x"), ("5s", "5s")],
)  # fmt: skip
def test_plain_scalars_mean_what_they_look_like(text: str, value: object) -> None:
    source = read_source("a.yaml", f"key: {text}\n")
    assert source.problems == []
    assert source.value == {"key": value}


def test_a_key_that_stands_twice_is_refused_at_its_second_place() -> None:
    (problem,) = read_source("a.yaml", "a: 1\nb: 2\na: 3\n").problems
    assert (problem.line, problem.column, problem.what) == (3, 1, "key 'a' stands twice")


def test_aliases_are_refused_before_they_can_fan_out() -> None:
    bomb = "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"
    (problem,) = read_source("a.yaml", bomb).problems
    assert (problem.line, problem.what) == (1, "anchors and aliases are refused")


@pytest.mark.parametrize("text", ["a: &x 1\n", "a: *x\n", "a: {<<: *x}\n"])
def test_an_anchor_alone_is_refused_too(text: str) -> None:
    source = read_source("a.yaml", text)
    assert source.value is None
    assert len(source.problems) == 1


def test_a_backslash_in_double_quotes_is_told_to_use_single_ones() -> None:
    (problem,) = read_source("a.yaml", 'a: 1\nregex: "Xid \\d+"\n').problems
    assert problem.line == 2
    assert "single quotes" in problem.fix


def test_wrong_indentation_names_line_and_a_way_out() -> None:
    (problem,) = read_source("a.yaml", "a: 1\n  b: 2\n").problems
    assert problem.line == 2
    assert "indentation" in problem.fix


@pytest.mark.parametrize("text", ["", "# only a comment\n", "---\n"])
def test_an_empty_file_is_a_problem_and_not_an_empty_rule(text: str) -> None:
    assert read_source("a.yaml", text).problems


def test_a_huge_file_is_refused_unread() -> None:
    (problem,) = read_source("a.yaml", "a: " + "x" * MAX_BYTES).problems
    assert "larger than" in problem.what


def test_python_tags_are_not_executed() -> None:
    source = read_source("a.yaml", "a: !!python/object/apply:os.system ['true']\n")
    assert source.value in ({"a": ["true"]}, None)


def test_places_count_from_one_and_fall_back_to_the_nearest_parent() -> None:
    source = read_source("a.yaml", "a:\n  b:\n    - c: x\n")
    assert source.place(("a", "b", 0, "c")) == (3, 10)
    assert source.place(("a", "b", 0, "missing")) == (3, 7)
    assert source.place(("missing",)) == (1, 1)


@given(st.text(max_size=200))
def test_any_text_gives_a_value_or_a_problem_and_never_an_error(text: str) -> None:
    source = read_source("a.yaml", text)
    assert source.value is not None or source.problems
