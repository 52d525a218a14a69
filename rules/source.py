# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Strict YAML: text to plain values plus the place of each, with every trap of YAML refused."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

from rules.problems import Problem

MAX_BYTES = 256_000
# The same grammar in C where the wheel brings it; its words for a fault are poorer, so faults are told by Python's.
_FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
Value = str | int | float | bool | None | list["Value"] | dict[str, "Value"]
Path = tuple[str | int, ...]

_INT = re.compile(r"^-?(0|[1-9][0-9]*)$")
_FLOAT = re.compile(r"^-?(0|[1-9][0-9]*)\.[0-9]+$")
_TRAPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^(y|Y|yes|Yes|YES|n|N|no|No|NO|on|On|ON|off|Off|OFF)$"), "YAML reads it as true or false"),
    (re.compile(r"^[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$"), "YAML reads it as a base-60 number"),
    (re.compile(r"^[-+]?0[0-7_]+$"), "YAML reads it as an octal number"),
    (re.compile(r"^[-+]?0[xob][0-9a-fA-F_]+$"), "YAML reads it as a number"),
    (re.compile(r"^[-+]?[0-9][0-9_]*_[0-9_]*$"), "YAML reads it as a number"),
    (re.compile(r"^\d{4}-\d\d?-\d\d?"), "YAML reads it as a date"),
    (re.compile(r"^(~|null|Null|NULL|)$"), "YAML reads it as nothing"),
    (
        re.compile(r"^[-+]?(\.inf|\.Inf|\.INF|\.nan|\.NaN|\.NAN)$"),
        "YAML reads it as infinity or not-a-number",
    ),
)


@dataclass(slots=True)
class Source:
    """A parsed file: its value, and line and column (from 1) of each key path."""

    file: str
    value: Value = None
    places: dict[Path, tuple[int, int]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)

    def place(self, path: Path) -> tuple[int, int]:
        """The nearest known place at or above `path`."""
        for cut in range(len(path), -1, -1):
            if path[:cut] in self.places:
                return self.places[path[:cut]]
        return (1, 1)

    def problem(self, path: Path, what: str, fix: str, signature: str = "-") -> Problem:
        line, column = self.place(path)
        key = ".".join(str(p) for p in path) or "-"
        return Problem(file=self.file, line=line, column=column, signature=signature, key=key, what=what, fix=fix)


def read_source(file: str, text: str) -> Source:
    """Parse one document; faults are collected in `problems`, nothing is raised.

    Errors: none; a file that cannot be parsed has `value` None and at least one problem.
    """
    source = Source(file)
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        source.problems.append(source.problem((), f"file is larger than {MAX_BYTES} bytes", "split it"))
        return source
    try:
        return _parsed(source, text, _FAST)
    except yaml.YAMLError:
        source = Source(file)
    try:
        return _parsed(source, text, yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        place = error.problem_mark or error.context_mark
        if place is not None:
            source.places[()] = (place.line + 1, place.column + 1)
        what = " ".join(str(error.problem or error).split())
        fix = _syntax_fix(what)
        source.problems.append(source.problem((), what, fix))
        return source
    except yaml.YAMLError as error:
        source.problems.append(source.problem((), " ".join(str(error).split()), "save the file as plain UTF-8 YAML"))
        return source


def _parsed(source: Source, text: str, loader: type[yaml.SafeLoader]) -> Source:
    """Errors: yaml.YAMLError with the place, if the text is no YAML."""
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            mark = event.start_mark
            if mark is not None:
                source.places[()] = (mark.line + 1, mark.column + 1)
            source.problems.append(source.problem((), "anchors and aliases are refused", "write the value out"))
            return source
    node = yaml.compose(text, Loader=loader)
    if node is None:
        source.problems.append(source.problem((), "the file is empty", "see `relight rules new`"))
        return source
    source.value = _build(node, (), source)
    return source


def _syntax_fix(what: str) -> str:
    if "escape" in what:
        return "put regular expressions in single quotes, where a backslash is just a backslash"
    if "mapping values" in what or "expected <block end>" in what:
        return "check the indentation, and quote values that hold ': '"
    return "mend the YAML syntax here"


def _build(node: yaml.Node, path: Path, source: Source) -> Value:
    source.places[path] = (node.start_mark.line + 1, node.start_mark.column + 1)
    if isinstance(node, yaml.MappingNode):
        return dict(_pairs(node, path, source))
    if isinstance(node, yaml.SequenceNode):
        return [_build(child, (*path, index), source) for index, child in enumerate(node.value)]
    return _scalar(node, path, source)


def _pairs(node: yaml.MappingNode, path: Path, source: Source) -> Iterator[tuple[str, Value]]:
    seen: set[str] = set()
    for key_node, value_node in node.value:
        key = str(key_node.value)
        here = (*path, key)
        source.places[here] = (key_node.start_mark.line + 1, key_node.start_mark.column + 1)
        if key in seen:
            source.problems.append(source.problem(here, f"key {key!r} stands twice", "remove one of them"))
            continue
        seen.add(key)
        yield key, _build(value_node, here, source)


def _scalar(node: yaml.Node, path: Path, source: Source) -> Value:
    text = str(node.value)
    if getattr(node, "style", None) not in (None, ""):  # plain scalars: None in Python, "" in C
        return text
    for pattern, why in _TRAPS:
        if pattern.match(text):
            source.problems.append(source.problem(path, f"unquoted {text!r}: {why}", f"write '{text}'"))
            return text
    if text in {"true", "false"}:
        return text == "true"
    if _INT.match(text):
        return int(text)
    if _FLOAT.match(text):
        return float(text)
    return text
