# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From one text to a signature or an overlay, with every fault of its form in words that say how to mend it."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from rules.overlay import Overlay, ParsedOverlay, is_overlay
from rules.schema import Signature
from rules.source import Path, Source

Form = TypeVar("Form", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A file that holds a valid signature, with its places for later problems."""

    source: Source
    signature: Signature


def read_file(source: Source) -> Parsed | ParsedOverlay | None:
    """What a parsed text holds; None where it is faulty, and then `source.problems` says why."""
    if source.value is None:
        return None
    if not isinstance(source.value, dict):
        source.problems.append(source.problem((), "a signature is a mapping", "see `relight rules new`"))
        return None
    if is_overlay(source.value):
        overlay = _valid(source, Overlay, OVERLAY_KEYS, "-")
        return None if overlay is None or source.problems else ParsedOverlay(source, overlay)
    signature = _valid(source, Signature, _KEYS, str(source.value.get("id", "-")))
    return None if signature is None or source.problems else Parsed(source, signature)


def _valid(source: Source, form: type[Form], keys: tuple[str, ...], name: str) -> Form | None:
    try:
        return form.model_validate(source.value)
    except ValidationError as error:
        for fault in error.errors():
            path = tuple(p for p in fault["loc"] if not (isinstance(p, str) and p.startswith("function-")))
            what, fix = _in_words(fault["type"], str(fault["msg"]), path, fault.get("input"), keys)
            source.problems.append(source.problem(path, what, fix, name if name != "-" else _target(path)))
        return None


def _target(path: Path) -> str:
    """The signature that a key of an overlay is about."""
    return str(path[1]) if len(path) > 1 and path[0] == "changes" else "-"


def _in_words(kind: str, message: str, path: Path, value: object, keys: tuple[str, ...]) -> tuple[str, str]:
    key = str(path[-1]) if path else "-"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(key, keys, 1)
        return f"unknown key {key!r}", f"did you mean {near[0]!r}?" if near else _REMOVE.get(keys, "remove it")
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
OVERLAY_KEYS: tuple[str, ...] = (
    "kind", "order", "changes", "silences", "reason", "enabled", "severity", "action", "maturity", "add", "tests",
    "any", "unless", "streams", "regex", "text", "since", "fires", "silent", "line", "captures", "signature", "from",
    "until", "author",
)  # fmt: skip
_REMOVE = {
    OVERLAY_KEYS: "an overlay sets enabled, severity, action, maturity and adds; for more write a signature that "
    "supersedes this one"
}
_MISSING = {
    "does_not_prove": "say what a match must not be taken for",
    "tests": "add tests.fires and tests.silent: a signature loads only if its examples pass",
    "silent": "add at least one near miss that must not match",
    "fires": "add at least one line that must match",
    "source": "name the code or document that prints the line",
    "reason": "say why, for whoever reads it next year",
    "from": "say when the silence begins, as in from: '2026-12-24'",
    "until": "say when the silence ends: one without an end is a change with enabled: false",
    "streams": "list the streams it may be seen in, e.g. [application]",
}
