# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the bytes of a log to its logical lines: no escapes, no carriage returns, wrapped lines joined."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from relight.types import NodeName, Rank, Stream

MAX_LINE_BYTES = 64_000
NEEDLES = (
    b"==", b"restart", b"RESTART", b"Starting elastic_operator", b'File "', b"Traceback (", b"anks ", b"NODELIST",
    b"jobid ", b"are ready for job",
)  # fmt: skip
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_STARTS_ANEW = re.compile(
    rb"^(?:\[|\(|\{|Traceback|\s{2,}File |[EWIF]\d{3,4} |\d{2,4}[-/:]\d\d|\w+Error|\w+:\d+:\d+ "
    rb"|[A-Z]{4,}:|<\d)"
)
_WRAP_WIDTHS = range(60, 400)
_WRAP_MAX_LINES = 20_000
_WRAP_MIN_FULL = 4


@dataclass(slots=True)
class LogText:
    """The logical lines of one file; `numbers[i]` is the physical line (from 1) that line i begins on.

    `absent` are those of `NEEDLES` that stand nowhere in the file: one search of the whole saves one a line.
    """

    name: str
    stream: Stream
    lines: list[bytes]
    numbers: Sequence[int]
    node: NodeName | None = None
    rank: Rank | None = None
    year: int | None = None
    absent: frozenset[bytes] = frozenset()


def read_log(
    name: str, data: bytes, stream: Stream, *, node: NodeName | None = None, rank: Rank | None = None
) -> LogText:
    """Split one file.

    Shapes: any bytes in; lines without line ends out, each at most 64,000 bytes.
    Errors: none; any bytes may be a log.
    """
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        data = data.decode("utf-16", "replace").encode("utf-8")
    elif data[:3] == b"\xef\xbb\xbf":
        data = data[3:]
    if b"\x1b" in data:
        data = _ANSI.sub(b"", data)
    absent = frozenset(needle for needle in NEEDLES if needle not in data)
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    if b"\r" not in data and len(lines) > _WRAP_MAX_LINES:
        return LogText(name, stream, lines, range(1, len(lines) + 1), node, rank, absent=absent)
    logical, numbers = _without_returns(lines) if b"\r" in data else (lines, range(1, len(lines) + 1))
    logical, numbers = _unwrapped(logical, numbers)
    return LogText(name, stream, logical, numbers, node, rank, absent=absent)


def _without_returns(lines: list[bytes]) -> tuple[list[bytes], Sequence[int]]:
    """A progress bar rewrites its line: each rewrite becomes a line of its own with the same number."""
    out: list[bytes] = []
    numbers: list[int] = []
    for number, line in enumerate(lines, 1):
        if b"\r" not in line:
            out.append(line)
            numbers.append(number)
            continue
        parts = [p for p in line.split(b"\r") if p.strip()] or [b""]
        out += parts
        numbers += [number] * len(parts)
    return out, numbers


def _unwrapped(lines: list[bytes], numbers: Sequence[int]) -> tuple[list[bytes], Sequence[int]]:
    """Join lines that a terminal cut at a fixed width, inside words."""
    if len(lines) > _WRAP_MAX_LINES:
        return lines, numbers
    width = _wrap_width(lines)
    if width is None:
        return lines, numbers
    out: list[bytes] = []
    kept: list[int] = []
    is_open = False
    for line, number in zip(lines, numbers, strict=True):
        if is_open and not _STARTS_ANEW.match(line):
            out[-1] += line
        else:
            out.append(line)
            kept.append(number)
        is_open = _length(line) == width and not line.endswith(b"  ") and len(out[-1]) < MAX_LINE_BYTES
    return [line.rstrip() for line in out], kept


def _wrap_width(lines: list[bytes]) -> int | None:
    """The width of a hard wrap: nothing is longer, several lines fill it, and one ends inside a word."""
    lengths = [_length(line) for line in lines]
    longest = max(lengths, default=0)
    if longest not in _WRAP_WIDTHS:
        return None
    full = [i for i, n in enumerate(lengths) if n == longest]
    continued = [
        i
        for i in full
        if i + 1 < len(lines) and lines[i + 1].strip() and not lines[i].endswith(b"  ")
        and not _STARTS_ANEW.match(lines[i + 1])
    ]  # fmt: skip
    same = Counter(lines[i] for i in full)
    if len(full) < _WRAP_MIN_FULL or len(same) < len(full) // 2 or not continued:
        return None
    # A terminal cuts anywhere, so mostly inside words; rows of a table end at a border.
    inside = sum(lines[i][-1:].isalnum() and lines[i + 1][:1].isalnum() for i in continued)
    return longest if inside * 3 >= len(continued) else None


def _length(line: bytes) -> int:
    return len(line) if line.isascii() else len(line.decode("utf-8", "replace"))
