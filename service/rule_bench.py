# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What each signature costs on a log: time to name candidates, time to confirm them, and speed without it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from relight.types import Stream
from rules.match import RuleSet, compile_pattern
from rules.schema import Signature

CLOSER_LOOKS = 5
SAMPLE = 1_000
LEAST = 2_000
Tick = Callable[[], object]
Named = tuple[int, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureCost:
    """Units: seconds over the whole log. The last two, measured in turns, are known of the costliest alone."""

    id: str
    candidates: int
    matched: int
    confirm_s: float
    alone_s: float
    with_lines_s: float | None = None
    without_lines_s: float | None = None

    @property
    def cost_s(self) -> float:
        return self.confirm_s + self.alone_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RegexCost:
    """One spelling by itself. Units: nanoseconds a line."""

    signature: str
    index: int
    pattern: str
    ns: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Medians over `repeats`, in time of the processor, which a busy machine does not stretch.

    `named` are lines with a candidate, `candidates` pairs of a line and a signature.
    """

    lines: int
    size_bytes: int
    patterns: int
    repeats: int
    prefilter_s: float
    confirm_s: float
    named: int
    candidates: int
    matched: int
    signatures: tuple[SignatureCost, ...]
    regexes: tuple[RegexCost, ...]

    @property
    def lines_s(self) -> float:
        return self.lines / (self.prefilter_s + self.confirm_s)


def rounds(signatures: Sequence[Signature], repeats: int) -> int:
    """How often `bench` calls its tick."""
    return repeats + 2 * len(signatures) + min(CLOSER_LOOKS, len(signatures))


def bench(
    signatures: Sequence[Signature], lines: Sequence[bytes], stream: Stream, *, repeats: int, tick: Tick
) -> Bench:
    """Measure on these lines; signatures that do not count in the stream cost their prefilter alone.

    A short log is read over and over, up to 2,000 lines: less can't be timed.
    Errors: ValueError for no lines at all.
    """
    if not lines:
        raise ValueError("the log holds no line, so nothing can be measured")
    lines = list(lines) * -(-LEAST // len(lines)) if len(lines) < LEAST else lines
    whole = RuleSet(signatures)
    found = list(whole.scan(lines))
    prefilters, confirms = [], []
    for _ in range(repeats):
        prefilters.append(_timed(lambda: list(whole.scan(lines))))
        confirms.append(_timed(lambda: _confirmed(whole, lines, found, stream)))
        tick()
    costs = _costs(whole, lines, found, stream, repeats, tick)
    return Bench(
        lines=len(lines),
        size_bytes=sum(map(len, lines)),
        patterns=sum(len(s.match.any) for s in signatures),
        repeats=repeats,
        prefilter_s=median(prefilters),
        confirm_s=median(confirms),
        named=len(found),
        candidates=sum(len(indexes) for _, indexes in found),
        matched=sum(cost.matched for cost in costs),
        signatures=costs,
        regexes=tuple(sorted(_regexes(signatures, lines, tick), key=lambda r: -r.ns)),
    )


def _costs(
    whole: RuleSet, lines: Sequence[bytes], found: Sequence[Named], stream: Stream, repeats: int, tick: Tick
) -> tuple[SignatureCost, ...]:
    """Every signature by itself, the costliest first; those few also by the speed of the set without them."""
    named: dict[int, list[int]] = {}
    for line, indexes in found:
        for index in indexes:
            named.setdefault(index, []).append(line)
    costs = []
    for index, signature in enumerate(whole.signatures):
        costs.append(_cost(signature, lines, named.get(index, []), stream, repeats))
        tick()
    ranked = sorted(costs, key=lambda c: -c.cost_s)
    for place, cost in enumerate(ranked[:CLOSER_LOOKS]):
        ranked[place] = _without(cost, whole, lines, stream, repeats)
        tick()
    return tuple(ranked)


def _confirmed(rules: RuleSet, lines: Sequence[bytes], found: Sequence[Named], stream: Stream) -> int:
    return sum(len(rules.hits(lines[line], indexes, stream)) for line, indexes in found)


def _cost(
    signature: Signature, lines: Sequence[bytes], named: Sequence[int], stream: Stream, repeats: int
) -> SignatureCost:
    alone = RuleSet([signature])
    pairs = [(line, (0,)) for line in named]
    return SignatureCost(
        id=signature.id,
        candidates=len(named),
        matched=_confirmed(alone, lines, pairs, stream),
        confirm_s=median(_timed(lambda: _confirmed(alone, lines, pairs, stream)) for _ in range(repeats)),
        alone_s=median(_timed(lambda: list(alone.scan(lines))) for _ in range(repeats)),
    )


def _without(
    cost: SignatureCost, whole: RuleSet, lines: Sequence[bytes], stream: Stream, repeats: int
) -> SignatureCost:
    others = RuleSet(s for s in whole.signatures if s.id != cost.id)

    def once(rules: RuleSet) -> float:
        return _timed(lambda: _confirmed(rules, lines, list(rules.scan(lines)), stream))

    once(others)  # the set builds its automaton while it reads: not to be counted against it
    pairs = [(once(whole), once(others)) for _ in range(repeats)]
    return replace(
        cost,
        with_lines_s=len(lines) / median(w for w, _ in pairs),
        without_lines_s=len(lines) / median(o for _, o in pairs),
    )


def _regexes(signatures: Sequence[Signature], lines: Sequence[bytes], tick: Tick) -> Iterator[RegexCost]:
    sample = lines[:: max(1, len(lines) // SAMPLE)]
    for signature in signatures:
        for index, pattern in enumerate(signature.match.any):
            compiled = compile_pattern(pattern)
            for line in sample:
                compiled.search(line)
            taken = median(_timed(lambda: [compiled.search(line) for line in sample]) for _ in range(3))  # noqa: B023
            shown = pattern.regex or pattern.text or ""
            yield RegexCost(signature=signature.id, index=index, pattern=shown, ns=taken / len(sample) * 1e9)
        tick()


def _timed(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return max(time.process_time() - begun, 1e-9)
