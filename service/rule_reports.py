# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rules as people read them: problems in three formats, one signature explained, a new one to fill in."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Literal

from relight.types import Stream
from rules.formatting import formatted
from rules.problems import Problem
from rules.schema import Row, Signature
from rules.source import read_source
from service.terminal import escaped

Format = Literal["text", "json", "github"]
_ID_LINE = re.compile(r"^id:\s*['\"]?([a-z0-9_]+\.[a-z0-9_]+)", re.MULTILINE)
_OVERLAY_LINE = re.compile(r"^kind:\s*['\"]?overlay\b", re.MULTILINE)


def problem_lines(problems: Iterable[Problem], form: Format) -> Iterator[str]:
    """Problems as text, as one JSON document, or as annotations of a pull request."""
    match form:
        case "text":
            yield from (escaped(str(p)) for p in problems)
        case "github":
            yield from (_annotation(p) for p in problems)
        case "json":
            yield json.dumps([_fields(p) for p in problems], indent=2)


def _fields(problem: Problem) -> dict[str, str | int]:
    return {key: getattr(problem, key) for key in ("file", "line", "column", "signature", "key", "what", "fix")}


def _annotation(problem: Problem) -> str:
    title = _property(f"{problem.signature} {problem.key}")
    place = f"file={_property(problem.file)},line={problem.line},col={problem.column}"
    return f"::error {place},title={title}::" + _data(f"{problem.what}, {problem.fix}")


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def with_related(asked: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """The files asked about, and what their checks need: same ids, superseded ones, the targets of overlays.

    An overlay needs everything: what it changes, and the other overlays, which it may contradict.
    """
    if any(_OVERLAY_LINE.search(text) for text in asked.values()):
        return {**others, **asked}
    needed: set[str] = set()
    for file, text in asked.items():
        value = read_source(file, text).value
        if isinstance(value, dict):
            rivals = value.get("supersedes")
            needed.update(str(name) for name in [value.get("id"), *(rivals if isinstance(rivals, list) else [])])
    related = {file: text for file, text in others.items() if needed & set(_ID_LINE.findall(text))}
    return {**related, **asked}


def signature_names(texts: Mapping[str, str]) -> dict[str, str]:
    """Signature id to the file it stands in."""
    return {name: file for file, text in texts.items() for name in _ID_LINE.findall(text)}


def explanation(signature: Signature, file: str, code: str = "") -> Iterator[str]:
    """What a signature means, what it does not prove, and where its lines come from."""
    yield f"{signature.id}: {signature.title}"
    yield f"  file            {file}"
    if signature.table is None:
        yield f"  failure         {signature.failure}"
    yield f"  role, severity  {signature.role}, {signature.severity}"
    yield f"  maturity        {signature.maturity}" + (
        "" if signature.maturity == "stable" else " (does not move a recommendation)"
    )
    if signature.kind == "progress":
        yield f"  progress        {signature.event}"
    yield f"  counts in       {', '.join(signature.streams)}"
    yield f"  accuses         {signature.accuses}"
    if signature.action is not None:
        yield f"  action          {signature.action}"
    for label, names in (("excuses", signature.excuses), ("supersedes", signature.supersedes)):
        if names:
            yield f"  {label:<15} {', '.join(names)}"
    yield f"  does not prove  {signature.does_not_prove}"
    yield from _patterns(signature)
    yield from (f"  source          {source}" for source in signature.source)
    if signature.table is not None:
        rows = {k: r for k, r in signature.table.rows.items() if code in ("", k)}
        yield f"  rows by {signature.table.by}: {len(rows)}"
        for key, row in rows.items():
            yield from _row(key, row)


def _patterns(signature: Signature) -> Iterator[str]:
    for label, patterns in (("matches", signature.match.any), ("unless", signature.match.unless)):
        for pattern in patterns:
            kind = "regex" if pattern.regex is not None else "text "
            yield f"  {label:<15} {kind} {escaped(pattern.regex or pattern.text or '')}"
            if pattern.since:
                yield f"  {'':<15}       printed by {pattern.since}"


def _row(key: str, row: Row) -> Iterator[str]:
    facts = [row.failure, *(str(f) for f in (row.role, row.severity, row.action) if f is not None)]
    yield f"    {key:>6}  {row.title} [{', '.join(facts)}]"
    if row.does_not_prove:
        yield f"    {'':>6}  does not prove: {row.does_not_prove}"
    if row.dissent:
        yield f"    {'':>6}  dissent: {row.dissent}"


def new_signature(name: str, failure: str, stream: Stream, line: str) -> str:
    """A signature file to fill in: complete enough to pass lint once its two examples are real."""
    draft = f"""\
# yaml-language-server: $schema=../../schema/signature.v1.json
id: {name}
title: {_quoted(name.rpartition(".")[2].replace("_", " ").capitalize())}
failure: {failure}                  # an entry of rules/taxonomy.yaml
role: symptom                    # root | symptom | confirmation | teardown | benign
maturity: test                   # only stable moves a recommendation
severity: error                  # info | warning | error | critical
streams: [{stream}]
source: ['EDIT: the code, manual or thread where the line is printed']
does_not_prove: 'EDIT: what a match must not be taken for'
accuses: none                    # writer (the line''s host) | captured | none
match:
  any:
    - text: {_quoted(_words(line))}   # or regex: 'RE2 with (?P<rank>\\d+)'
tests:
  fires:
    - line: {_quoted(line)}
  silent:
    - line: 'EDIT: a near miss that must not match'
""".replace("line''s", "line's")
    return formatted(name, draft)


def _words(line: str) -> str:
    """The longest stretch without digits: what the next such line will share with this one."""
    stretches = [part.strip() for part in re.split(r"\S*\d\S*", line)]
    return max(stretches, key=len) if max(map(len, stretches)) >= 8 else line.strip()


def _quoted(text: str) -> str:
    return "'" + escaped(text).replace("'", "''") + "'"
