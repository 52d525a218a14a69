# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a log began to say only just before it failed, with real templates."""

from __future__ import annotations

from detectors.first_seen import first_seen_before
from detectors.log_text import read_log
from relight.types import Stream


def test_a_new_kind_of_line_before_the_failure_is_shown_with_its_place() -> None:
    usual = [f"step {n} loss {2.0 + n / 1000:.4f} rank {n % 8}" for n in range(2_000)]
    lines = [*usual, "prefetch queue of loader 7 is empty", *usual[:20], "boom"]
    log = read_log("job.log", "\n".join(lines).encode(), Stream.APPLICATION)
    found = first_seen_before(log, len(lines))
    assert [(x.where.line, x.text) for x in found] == [
        (2_001, "prefetch queue of loader 7 is empty"),
        (len(lines), "boom"),
    ]


def test_a_short_log_has_nothing_usual_and_so_nothing_new() -> None:
    log = read_log("job.log", b"a\nb\nboom\n", Stream.APPLICATION)
    assert first_seen_before(log, 3) == ()
