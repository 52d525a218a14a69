# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Lines of a kind that a log first printed just before it failed: what to read when no signature names the cause."""

from __future__ import annotations

from dataclasses import dataclass

from detectors.log_text import LogText
from detectors.novelty import novel_templates, sampled_lines
from detectors.templates import TemplateMiner
from relight.types import LogRef

SAMPLE_LINES = 20_000
MOST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstSeen:
    """A line whose template was new; `count` is how often it came until the failure."""

    where: LogRef
    text: str
    count: int


def first_seen_before(log: LogText, failure_line: int) -> tuple[FirstSeen, ...]:
    """Shapes: `failure_line` is a physical line number of the log; at most five lines, nearest to it last.

    Errors: none; a log too short to know what is usual yields nothing.
    """
    upto = sum(1 for n in log.numbers if n <= failure_line) if not isinstance(log.numbers, range) else failure_line
    miner = TemplateMiner()
    seen: list[tuple[int, int]] = []
    for block in sampled_lines(min(upto, len(log.lines)), SAMPLE_LINES):
        ids = miner.learn_all(log.lines[block.start - 1 : block.stop - 1])
        seen += zip(block, ids, strict=True)
    novelty = novel_templates(seen, upto, limit=MOST)
    if novelty is None:
        return ()
    return tuple(
        FirstSeen(
            where=LogRef(file=log.name, line=log.numbers[found.first_line - 1]),
            text=log.lines[found.first_line - 1][:300].decode("utf-8", "replace"),
            count=found.count,
        )
        for found in novelty.novel
    )
