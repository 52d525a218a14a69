# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Templates in which nothing is printed raw: markup is escaped, and so is what could hide or reorder text."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from service.terminal import escaped

TEMPLATES = Path(__file__).parent / "templates"
# What `escaped` leaves and a browser would still obey or hide: Arabic letter mark, soft hyphen, invisible
# operators, interlinear annotations, tags, and the fillers that look like nothing.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180e\u2060-\u2065\u206a-\u206f\u3164\ufff9-\ufffb\U000e0000-\U000e007f]"
)

_SPELLED = ("GPU", "CUDA", "NCCL", "OOM", "PCIe", "NVLink", "NVSwitch", "IB", "ECC", "DBE", "SBE", "CPU", "RPC", "GSP",
            "HBM", "NFS", "NUMA", "SDC", "XID")  # fmt: skip
_INITIALS = {one.lower(): one for one in _SPELLED}
_NAME = re.compile(r"[A-Za-z0-9]+(_[A-Za-z0-9]+)*")


def shown(value: Any) -> Any:
    """What a template prints: text without anything that drives or deceives a display, times spelled out."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, datetime):
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return _HIDDEN.sub(lambda found: f"\\u{ord(found[0]):04x}", escaped(value)) if isinstance(value, str) else value


def lines(text: str) -> Markup:
    """Text of many lines for a `<pre>`, each line made harmless by itself."""
    return Markup("\n").join(escape(shown(line)) for line in text.splitlines())


def marked(text: str, span: tuple[int, int] | list[int]) -> Markup:
    """A log line with the matched part in `<mark>`; the span counts bytes of the line, as RE2 does."""
    raw = text.encode("utf-8", "surrogatepass")
    begin, end = max(span[0], 0), min(span[1], len(raw))
    if not begin < end:
        return escape(shown(text))
    before, inside, after = (
        escape(shown(part.decode("utf-8", "replace"))) for part in (raw[:begin], raw[begin:end], raw[end:])
    )
    return before + Markup("<mark>") + inside + Markup("</mark>") + after


def moment(at: datetime | None) -> Markup:
    """A time in UTC that the page's script completes with local and relative time."""
    if at is None:
        return Markup('<span class="none">–</span>')
    utc = at.astimezone(UTC)
    return Markup('<time datetime="{}">{}</time>').format(utc.isoformat(timespec="milliseconds"), shown(utc))


def duration(seconds: float | timedelta | None) -> str:
    """As people say it: 4.2 s, 3 min 10 s, 2 h 5 min, 3 d 4 h."""
    if seconds is None:
        return "–"
    left = seconds.total_seconds() if isinstance(seconds, timedelta) else float(seconds)
    if left < 0:
        return "–"
    if left < 60:
        return f"{left:.1f} s" if left % 1 else f"{left:.0f} s"
    for size, name, small, small_name in ((86_400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if left >= size:
            rest = int(left % size // small)
            return f"{int(left // size)} {name}" + (f" {rest} {small_name}" if rest else "")
    return "–"


def hours(value: float) -> str:
    return f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def json_lines(value: Any) -> Markup:
    """A JSON value, indented, each line made harmless."""
    return lines(json.dumps(value, indent=2, ensure_ascii=False, default=str))


def words(name: str) -> str:
    """A name of ours as words: `gpu_fell_off_bus` is "GPU fell off bus"; anything else stays as it is."""
    if not _NAME.fullmatch(name):
        return name
    return " ".join(_INITIALS.get(part, part) for part in name.lower().split("_"))


def address(root: str, path: str, **query: Any) -> str:
    """A link of the console; empty parameters are left out, so equal states have equal addresses."""
    kept = {name: value for name, value in query.items() if value not in (None, "", False)}
    plain = {name: ("1" if value is True else str(value)) for name, value in kept.items()}
    return root + path + ("?" + urlencode(plain) if plain else "")


def environment() -> Environment:
    env = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Any] = {
        "lines": lines,
        "tojson_lines": json_lines,
        "moment": moment,
        "duration": duration,
        "hours": hours,
        "words": words,
        "segment": lambda text: quote(str(text), safe=""),
    }
    env.filters.update(filters)
    env.globals["marked"] = marked
    return env
