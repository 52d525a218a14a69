# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From rule texts to a loadable set: parse, validate, compile, lay overlays over, run the inline tests."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from relight.types import Role
from rules.checked import Checked, Quiet, Touch
from rules.examples import example_faults
from rules.layers import laid_over
from rules.match import RuleSet
from rules.overlay import ParsedOverlay
from rules.pattern_check import pattern_faults
from rules.problems import Problem, RulesInvalid
from rules.reading import Parsed, read_file
from rules.schema import Signature
from rules.source import Path, read_source

MAX_SIGNATURES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """Signatures that may be loaded, as overlays left them, and every problem of those that may not."""

    signatures: tuple[Signature, ...]
    problems: tuple[Problem, ...]
    files: int
    touches: tuple[Touch, ...] = ()
    silences: tuple[Quiet, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)


def lint(files: Mapping[str, str], failures: Iterable[str]) -> LintReport:
    """Check a whole rule set.

    Shapes: `files` maps file name to text, signatures and overlays; `failures` are the names of the taxonomy.
    Errors: none; problems are returned, all of them, sorted by place.
    """
    known = frozenset(failures)
    problems: list[Problem] = []
    parsed: list[Parsed] = []
    overlays: list[ParsedOverlay] = []
    for file, text in sorted(files.items()):
        source = read_source(file, text)
        one = read_file(source)
        problems += source.problems
        if isinstance(one, Parsed):
            parsed.append(one)
        elif one is not None:
            overlays.append(one)
    problems += _duplicates(parsed)
    for holder in parsed:
        problems += _check(holder, known)
    problems += _references(parsed)
    good = _without(parsed, problems)
    if len(good) > MAX_SIGNATURES:
        first = good[0].source
        problems.append(first.problem((), f"more than {MAX_SIGNATURES} signatures", "split the rule set"))
    for holder in good:
        tests = holder.signature.tests
        problems += example_faults(holder.signature, holder.source, tests.fires, tests.silent)
    good = _without(good, problems)
    layered = laid_over(good, overlays, {p.signature.id: p.signature for p in reversed(parsed)})
    return LintReport(
        signatures=layered.signatures,
        problems=tuple(sorted([*problems, *layered.problems])),
        files=len(files),
        touches=layered.touches,
        silences=layered.silences,
        homes={p.signature.id: p.source.file for p in good},
    )


def check(files: Mapping[str, str], failures: Iterable[str]) -> Checked:
    """A faultless rule set, with what overlays changed.

    Errors: RulesInvalid with every problem if there is any: a set loads whole or not at all.
    """
    report = lint(files, failures)
    if report.problems:
        raise RulesInvalid(report.problems)
    return Checked(
        signatures=report.signatures, touches=report.touches, silences=report.silences, homes=dict(report.homes)
    )


def load(files: Mapping[str, str], failures: Iterable[str], at: datetime | None = None) -> tuple[RuleSet, RuleSet]:
    """Compile a faultless rule set into (signatures, progress signatures); silences are those that hold at `at`.

    Errors: RulesInvalid, as `check`.
    """
    return check(files, failures).compiled(at)


def _without(parsed: list[Parsed], problems: Iterable[Problem]) -> list[Parsed]:
    bad = {p.file for p in problems}
    return [p for p in parsed if p.source.file not in bad]


def _duplicates(parsed: list[Parsed]) -> list[Problem]:
    first: dict[str, str] = {}
    out: list[Problem] = []
    for one in parsed:
        name = one.signature.id
        if name in first:
            what = f"id {name!r} is also used in {first[name]}"
            out.append(one.source.problem(("id",), what, "choose another id, or change it by an overlay", name))
        first.setdefault(name, one.source.file)
    return out


def _references(parsed: list[Parsed]) -> list[Problem]:
    names = {p.signature.id for p in parsed}
    out: list[Problem] = []
    for one in parsed:
        for index, target in enumerate(one.signature.supersedes):
            if target not in names:
                near = difflib.get_close_matches(target, sorted(names), 1)
                fix = f"did you mean {near[0]!r}?" if near else "remove it"
                path = ("supersedes", index)
                out.append(one.source.problem(path, f"no signature {target!r}", fix, one.signature.id))
    return out


def _check(one: Parsed, known: frozenset[str]) -> list[Problem]:
    signature, source = one.signature, one.source
    out: list[Problem] = []

    def say(path: Path, what: str, fix: str) -> None:
        out.append(source.problem(path, what, fix, signature.id))

    rows = signature.table.rows if signature.table is not None else {}
    named: list[Path] = [("table", "rows", k, "failure") for k in rows] or [("failure",)]
    if signature.repeats is not None:
        named.append(("repeats", "failure"))
    for path, failure in [
        *zip(named, signature.failures(), strict=True),
        *((("excuses", i), f) for i, f in enumerate(signature.excuses)),
    ]:
        if failure not in known:
            near = difflib.get_close_matches(failure, sorted(known), 1)
            say(
                path,
                f"failure {failure!r} is not in the taxonomy",
                f"did you mean {near[0]!r}?" if near else "see rules/taxonomy.yaml",
            )
    benign = signature.role is Role.BENIGN
    if signature.table is None and signature.kind == "signature" and benign != (signature.failure == "none"):
        say(
            ("failure",),
            f"role {signature.role} with failure {signature.failure!r}",
            "only benign signatures name 'none'",
        )
    if signature.excuses and not benign:
        say(("excuses",), "only a benign signature excuses", "use 'supersedes', or role: benign")
    if (signature.kind == "progress") != bool(signature.event):
        say(("event",), "'event' belongs to kind: progress, and only there", "set both or neither")
    for group, patterns in (("any", signature.match.any), ("unless", signature.match.unless)):
        for index, pattern in enumerate(patterns):
            out += pattern_faults(source, ("match", group, index), pattern, signature.id)
    return out
