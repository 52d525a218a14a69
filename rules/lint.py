# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From rule texts to a loadable set: parse, validate, compile, run the inline tests, report every problem."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import re2
from pydantic import ValidationError

from relight.types import Role
from rules.match import Hit, RuleSet, compile_pattern
from rules.problems import Problem, RulesInvalid
from rules.schema import CAPTURES, Fires, Pattern, Signature
from rules.source import Path, Source, read_source

MAX_SIGNATURES = 2_000
_LOOKAROUND = re.compile(r"\(\?(=|!|<=|<!)")
_GROUP_NAME = re.compile(r"\(\?P<(\w+)>")
_BACKREFERENCE = re.compile(r"(?<!\\)\\[1-9]|\(\?P=")


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file that holds a valid signature, with its places for later problems."""

    source: Source
    signature: Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class LintReport:
    """Signatures that may be loaded, and every problem of those that may not."""

    signatures: tuple[Signature, ...]
    problems: tuple[Problem, ...]
    files: int


def lint(files: Mapping[str, str], failures: Iterable[str]) -> LintReport:
    """Check a whole rule set.

    Shapes: `files` maps file name to text; `failures` are the names of the taxonomy.
    Errors: none; problems are returned, all of them, sorted by place.
    """
    known = frozenset(failures)
    problems: list[Problem] = []
    parsed: list[Parsed] = []
    for file, text in sorted(files.items()):
        source = read_source(file, text)
        signature = _validate(source)
        problems += source.problems
        if signature is not None and not source.problems:
            parsed.append(Parsed(source, signature))
    problems += _duplicates(parsed)
    for one in parsed:
        problems += _check(one, known)
    problems += _references(parsed)
    bad = {p.file for p in problems}
    good = [p for p in parsed if p.source.file not in bad]
    if len(good) > MAX_SIGNATURES:
        first = good[0].source
        problems.append(first.problem((), f"more than {MAX_SIGNATURES} signatures", "split the rule set"))
    if good:
        tested = _run_tests(good)
        problems += tested
        bad = {p.file for p in tested}
        good = [p for p in good if p.source.file not in bad]
    return LintReport(signatures=tuple(p.signature for p in good), problems=tuple(sorted(problems)), files=len(files))


def load(files: Mapping[str, str], failures: Iterable[str]) -> tuple[RuleSet, RuleSet]:
    """Compile a faultless rule set into (signatures, progress signatures).

    Errors: RulesInvalid with every problem if there is any: a set loads whole or not at all.
    """
    report = lint(files, failures)
    if report.problems:
        raise RulesInvalid(report.problems)
    loaded = [s for s in report.signatures if s.maturity != "deprecated"]
    return (
        RuleSet(s for s in loaded if s.kind == "signature"),
        RuleSet(s for s in loaded if s.kind == "progress"),
    )


def _validate(source: Source) -> Signature | None:
    if source.value is None:
        return None
    if not isinstance(source.value, dict):
        source.problems.append(source.problem((), "a signature is a mapping", "see `relight rules new`"))
        return None
    name = str(source.value.get("id", "-"))
    try:
        return Signature.model_validate(source.value)
    except ValidationError as error:
        for fault in error.errors():
            path = tuple(p for p in fault["loc"] if not (isinstance(p, str) and p.startswith("function-")))
            what, fix = _in_words(fault["type"], str(fault["msg"]), path, fault.get("input"))
            source.problems.append(source.problem(path, what, fix, name))
        return None


def _in_words(kind: str, message: str, path: Path, value: object) -> tuple[str, str]:
    key = str(path[-1]) if path else "-"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(key, _KEYS, 1)
        return f"unknown key {key!r}", f"did you mean {near[0]!r}?" if near else "remove it"
    if kind == "missing":
        return f"{key!r} is missing", _MISSING.get(key, "add it")
    if kind == "string_type":
        return f"expected text, got {value!r}", f"write '{value}'"
    if kind == "enum" or kind == "literal_error":
        return f"{value!r} is not allowed", message.replace("Input should be ", "use ")
    return message.removeprefix("Value error, ") + f", got {value!r}"[:120], "see docs/rules.md"


_KEYS = (
    "id",
    "kind",
    "title",
    "failure",
    "role",
    "maturity",
    "severity",
    "streams",
    "source",
    "does_not_prove",
    "match",
    "table",
    "action",
    "accuses",
    "excuses",
    "excuses_when",
    "repeats",
    "at_least",
    "supersedes",
    "event",
    "tests",
    "any",
    "unless",
    "regex",
    "text",
    "since",
    "fires",
    "silent",
    "line",
    "captures",
    "by",
    "rows",
    "dissent",
)
_MISSING = {
    "does_not_prove": "say what a match must not be taken for",
    "tests": "add tests.fires and tests.silent: a signature loads only if its examples pass",
    "silent": "add at least one near miss that must not match",
    "fires": "add at least one line that must match",
    "source": "name the code or document that prints the line",
    "streams": "list the streams it may be seen in, e.g. [application]",
}


def _duplicates(parsed: list[Parsed]) -> list[Problem]:
    first: dict[str, str] = {}
    out: list[Problem] = []
    for one in parsed:
        name = one.signature.id
        if name in first:
            what = f"id {name!r} is also used in {first[name]}"
            out.append(one.source.problem(("id",), what, "choose another id", name))
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
            out += _check_pattern(one, ("match", group, index), pattern)
    return out


def _check_pattern(one: Parsed, path: Path, pattern: Pattern) -> list[Problem]:
    if pattern.regex is None:
        return []
    where, regex, name = (*path, "regex"), pattern.regex, one.signature.id
    if _LOOKAROUND.search(regex):
        fix = "match the longer text and put what must be absent under 'unless'"
        return [one.source.problem(where, "look-around is not possible in RE2", fix, name)]
    if _BACKREFERENCE.search(regex):
        return [one.source.problem(where, "back-references are not possible in RE2", "write the text out", name)]
    try:
        compiled = compile_pattern(pattern)
    except re2.error as error:
        words = error.args[0]
        what = words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)
        return [one.source.problem(where, f"RE2 refuses it: {what}", "mend the expression", name)]
    if compiled.search(b"") is not None:
        return [one.source.problem(where, "it matches an empty line", "require at least one literal word", name)]
    names = _GROUP_NAME.findall(regex)
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        fix = "RE2 would capture the first only: write one pattern for each spelling"
        return [one.source.problem(where, f"group {twice!r} stands twice", fix, name)]
    out = []
    for raw in compiled.groupindex:
        group = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
        if group not in CAPTURES:
            near = difflib.get_close_matches(group, sorted(CAPTURES), 1)
            fix = f"did you mean {near[0]!r}?" if near else "see the list of captures in docs/rules.md"
            out.append(one.source.problem(where, f"unknown capture {group!r}", fix, name))
    return out


def _run_tests(parsed: list[Parsed]) -> list[Problem]:
    out: list[Problem] = []
    for one in parsed:
        alone = RuleSet([one.signature])
        stream = one.signature.streams[0]
        for index, case in enumerate(one.signature.tests.fires):
            hits = alone.match_line(case.line.encode(), stream)
            fault = _fires_fault(hits, case)
            if fault:
                what, fix = fault
                out.append(one.source.problem(("tests", "fires", index), what, fix, one.signature.id))
        for index, near in enumerate(one.signature.tests.silent):
            if alone.match_line(near.line.encode(), stream):
                out.append(
                    one.source.problem(
                        ("tests", "silent", index),
                        "it matches, but must not",
                        "narrow the pattern or add 'unless'",
                        one.signature.id,
                    )
                )
    return out


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
