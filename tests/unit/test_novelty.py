# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Novelty: which templates a log began to print only just before its failure."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.novelty import novel_templates, sampled_lines


def steady(until: int) -> list[tuple[int, int]]:
    return [(line, line % 3) for line in range(1, until + 1)]


def test_a_template_first_seen_in_the_window_is_novel_with_its_distance() -> None:
    seen = [*steady(990), (991, 7), (992, 1), (993, 7), (1000, 8)]
    novelty = novel_templates(seen, 1000, window_lines=20)
    assert novelty is not None
    assert [(n.template, n.first_line, n.lines_before, n.count) for n in novelty.novel] == [
        (7, 991, 9, 2),
        (8, 1000, 0, 1),
    ]
    assert (novelty.window_from, novelty.history_lines, novelty.known_templates) == (981, 980, 3)


def test_what_was_seen_once_long_ago_is_not_novel() -> None:
    seen = [(1, 7), *steady(990)[1:], (995, 7)]
    novelty = novel_templates(seen, 1000, window_lines=20)
    assert novelty is not None
    assert novelty.novel == ()


def test_lines_after_the_failure_are_its_consequence_and_not_looked_at() -> None:
    novelty = novel_templates([*steady(1000), (1001, 9)], 1000)
    assert novelty is not None
    assert novelty.novel == ()


def test_too_short_a_history_gives_no_verdict_instead_of_everything() -> None:
    assert novel_templates(steady(600), 600, window_lines=500) is None
    assert novel_templates([], 5) is None


def test_of_many_the_nearest_to_the_failure_are_named() -> None:
    seen = [*steady(900), *((900 + n, 100 + n) for n in range(1, 51))]
    novelty = novel_templates(seen, 950, window_lines=60, limit=3)
    assert novelty is not None
    assert [n.template for n in novelty.novel] == [148, 149, 150]


def test_line_counts_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="failure_line"):
        novel_templates([], 0)
    with pytest.raises(ValueError, match="cap >= 1"):
        list(sampled_lines(10, 0))


def test_a_short_log_is_taken_whole() -> None:
    assert list(sampled_lines(10, 10)) == [range(1, 11)]
    assert list(sampled_lines(0, 10)) == []


def test_a_long_log_gives_its_head_even_blocks_and_its_whole_tail() -> None:
    parts = list(sampled_lines(100_000, 1_000, block=50))
    assert parts[0] == range(1, 51)
    assert parts[-1] == range(99_501, 100_001)
    starts = [part.start for part in parts[:-1]]
    assert {later - earlier for earlier, later in itertools.pairwise(starts)} == {9_950}


@given(st.integers(0, 5_000), st.integers(1, 6_000), st.floats(0.01, 1.0), st.integers(1, 200))
def test_a_sample_is_capped_rising_within_the_log_and_ends_with_it(
    total: int, cap: int, tail_share: float, block: int
) -> None:
    lines = [line for part in sampled_lines(total, cap, tail_share=tail_share, block=block) for line in part]
    assert lines == sorted(set(lines))
    assert len(lines) <= cap
    assert not lines or (lines[0] >= 1 and lines[-1] == total)
