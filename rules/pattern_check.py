# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Is a pattern one that RE2 takes, that can't match nothing, and whose captures are known?"""

from __future__ import annotations

import difflib
import re

import re2

from rules.match import compile_pattern
from rules.problems import Problem
from rules.schema import CAPTURES, Pattern
from rules.source import Path, Source

_LOOKAROUND = re.compile(r"\(\?(=|!|<=|<!)")
_GROUP_NAME = re.compile(r"\(\?P<(\w+)>")
_BACKREFERENCE = re.compile(r"(?<!\\)\\[1-9]|\(\?P=")


def pattern_faults(source: Source, path: Path, pattern: Pattern, name: str) -> list[Problem]:
    """Every fault of one spelling; `name` is the signature it belongs to."""
    if pattern.regex is None:
        return []
    where, regex = (*path, "regex"), pattern.regex
    if _LOOKAROUND.search(regex):
        fix = "match the longer text and put what must be absent under 'unless'"
        return [source.problem(where, "look-around is not possible in RE2", fix, name)]
    if _BACKREFERENCE.search(regex):
        return [source.problem(where, "back-references are not possible in RE2", "write the text out", name)]
    try:
        compiled = compile_pattern(pattern)
    except re2.error as error:
        words = error.args[0]
        what = words.decode("utf-8", "replace") if isinstance(words, bytes) else str(words)
        return [source.problem(where, f"RE2 refuses it: {what}", "mend the expression", name)]
    if compiled.search(b"") is not None:
        return [source.problem(where, "it matches an empty line", "require at least one literal word", name)]
    names = _GROUP_NAME.findall(regex)
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        fix = "RE2 would capture the first only: write one pattern for each spelling"
        return [source.problem(where, f"group {twice!r} stands twice", fix, name)]
    out = []
    for raw in compiled.groupindex:
        group = raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)
        if group not in CAPTURES:
            near = difflib.get_close_matches(group, sorted(CAPTURES), 1)
            fix = f"did you mean {near[0]!r}?" if near else "see the list of captures in docs/rules.md"
            out.append(source.problem(where, f"unknown capture {group!r}", fix, name))
    return out
