# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A compiled rule set: which signatures a line matches, and what it captures."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import re2

from relight.types import Action, Captures, CaptureValue, Role, Severity, Stream
from rules.schema import INT_CAPTURES, Pattern, Row, Signature

MAX_LINE_BYTES = 64_000
_SET_MEMORY = 512 << 20
_PATTERN_MEMORY = 8 << 20
_BLOCK_LINES = 64
_GIVE_UP = 16


def _options(memory: int) -> re2.Options:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1  # lines are bytes: any junk must be matchable
    options.max_mem = memory
    options.log_errors = False
    options.never_nl = False
    return options


def pattern_bytes(pattern: Pattern) -> bytes:
    """The RE2 source of a pattern; a plain text is quoted."""
    if pattern.regex is not None:
        return pattern.regex.encode("utf-8")
    return bytes(re2.escape((pattern.text or "").encode("utf-8")))


def compile_pattern(pattern: Pattern) -> re2._Regexp:
    """Errors: re2.error with RE2's own words (look-around, back-references, syntax)."""
    return re2.compile(pattern_bytes(pattern), _options(_PATTERN_MEMORY))


@dataclass(frozen=True, slots=True)
class Hit:
    """A signature that a line matches; `span` is in bytes of the line."""

    signature: Signature
    row: Row | None
    captures: Captures
    span: tuple[int, int]

    @property
    def failure(self) -> str:
        return self.row.failure if self.row is not None else self.signature.failure

    @property
    def role(self) -> Role:
        return (self.row.role if self.row is not None else None) or self.signature.role

    @property
    def title(self) -> str:
        return self.row.title if self.row is not None else self.signature.title

    @property
    def action(self) -> Action | None:
        return (self.row.action if self.row is not None else None) or self.signature.action

    @property
    def severity(self) -> Severity:
        return (self.row.severity if self.row is not None else None) or self.signature.severity

    @property
    def does_not_prove(self) -> str:
        return (self.row.does_not_prove if self.row is not None else None) or self.signature.does_not_prove

    @property
    def name(self) -> str:
        """Id for people: a table row is addressed as `id#code`."""
        if self.signature.table is None:
            return self.signature.id
        return f"{self.signature.id}#{self.captures.get(self.signature.table.by, '?')}"


class _Compiled:
    """One signature with its patterns compiled."""

    __slots__ = ("patterns", "signature", "unless")

    def __init__(self, signature: Signature) -> None:
        self.signature = signature
        self.patterns = [compile_pattern(p) for p in signature.match.any]
        self.unless = [compile_pattern(p) for p in signature.match.unless]

    def hit(self, line: bytes) -> Hit | None:
        for pattern in self.patterns:
            found = pattern.search(line)
            if found is None:
                continue
            if any(u.search(line) for u in self.unless):
                return None
            captures = _typed(found.groupdict())
            row = self._row(captures)
            if self.signature.table is not None and row is None:
                return None
            return Hit(self.signature, row, captures, found.span())
        return None

    def _row(self, captures: Captures) -> Row | None:
        if self.signature.table is None:
            return None
        return self.signature.table.rows.get(str(captures.get(self.signature.table.by, "")))


def _typed(groups: Mapping[bytes, bytes | None]) -> dict[str, CaptureValue]:
    out: dict[str, CaptureValue] = {}
    for key, raw in groups.items():
        if raw is None:
            continue
        name = key.decode() if isinstance(key, bytes) else key
        text = raw.decode("utf-8", "replace")
        if name in INT_CAPTURES:
            digits = text.lstrip("-")
            if digits.isascii() and digits.isdigit() and len(digits) < 20:
                out[name] = int(text)
        else:
            out[name] = text
    return out


class RuleSet:
    """Immutable, compiled signatures of one kind; built off to the side and swapped in whole.

    Shapes: lines are bytes without their newline; `scan` yields (index, hits) for lines that match.
    Errors: re2.error if a pattern does not compile (lint first: it names file and key).
    Source: one RE2 set decides in linear time which patterns may match; captures cost only on a match.
    """

    def __init__(self, signatures: Iterable[Signature]) -> None:
        self.signatures: tuple[Signature, ...] = tuple(signatures)
        self._compiled = [_Compiled(s) for s in self.signatures]
        self._owner: list[int] = []
        self._set = re2.Set.SearchSet(_options(_SET_MEMORY))
        self._blocks = re2.Set.SearchSet(_options(_SET_MEMORY))
        for index, signature in enumerate(self.signatures):
            for pattern in signature.match.any:
                source = pattern_bytes(pattern)
                self._set.Add(source)
                self._blocks.Add(b"(?m:" + source + b")")
                self._owner.append(index)
        if self._owner:
            self._set.Compile()
            self._blocks.Compile()
        self.digest = hashlib.sha256(
            b"".join(s.model_dump_json().encode() for s in sorted(self.signatures, key=lambda s: s.id))
        ).hexdigest()

    def scan(self, lines: Sequence[bytes]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Which signatures (by index) each line may match, by the set alone; lines without are left out.

        Blocks of lines are asked first, with `^` and `$` at each line's ends: most blocks of a training log
        match nothing. Where most of the last ones did, blocks are not asked for a while.
        """
        if not self._owner:
            return
        wasted = 0
        for start in range(0, len(lines), _BLOCK_LINES):
            block = lines[start : start + _BLOCK_LINES]
            if wasted >= _GIVE_UP:
                wasted -= 1 if start % (_BLOCK_LINES * 4) else _GIVE_UP // 2
            elif len(block) > 1 and not self._blocks.Match(b"\n".join(block)):
                wasted = max(0, wasted - 1)
                continue
            else:
                wasted += 1
            yield from self._scan_lines(block, start)

    def _scan_lines(self, lines: Sequence[bytes], start: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        match, owner = self._set.Match, self._owner
        for index, line in enumerate(lines, start):
            found = match(line if len(line) <= MAX_LINE_BYTES else line[:MAX_LINE_BYTES])
            if found:
                yield index, tuple(dict.fromkeys(owner[i] for i in sorted(found)))

    def hits(self, line: bytes, indexes: Sequence[int], stream: Stream) -> tuple[Hit, ...]:
        """What the named signatures say of a line, after streams, benign and supersedes are applied."""
        line = line[:MAX_LINE_BYTES]
        found: list[Hit] = []
        for index in indexes:
            if stream not in self.signatures[index].streams:
                continue
            hit = self._compiled[index].hit(line)
            if hit is not None:
                found.append(hit)
        return _settle(found)

    def match_line(self, line: bytes, stream: Stream) -> tuple[Hit, ...]:
        for _, indexes in self.scan([line]):
            return self.hits(line, indexes, stream)
        return ()


def _settle(found: list[Hit]) -> tuple[Hit, ...]:
    """On one line: a benign signature silences all others, a superseded one yields."""
    if len(found) < 2:
        return tuple(found)
    beaten = {loser for hit in found for loser in hit.signature.supersedes}
    kept = [h for h in found if h.signature.id not in beaten]
    benign = [h for h in kept if h.role is Role.BENIGN]
    return tuple(benign or kept)
