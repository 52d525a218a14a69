# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Comments of a YAML text and what each belongs to: parsers drop them, so they are found between the marks of nodes."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field

import yaml

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Comments:
    """Comment lines above the first key, above a key or item, behind one, and below everything."""

    header: list[str] = field(default_factory=list)
    above: dict[Path, list[str]] = field(default_factory=dict)
    behind: dict[Path, list[str]] = field(default_factory=dict)
    footer: list[str] = field(default_factory=list)

    def count(self) -> int:
        kept = [*self.above.values(), *self.behind.values(), self.header, self.footer]
        return sum(len(lines) for lines in kept)


@dataclass(frozen=True, slots=True)
class Slot:
    """A key of a block mapping or an item of a block sequence: what a comment may belong to."""

    start: int
    line: int
    path: Path


def comments_of(text: str, root: yaml.Node) -> Comments:
    """Every comment of the text; one on a line of its own belongs to what follows, another to what its line begins.

    Errors: none. A comment inside a block scalar is text and is not found.
    """
    slots = sorted(_slots(root, ()), key=lambda s: (s.start, len(s.path)))
    starts = [slot.start for slot in slots]
    spans = sorted(_scalars(root))
    found = Comments()
    offset = 0
    for number, line in enumerate(text.splitlines(keepends=True)):
        at = _hash(line, offset, spans)
        if at is not None:
            _attach(found, slots, starts, offset + at, number, line[at:].rstrip(), is_alone=not line[:at].strip())
        offset += len(line)
    return found


def _attach(
    found: Comments, slots: list[Slot], starts: list[int], at: int, number: int, comment: str, *, is_alone: bool
) -> None:
    after = bisect_right(starts, at)
    if not is_alone and after:
        here = [s for s in slots[:after] if s.line == number] or slots[after - 1 : after]
        found.behind.setdefault(here[-1].path, []).append(comment)
    elif after == 0:
        found.header.append(comment)
    elif after == len(slots):
        found.footer.append(comment)
    else:
        following = slots[after]
        outermost = next(s for s in slots if s.start == following.start)
        found.above.setdefault(outermost.path, []).append(comment)


def _slots(node: yaml.Node, path: Path) -> Iterator[Slot]:
    if node.flow_style if isinstance(node, yaml.CollectionNode) else True:
        return
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            here = (*path, str(key.value))
            yield Slot(key.start_mark.index, key.start_mark.line, here)
            yield from _slots(value, here)
    else:
        for index, value in enumerate(node.value):
            here = (*path, index)
            yield Slot(value.start_mark.index, value.start_mark.line, here)
            yield from _slots(value, here)


def _scalars(node: yaml.Node) -> Iterator[tuple[int, int]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(key)
            yield from _scalars(value)
    elif isinstance(node, yaml.SequenceNode):
        for value in node.value:
            yield from _scalars(value)
    else:
        yield node.start_mark.index, node.end_mark.index


def _hash(line: str, offset: int, spans: list[tuple[int, int]]) -> int | None:
    """Where the comment of a line begins: a # after a blank, outside of every scalar."""
    at = line.find("#")
    while at >= 0:
        if at == 0 or line[at - 1] in " \t":
            place = bisect_right(spans, (offset + at, len(line) + offset + 1)) - 1
            if place < 0 or not spans[place][0] <= offset + at < spans[place][1]:
                return at
        at = line.find("#", at + 1)
    return None
