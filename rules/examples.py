# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A signature against its own example lines: it loads only if all of them come out as they say."""

from __future__ import annotations

from collections.abc import Iterable

from relight.types import Stream
from rules.match import Hit, RuleSet
from rules.problems import Problem
from rules.schema import Fires, Signature, Silent
from rules.source import Path, Source


def example_faults(
    signature: Signature, source: Source, fires: Iterable[Fires], silent: Iterable[Silent], below: Path = ("tests",)
) -> list[Problem]:
    """The examples that come out otherwise; `below` is where they stand in the file."""
    out: list[Problem] = []
    alone, stream = RuleSet([signature]), signature.streams[0]
    for index, case in enumerate(fires):
        fault = _fires_fault(alone.match_line(case.line.encode(), stream), case)
        if fault:
            out.append(source.problem((*below, "fires", index), *fault, signature.id))
    for index, near in enumerate(silent):
        if alone.match_line(near.line.encode(), stream):
            fault = ("it matches, but must not", "narrow the pattern or add 'unless'")
            out.append(source.problem((*below, "silent", index), *fault, signature.id))
    return out


def still_passes(signature: Signature, fires: Iterable[Fires], silent: Iterable[Silent]) -> tuple[str, ...]:
    """Example lines that no longer come out as they say, shown short."""
    alone, stream = RuleSet([signature]), signature.streams[0]
    return (
        *(f"no longer fires on {_short(c.line)}" for c in fires if _fires_fault(_hits(alone, c.line, stream), c)),
        *(f"now fires on {_short(c.line)}" for c in silent if _hits(alone, c.line, stream)),
    )


def _hits(alone: RuleSet, line: str, stream: Stream) -> tuple[Hit, ...]:
    return alone.match_line(line.encode(), stream)


def _short(line: str) -> str:
    return repr(line if len(line) <= 100 else line[:97] + "...")


def _fires_fault(hits: tuple[Hit, ...], case: Fires) -> tuple[str, str] | None:
    if not hits:
        return "no match, but it must fire", "widen the pattern or mend the example"
    (hit,) = hits
    if case.failure is not None and hit.failure != case.failure:
        return f"names failure {hit.failure!r}, expected {case.failure!r}", "mend the row or the example"
    for key, wanted in case.captures.items():
        got = hit.captures.get(key)
        if str(got) != wanted:
            return f"capture {key!r} is {got!r}, expected {wanted!r}", "mend the pattern or the example"
    return None
