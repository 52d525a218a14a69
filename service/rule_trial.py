# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A log against the rules, line by line, for a rule author to look at."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from relight.types import Stream
from rules.lint import LintReport
from rules.match import Hit, RuleSet
from service.terminal import escaped, marked, message, progress, result

_BYTES_AT_ONCE = 1 << 20
_SHOWN_BYTES = 2_000


def without_faulty(report: LintReport, only: str | None = None) -> RuleSet:
    """The signatures that may be loaded; says on stderr how many could not."""
    faulty = {p.file for p in report.problems}
    if faulty and only is None:
        message(f"{len(faulty)} faulty rule files are left out; see: relight rules lint")
    return RuleSet(s for s in report.signatures if only in (None, s.id))


def show_matches(rules: RuleSet, file: Path, stream: Stream, as_json: bool) -> None:
    """Print each match; tells a log without lines from a log without matches."""
    seen = hits = 0
    with _opened(file) as log, progress("matching", _size(file)) as bar:
        while raw := log.readlines(_BYTES_AT_ONCE):
            lines = [line.rstrip(b"\r\n") for line in raw]
            for index, candidates in rules.scan(lines):
                for hit in rules.hits(lines[index], candidates, stream):
                    hits += 1
                    _show(seen + index + 1, lines[index], hit, as_json)
            seen += len(lines)
            bar.advance(sum(map(len, raw)))
    if seen == 0:
        message("no data: the log holds no line, so nothing was tried")
    else:
        message(f"{seen} lines read as {stream}, {hits} matches, {len(rules.signatures)} signatures tried")


@contextmanager
def _opened(file: Path) -> Iterator[BinaryIO]:
    if str(file) == "-":
        yield sys.stdin.buffer
        return
    with file.open("rb") as log:
        yield log


def _size(file: Path) -> int | None:
    return None if str(file) == "-" else file.stat().st_size


def _show(number: int, line: bytes, hit: Hit, as_json: bool) -> None:
    start, end = hit.span
    if as_json:
        shown = {
            "line": number,
            "signature": hit.name,
            "failure": hit.failure,
            "role": hit.role,
            "span": [start, end],
            "captures": dict(hit.captures),
            "text": escaped(line[:_SHOWN_BYTES].decode("utf-8", "replace")),
        }
        result(json.dumps(shown, ensure_ascii=False))
        return
    cut = max(0, start - _SHOWN_BYTES // 2)
    marked(
        f"{number}: {hit.name} [{hit.failure}, {hit.role}] ",
        line[cut : max(end, cut + _SHOWN_BYTES)],
        (start - cut, end - cut),
    )
