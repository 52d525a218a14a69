# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Matching: streams, captures, table rows, benign silence, supersedes, and any bytes as a line."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relight.types import Role, Severity, Stream
from rules.match import MAX_LINE_BYTES, RuleSet
from rules.schema import Signature


def signature(name: str, *patterns: str, unless: tuple[str, ...] = (), **fields: Any) -> Signature:
    return Signature.model_validate(
        {
            "id": f"demo.{name}",
            "title": f"Title of {name}",
            "failure": name,
            "role": "root",
            "streams": ["application"],
            "source": ["here"],
            "does_not_prove": "more than it says",
            "match": {"any": [{"regex": p} for p in patterns], "unless": [{"text": u} for u in unless]},
            "tests": {"fires": [{"line": "x"}], "silent": [{"line": "y"}]},
            **fields,
        }
    )


def names(rules: RuleSet, line: bytes, stream: Stream = Stream.APPLICATION) -> list[str]:
    return [hit.name for hit in rules.match_line(line, stream)]


LOST = signature("lost", r"GPU (?P<gpu_index>\d+) of (?P<node>[\w-]+) is lost", unless=("simulated",))


def test_a_match_carries_typed_captures_and_the_span_in_bytes() -> None:
    (hit,) = RuleSet([LOST]).match_line("é: GPU 3 of node-7 is lost".encode(), Stream.APPLICATION)
    assert hit.captures == {"gpu_index": 3, "node": "node-7"}
    assert "é: GPU 3 of node-7 is lost".encode()[slice(*hit.span)] == b"GPU 3 of node-7 is lost"


def test_a_number_too_long_to_be_one_is_not_captured() -> None:
    (hit,) = RuleSet([LOST]).match_line(b"GPU " + b"9" * 40 + b" of n is lost", Stream.APPLICATION)
    assert "gpu_index" not in hit.captures


def test_a_group_that_took_no_part_is_absent_and_not_empty() -> None:
    rules = RuleSet([signature("x", r"lost(?: rank (?P<rank>\d+))?")])
    (hit,) = rules.match_line(b"lost", Stream.APPLICATION)
    assert hit.captures == {}


def test_a_signature_counts_only_in_its_streams() -> None:
    rules = RuleSet([LOST])
    assert names(rules, b"GPU 1 of n is lost") == ["demo.lost"]
    assert names(rules, b"GPU 1 of n is lost", Stream.KERNEL) == []


def test_unless_silences_its_own_signature_only() -> None:
    rules = RuleSet([LOST, signature("other", "is lost")])
    assert names(rules, b"GPU 1 of n is lost (simulated)") == ["demo.other"]


def test_the_first_spelling_that_fits_speaks() -> None:
    rules = RuleSet([signature("x", r"rank (?P<rank>\d+) lost", "lost")])
    (hit,) = rules.match_line(b"rank 4 lost", Stream.APPLICATION)
    assert hit.captures == {"rank": 4}


def test_a_plain_text_is_literal() -> None:
    text = signature("x", "abc").model_copy(
        update={"match": signature("x", "abc").match.model_copy(update={"any": [_text("a.c (x)")]})}
    )
    assert names(RuleSet([text]), b"a.c (x)") == ["demo.x"]
    assert names(RuleSet([text]), b"abc (x)") == []


def _text(text: str) -> Any:
    return type(signature("x", "abc").match.any[0]).model_validate({"text": text})


def test_a_benign_signature_silences_all_others_on_its_line_and_only_there() -> None:
    benign = signature("harmless", "retrying", role="benign", failure="none")
    rules = RuleSet([LOST, benign])
    assert names(rules, b"GPU 1 of n is lost, retrying") == ["demo.harmless"]
    assert names(rules, b"GPU 1 of n is lost") == ["demo.lost"]


def test_a_superseded_signature_yields_on_the_same_line() -> None:
    sharp = signature("sharp", "lost for good", supersedes=["demo.lost"])
    rules = RuleSet([LOST, sharp])
    assert names(rules, b"GPU 1 of n is lost for good") == ["demo.sharp"]


TABLE = signature(
    "codes",
    r"Xid (?P<xid>\d+)",
    severity="warning",
    table={
        "by": "xid",
        "rows": {
            "79": {"title": "Fell off", "failure": "gpu_fell_off_bus", "severity": "critical"},
            "13": {"title": "Program error", "failure": "none", "role": "benign"},
        },
    },
)


def test_a_table_row_overrides_what_it_names_and_inherits_the_rest() -> None:
    (hit,) = RuleSet([TABLE]).match_line(b"Xid 79", Stream.APPLICATION)
    assert (hit.name, hit.title, hit.failure) == ("demo.codes#79", "Fell off", "gpu_fell_off_bus")
    assert (hit.role, hit.severity) == (Role.ROOT, Severity.CRITICAL)
    assert hit.does_not_prove == "more than it says"


def test_a_code_without_a_row_is_no_match() -> None:
    assert names(RuleSet([TABLE]), b"Xid 4711") == []


def test_a_benign_row_silences_like_a_benign_signature() -> None:
    assert names(RuleSet([TABLE, signature("other", "Xid")]), b"Xid 13") == ["demo.codes#13"]


def test_scanning_many_lines_names_candidates_by_line() -> None:
    rules = RuleSet([LOST, signature("other", "boom")])
    lines = [b"fine", b"boom", b"GPU 1 of n is lost boom"]
    assert list(rules.scan(lines)) == [(1, (1,)), (2, (0, 1))]


def test_an_empty_set_matches_nothing() -> None:
    assert names(RuleSet([]), b"anything") == []


@given(st.binary(max_size=400))
def test_any_bytes_may_be_a_line(line: bytes) -> None:
    hits = RuleSet([LOST, TABLE]).match_line(line, Stream.APPLICATION)
    assert all(0 <= hit.span[0] <= hit.span[1] <= len(line) for hit in hits)


@pytest.mark.parametrize("junk", [b"\x00\xff\xfe", b"\x1b[31m", b"\r", "\u202e".encode()])
def test_junk_around_a_message_does_not_hide_it(junk: bytes) -> None:
    assert names(RuleSet([LOST]), junk + b"GPU 1 of n is lost" + junk) == ["demo.lost"]


def test_a_line_of_a_megabyte_counts_by_its_head() -> None:
    rules = RuleSet([LOST])
    message = b"GPU 1 of n is lost"
    assert names(rules, message + b"x" * 1_000_000) == ["demo.lost"]
    assert names(rules, b"x" * MAX_LINE_BYTES + message) == []


def test_the_digest_names_the_content_and_not_its_order() -> None:
    other = signature("other", "boom")
    assert RuleSet([LOST, other]).digest == RuleSet([other, LOST]).digest
    assert RuleSet([LOST]).digest != RuleSet([other]).digest
