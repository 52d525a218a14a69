# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Pages about signatures, made from the signatures: one a pack, and a front page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from relight.types import FailureName, Role, Taxonomy
from rules.schema import Fires, Signature
from service.terminal import escaped

FRONT = "README.md"
NOTE = "<!-- Made by `relight rules docs`; change the signatures, not this page. -->"
_LONGEST_EXAMPLE = 300
_FENCE = re.compile("`{3,}")


def pages(signatures: Iterable[Signature], taxonomy: Taxonomy) -> dict[str, str]:
    """Markdown by file name; the same signatures always make the same pages.

    Errors: KeyError for a failure that the taxonomy lacks (lint refuses such sets).
    """
    packs: dict[str, list[Signature]] = {}
    for one in sorted(signatures, key=lambda s: s.id):
        packs.setdefault(one.id.partition(".")[0], []).append(one)
    made = {f"{pack}.md": "\n".join(_page(pack, held, taxonomy)) + "\n" for pack, held in packs.items()}
    return {FRONT: "\n".join(_front(packs, taxonomy)) + "\n", **made}


def _front(packs: Mapping[str, list[Signature]], taxonomy: Taxonomy) -> Iterator[str]:
    total = sum(map(len, packs.values()))
    failures = {name for held in packs.values() for one in held for name in one.failures()} - {"none"}
    yield NOTE
    yield "# Signatures"
    yield ""
    yield (
        f"{total} signatures in {len(packs)} packs name {len(failures)} of {len(taxonomy) - 1} failures. How to write "
        "one: [Writing signatures](../rules.md). What your site loads, overlays included: `relight rules show ID`."
    )
    yield ""
    yield "| pack | signatures | root | symptom | confirmation | teardown | benign | progress |"
    yield "|---|---:|---:|---:|---:|---:|---:|---:|"
    for pack, held in packs.items():
        roles = Counter("progress" if one.kind == "progress" else str(one.role) for one in held)
        counts = [roles[name] for name in ("root", "symptom", "confirmation", "teardown", "benign", "progress")]
        cells = " | ".join(str(count or "") for count in counts)
        yield f"| [{pack}]({pack}.md) | {len(held)} | {cells} |"


def _page(pack: str, held: list[Signature], taxonomy: Taxonomy) -> Iterator[str]:
    yield NOTE
    yield f"# {pack}"
    yield ""
    yield f"{len(held)} signatures. [All packs]({FRONT})"
    for one in held:
        yield ""
        yield f"## {one.id}"
        yield ""
        yield f"{_prose(one.title)}."
        yield ""
        yield from _facts(one, taxonomy)
        yield ""
        yield from _example(one.tests.fires[0])
        if one.table is not None:
            yield ""
            yield from _rows(one, taxonomy)


def _facts(one: Signature, taxonomy: Taxonomy) -> Iterator[str]:
    if one.kind == "progress":
        yield f"- progress: {one.event}"
    elif one.table is not None:
        yield f"- {one.role}, {one.severity}; the row of its `{one.table.by}` says which failure"
    elif one.failure == "none":
        yield f"- {one.role}, {one.severity}"
    else:
        failure = taxonomy[FailureName(one.failure)]
        action = one.action or failure.action
        yield f"- {one.role}, {one.severity}: `{one.failure}`, class {failure.failure_class}"
        if one.role is not Role.TEARDOWN:  # the end of something is never a verdict
            yield f"- action at first: {action}" + (" (this spelling's own)" if one.action is not None else "")
    if one.maturity != "stable":
        yield f"- {one.maturity}: recorded, decides nothing"
    yield f"- counts in {', '.join(one.streams)}; accuses {one.accuses}"
    yield f"- does not prove {_prose(one.does_not_prove)}"
    for label, names in (("excuses", one.excuses), ("goes before", one.supersedes)):
        if names:
            yield f"- {label} {', '.join(f'`{name}`' for name in names)}"
    yield f"- printed by {'; '.join(_link(source) for source in one.source)}"


def _example(case: Fires) -> Iterator[str]:
    line = escaped(case.line if len(case.line) <= _LONGEST_EXAMPLE else case.line[: _LONGEST_EXAMPLE - 3] + "...")
    fence = "`" * max([3, *(len(found) + 1 for found in _FENCE.findall(line))])
    yield f"{fence}text"
    yield line
    yield fence


def _rows(one: Signature, taxonomy: Taxonomy) -> Iterator[str]:
    assert one.table is not None
    yield f"| {one.table.by} | what | failure | class | role | action at first |"
    yield "|---|---|---|---|---|---|"
    for key, row in one.table.rows.items():
        known = taxonomy[FailureName(row.failure)]
        action = row.action or one.action or known.action
        shown = "" if row.failure == "none" else action
        cells = (key, row.title, f"`{row.failure}`", known.failure_class, row.role or one.role, shown)
        yield "| " + " | ".join(_prose(str(cell)).replace("|", "\\|") for cell in cells) + " |"


def _link(source: str) -> str:
    return f"<{source}>" if re.fullmatch(r"https?://[^\s<>]+", source) else _prose(source)


def _prose(text: str) -> str:
    """Text of a rule file in a page: no line break, and nothing that Markdown would take for markup of its own."""
    return re.sub(r"([\\<>*\[\]])", r"\\\1", escaped(" ".join(text.split()))).rstrip(".")
