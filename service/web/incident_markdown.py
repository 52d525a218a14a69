# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""An incident as Markdown for a ticket or a chat, in which text from logs can't become markup."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from service.web.templating import duration, shown

_SPECIAL = re.compile(r"([\\`*_\[\]<>#|~@&]|(?<=:)//|(?<=www)\.)")
_TICKS = re.compile(r"`+")


def as_markdown(data: Mapping[str, Any]) -> str:
    return "\n".join(_lines(data)) + "\n"


def plain_text(text: Any) -> str:
    """Words in which nothing is markup, a link or a mention."""
    return _SPECIAL.sub(r"\\\1", str(shown(text)))


def code(text: Any) -> str:
    """A code span that holds any text, ticks included: the fence is longer than the longest run inside."""
    said = str(shown(text)) or " "
    fence = "`" * (max((len(run) for run in _TICKS.findall(said)), default=0) + 1)
    return f"{fence} {said} {fence}" if said[0] == "`" or said[-1] == "`" else f"{fence}{said}{fence}"


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {plain_text(data['headline'])}"
    yield ""
    whose = f"workload {code(data['workload'])}, attempt {code(data['attempt'])}"
    yield f"- **Incident** {code(data['id'])}, {plain_text(data['state'])}, {whose}"
    yield f"- **Since** {_at(data['onset_at'])}"
    yield f"- **Advice** {plain_text(data['advice'])}: {plain_text(data['because'])}"
    yield f"- **Next** {plain_text(data['next'])}"
    if data["why"]["counterfactual"]:
        yield f"- **It {plain_text(data['why']['counterfactual'])}**"
    yield ""
    yield "### Evidence"
    yield ""
    for one in data["evidence"]:
        text = f" {code(one['text'])}" if one["text"] else ""
        place = f"{one['file']}:{one['line']}"
        yield f"- {plain_text(one['role'])} {code(place)}{text}"
    for one in data["why"]["losers"]:
        place = f"{one['where']['file']}:{one['where']['line']}"
        yield f"- not the cause: {code(one['signature_id'])} at {code(place)}, lost to {plain_text(one['lost_to'])}"
    yield ""
    yield "### Timeline"
    yield ""
    yield "| station | at | after | by |"
    yield "|---|---|---|---|"
    for one in data["timeline"]:
        yield f"| {one['name']} | {_at(one['at'])} | {duration(one['after_s'])} | {plain_text(one['by'])} |"


def _at(at: datetime | None) -> str:
    return str(shown(at)) if at is not None else "–"
