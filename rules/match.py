# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A compiled rule set: which signatures a line matches, and what it captures."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import re2

from relight.types import Action, Captures, CaptureValue, Role, Severity, Stream
from rules.schema import INT_CAPTURES, Pattern, Row, Signature

MAX_LINE_BYTES = 64_000
_SET_MEMORY = 512 << 20
_PATTERN_MEMORY = 8 << 20
_BLOCK_LINES = 64
_GIVE_UP = 16
Spans = Sequence[tuple[int, int]]


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
    silence: str = ""

    @property
    def maturity(self) -> str:
        """As its signature says, or that it is silenced, until when and why: then it decides nothing."""
        return f"silenced {self.silence}" if self.silence else self.signature.maturity

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
        compiled = [compile_pattern(p) for p in signature.match.any]
        self.patterns = [(searcher(one), _groups(one)) for one in compiled]
        self.unless = [searcher(compile_pattern(p)) for p in signature.match.unless]

    def hit(self, line: bytes, places: Iterable[int] | None = None) -> Hit | None:
        """By the first of its patterns that matches, or of those in these places of its list."""
        for place in range(len(self.patterns)) if places is None else places:
            search, groups = self.patterns[place]
            spans = search(line)
            if spans is None:
                continue
            for is_excepted in self.unless:
                if is_excepted(line) is not None:
                    return None
            captures = _typed(line, spans, groups)
            row = self._row(captures)
            if self.signature.table is not None and row is None:
                return None
            return Hit(self.signature, row, captures, spans[0])
        return None

    def _row(self, captures: Captures) -> Row | None:
        if self.signature.table is None:
            return None
        return self.signature.table.rows.get(str(captures.get(self.signature.table.by, "")))


def _groups(pattern: re2._Regexp) -> tuple[tuple[int, str, bool], ...]:
    """Number, name and whether it is a whole number of each named group; RE2 makes the list anew when asked."""
    named = ((index, name.decode()) for name, index in sorted(pattern.groupindex.items()))
    return tuple((index, name, name in INT_CAPTURES) for index, name in named)


def searcher(pattern: re2._Regexp) -> Callable[[bytes], Spans | None]:
    """A search that says where all groups lie, or None.

    The wrapper's own makes a generator and a match, whose accessors ask RE2 for the number of groups each time: more
    work than the search. What is below it is asked where it is as we know it, else the wrapper.
    """
    below, anchor = getattr(pattern, "_regexp", None), getattr(re2, "_Anchor", None)
    if below is None or anchor is None:
        return lambda line: _spans(pattern.search(line))
    match, anywhere = below.Match, anchor.UNANCHORED

    def search(line: bytes) -> Spans | None:
        spans: Spans = match(anywhere, line, 0, len(line))
        return None if spans[0][0] < 0 else spans

    return search


def _spans(found: re2._Match | None) -> Spans | None:
    return None if found is None else [found.span(index) for index in range(len(found.groups()) + 1)]


def _typed(line: bytes, spans: Spans, groups: Sequence[tuple[int, str, bool]]) -> dict[str, CaptureValue]:
    out: dict[str, CaptureValue] = {}
    for index, name, is_whole in groups:
        start, end = spans[index]
        if start < 0:
            continue
        text = line[start:end].decode("utf-8", "replace")
        if not is_whole:
            out[name] = text
            continue
        digits = text.lstrip("-")
        if digits.isascii() and digits.isdigit() and len(digits) < 20:
            out[name] = int(text)
    return out


class RuleSet:
    """Immutable, compiled signatures of one kind; built off to the side and swapped in whole.

    Shapes: lines are bytes without their newline; `scan` yields (index, hits) for lines that match.
    Errors: re2.error if a pattern does not compile (lint first: it names file and key).
    Source: one RE2 set decides in linear time which patterns may match; captures cost only on a match.
    """

    def __init__(self, signatures: Iterable[Signature], silenced: Mapping[str, str] | None = None) -> None:
        self._silenced = dict(silenced or {})
        self.signatures: tuple[Signature, ...] = tuple(signatures)
        self._compiled = [_Compiled(s) for s in self.signatures]
        self._owner: list[int] = []
        self._set = re2.Set.SearchSet(_options(_SET_MEMORY))
        self._blocks = re2.Set.SearchSet(_options(_SET_MEMORY))
        self._first: list[int] = []
        self._contentious = frozenset(i for i, s in enumerate(self.signatures) if s.supersedes or _may_be_benign(s))
        for index, signature in enumerate(self.signatures):
            self._first.append(len(self._owner))
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
        """Which signatures (by index) each line may match, by the set alone; lines without are left out."""
        owner = self._owner
        for index, patterns in self.candidates(lines):
            yield index, tuple(dict.fromkeys(owner[i] for i in patterns))

    def candidates(self, lines: Sequence[bytes]) -> Iterator[tuple[int, list[int]]]:
        """Which patterns, numbered over all signatures, each line matches; lines without are left out.

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

    def _scan_lines(self, lines: Sequence[bytes], start: int) -> Iterator[tuple[int, list[int]]]:
        match = self._set.Match
        for index, line in enumerate(lines, start):
            found = match(line if len(line) <= MAX_LINE_BYTES else line[:MAX_LINE_BYTES])
            if found:
                yield index, sorted(found)

    def patterns_of(self, event: str) -> frozenset[int]:
        """The patterns, numbered as in `candidates`, of signatures that tell of an event."""
        return frozenset(n for n, owner in enumerate(self._owner) if self.signatures[owner].event == event)

    def hits(self, line: bytes, indexes: Sequence[int], stream: Stream) -> tuple[Hit, ...]:
        """What the named signatures say of a line, after streams, benign and supersedes are applied."""
        return self._hits(line, dict.fromkeys(indexes), stream)

    def confirmed(self, line: bytes, patterns: Sequence[int], stream: Stream) -> tuple[Hit, ...]:
        """What `hits` says, where it is known already which patterns match: no other is tried."""
        places: dict[int, list[int]] = {}
        for number in patterns:
            owner = self._owner[number]
            places.setdefault(owner, []).append(number - self._first[owner])
        return self._hits(line, places, stream)

    def _hits(self, line: bytes, places: Mapping[int, list[int] | None], stream: Stream) -> tuple[Hit, ...]:
        line = line[:MAX_LINE_BYTES]
        found: list[Hit] = []
        for index, own in places.items():
            if stream not in self.signatures[index].streams:
                continue
            hit = self._compiled[index].hit(line, own)
            if hit is not None:
                found.append(self._marked(hit) if self._silenced else hit)
        return tuple(found) if self._contentious.isdisjoint(places) else _settle(found)

    def _marked(self, hit: Hit) -> Hit:
        silence = self._silenced.get(hit.name) or self._silenced.get(hit.signature.id)
        return replace(hit, silence=silence) if silence else hit

    def match_line(self, line: bytes, stream: Stream) -> tuple[Hit, ...]:
        for _, patterns in self.candidates([line]):
            return self.confirmed(line, patterns, stream)
        return ()


def _may_be_benign(signature: Signature) -> bool:
    rows = signature.table.rows.values() if signature.table is not None else ()
    return signature.role is Role.BENIGN or any(row.role is Role.BENIGN for row in rows)


def _settle(found: list[Hit]) -> tuple[Hit, ...]:
    """On one line: a benign signature silences all others, a superseded one yields."""
    if len(found) < 2:
        return tuple(found)
    beaten = [loser for hit in found for loser in hit.signature.supersedes]
    kept = [h for h in found if h.signature.id not in beaten] if beaten else found
    benign = [h for h in kept if h.role is Role.BENIGN and not h.silence]
    return tuple(benign or kept)
