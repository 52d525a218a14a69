# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a log began to say only just before it failed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

TAIL_SHARE = 0.5
BLOCK_LINES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class NovelTemplate:
    """A template never seen earlier; `lines_before` counts from its first line to the failure."""

    template: int
    first_line: int
    lines_before: int
    count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Novelty:
    """What was new in the window, newest last, and how many earlier lines the claim rests on."""

    novel: tuple[NovelTemplate, ...]
    window_from: int
    history_lines: int
    known_templates: int


def novel_templates(
    seen: Iterable[tuple[int, int]],
    failure_line: int,
    *,
    window_lines: int = 500,
    min_history_lines: int = 200,
    limit: int = 20,
) -> Novelty | None:
    """Which templates were first seen in the `window_lines` lines that end at the failure.

    Shapes: `seen` holds (line number, template id) in rising order of lines, whole or sampled; lines after
            the failure are not looked at. At most `limit` templates are named, the nearest to the failure.
    Errors: None where fewer than `min_history_lines` lines stand before the window: in a log that short
            everything is new, which says nothing. ValueError unless the line counts are positive.
    """
    if failure_line < 1 or window_lines < 1 or min_history_lines < 1 or limit < 1:
        raise ValueError(
            "need failure_line, window_lines, min_history_lines and limit >= 1, "
            f"got {failure_line} {window_lines} {min_history_lines} {limit}"
        )
    window_from = max(1, failure_line - window_lines + 1)
    known: set[int] = set()
    first: dict[int, int] = {}
    counts: dict[int, int] = {}
    history = 0
    for line, template in seen:
        if line > failure_line:
            break
        if line < window_from:
            history += 1
            known.add(template)
        elif template not in known:
            first.setdefault(template, line)
            counts[template] = counts.get(template, 0) + 1
    if history < min_history_lines:
        return None
    novel = tuple(
        NovelTemplate(template=template, first_line=line, lines_before=failure_line - line, count=counts[template])
        for template, line in first.items()
    )
    return Novelty(
        novel=novel[-limit:],
        window_from=window_from,
        history_lines=history,
        known_templates=len(known),
    )


def sampled_lines(total: int, cap: int, *, tail_share: float = TAIL_SHARE, block: int = BLOCK_LINES) -> Iterator[range]:
    """Which lines of a long log to learn, as rising ranges of line numbers that hold at most `cap` lines.

    The tail is taken whole, since the failure stands there; the rest gives evenly spread blocks and not
    single lines, since ranks print in turn and a stride would meet the same rank each time. The first block
    is the log's head: what a start prints is not new when a restart prints it again.
    Errors: ValueError unless total >= 0, cap >= 1, block >= 1 and 0 < tail_share <= 1.
    """
    if total < 0 or cap < 1 or block < 1 or not 0 < tail_share <= 1:
        raise ValueError(
            f"need total >= 0, cap >= 1, block >= 1 and 0 < tail_share <= 1, got {total} {cap} {block} {tail_share}"
        )
    if total <= cap:
        if total:
            yield range(1, total + 1)
        return
    tail = max(1, round(cap * tail_share))
    head_total, head_cap = total - tail, cap - tail
    blocks = head_cap // block
    for index in range(blocks):
        start = 1 + index * head_total // blocks
        yield range(start, start + block)
    yield range(total - tail + 1, total + 1)
