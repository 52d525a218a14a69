# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The one way to write a rule file: keys in the format's order, one quoting, one indentation, every comment kept."""

from __future__ import annotations

from collections.abc import Iterator

import yaml

from rules.comments import Comments, Path, comments_of
from rules.overlay import is_overlay
from rules.problems import RulesInvalid
from rules.source import read_source

WIDTH = 120
_SIGNATURE = (
    "id", "kind", "title", "failure", "role", "maturity", "severity", "streams", "source", "does_not_prove", "accuses",
    "action", "repeats", "excuses", "excuses_when", "event", "match", "table", "supersedes", "tests",
)  # fmt: skip
_OVERLAY = ("kind", "order", "changes", "silences")
_INNER = (
    "signature", "from", "until", "reason", "author", "enabled", "severity", "action", "maturity", "add", "tests",
    "any", "unless", "streams", "regex", "text", "since", "by", "rows", "title", "failure", "role", "does_not_prove",
    "dissent", "at_least", "fires", "silent", "line", "captures",
)  # fmt: skip
_ROW = ("title", "failure", "role", "severity", "action", "does_not_prove", "dissent")
# Text that stands for log lines: quoted always, so that an edit never has to add quotes.
_QUOTED = frozenset({"regex", "text", "line", "since", "from", "until"})
_FLOW = frozenset({"streams", "excuses", "supersedes", "captures", "repeats"})
_IN_FLOW = frozenset(",[]{}")


class CommentsLost(RuntimeError):
    """Formatting would drop a comment: a fault of the formatter, and the file stays as it was."""


def formatted(file: str, text: str) -> str:
    """The same rule file, written the one way; formatting twice changes nothing.

    Errors: RulesInvalid for a text that is not strict YAML; CommentsLost if a comment could not be kept.
    """
    source = read_source(file, text)
    if source.problems:
        raise RulesInvalid(tuple(source.problems))
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise RulesInvalid((source.problem((), "a rule file is a mapping", "see `relight rules new`"),))
    comments = comments_of(text, root)
    order = _OVERLAY if is_overlay(source.value) else _SIGNATURE
    lines = [*comments.header, *_mapping(root, (), 0, order, comments), *comments.footer]
    out = "\n".join(lines) + "\n"
    again = read_source(file, out)
    written = yaml.compose(out, Loader=yaml.SafeLoader)
    kept = comments_of(out, written).count() if written is not None else 0
    if again.value != source.value or kept != comments.count():
        raise CommentsLost(f"{file}: formatting would change what it says or lose a comment; please report it")
    return out


def _mapping(
    node: yaml.MappingNode, path: Path, indent: int, order: tuple[str, ...], comments: Comments
) -> Iterator[str]:
    ranks = {key: rank for rank, key in enumerate(order)}
    pairs = sorted(node.value, key=lambda pair: ranks.get(str(pair[0].value), len(ranks)))
    for key, value in pairs:
        here = (*path, str(key.value))
        yield from _slot(here, f"{_scalar(key, '')}:", value, " " * indent, comments)


def _slot(here: Path, head: str, value: yaml.Node, margin: str, comments: Comments) -> Iterator[str]:
    """One key or item with its comments; several behind one go above it, each on its line."""
    behind = comments.behind.get(here, [])
    above = comments.above.get(here, []) + (behind if len(behind) > 1 else [])
    yield from (f"{margin}{comment}" for comment in above)
    tail = f"  {behind[0]}" if len(behind) == 1 else ""
    short = _one_line(value, here, len(margin) + len(head) + 1)
    if short is not None:
        yield f"{margin}{head} {short}{tail}"
        return
    if head == "-":
        inner = [*_block(value, here, len(margin) + 2, comments)]
        first = next((n for n, line in enumerate(inner) if not line.lstrip().startswith("#")), 0)
        yield from inner[:first]
        yield f"{margin}- {inner[first].lstrip()}{tail}"
        yield from inner[first + 1 :]
    else:
        yield f"{margin}{head}{tail}"
        yield from _block(value, here, len(margin) + 2, comments)


def _block(node: yaml.Node, path: Path, indent: int, comments: Comments) -> Iterator[str]:
    if isinstance(node, yaml.MappingNode):
        is_row = len(path) >= 2 and path[-2] == "rows"
        order = _ROW if is_row else () if path[-1] in ("rows", "changes", "captures") else _INNER
        yield from _mapping(node, path, indent, order, comments)
        return
    for index, item in enumerate(node.value):
        yield from _slot((*path, index), "-", item, " " * indent, comments)


def _one_line(node: yaml.Node, path: Path, used: int) -> str | None:
    """The node on the line of its key, if it is short and of a kind that reads well so."""
    key = next((str(part) for part in reversed(path) if isinstance(part, str)), "")
    if isinstance(node, yaml.ScalarNode):
        return _scalar(node, key)
    if not node.value:
        return "{}" if isinstance(node, yaml.MappingNode) else "[]"
    inner = node.value if isinstance(node, yaml.SequenceNode) else [value for _, value in node.value]
    if not all(isinstance(item, yaml.ScalarNode) for item in inner):
        return None
    if key not in _FLOW and not getattr(node, "flow_style", False):
        return None
    if key in ("any", "unless", "fires", "silent"):  # a spelling or an example a line: diffs name it
        return None
    shown = _flow(node, key)
    return shown if used + len(shown) <= WIDTH else None


def _flow(node: yaml.Node, key: str) -> str:
    if isinstance(node, yaml.SequenceNode):
        return f"[{', '.join(_flow(item, key) for item in node.value)}]"
    if isinstance(node, yaml.MappingNode):
        pairs = (f"{_scalar(k, '', in_flow=True)}: {_flow(v, str(k.value))}" for k, v in node.value)
        return f"{{{', '.join(pairs)}}}"
    return _scalar(node, key, in_flow=True)


def _scalar(node: yaml.Node, key: str, *, in_flow: bool = False) -> str:
    """Plain stays plain where it may, quotes are single ones, and what has no printed form is escaped."""
    text = str(node.value)
    if not text.isprintable():
        return str(yaml.dump(text, default_style='"', width=10**6, allow_unicode=True)).rstrip("\n")
    may_be_plain = (
        getattr(node, "style", None) is None and key not in _QUOTED and not (in_flow and _IN_FLOW & set(text))
    )
    return text if may_be_plain else "'" + text.replace("'", "''") + "'"
