# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Where each field of a loaded signature comes from: its own file, or the line of an overlay that changed it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from rules.checked import Quiet, Touch
from rules.lint import LintReport
from rules.schema import Signature
from rules.source import Source, read_source
from service.terminal import escaped

_PLAIN = (
    "title", "kind", "failure", "role", "maturity", "severity", "action", "streams", "accuses", "excuses",
    "excuses_when", "supersedes", "event", "does_not_prove", "source",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class FieldOrigin:
    """One field as it is in force; `before` is what the signature's own file says, where an overlay changed it."""

    field: str
    value: str
    file: str
    line: int
    before: str = ""
    reason: str = ""
    note: str = ""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else "default"
        was = f", was {self.before}" if self.before else ""
        why = f": {self.reason}" if self.reason else ""
        return escaped(f"{self.field:<16} {self.value}   [{place}{was}{self.note}]{why}")


def state_of(signature: Signature, touches: Sequence[Touch], silences: Sequence[Quiet], at: datetime) -> str:
    """In a word or two, whether it is asked and whether it may decide."""
    off = [t for t in touches if t.target == signature.id and t.field == "enabled" and t.is_in_force]
    if off and off[0].value == "false":
        return f"disabled by {off[0].file}:{off[0].line} ({off[0].reason})"
    if signature.maturity == "deprecated":
        return "deprecated: not loaded"
    quiet = [q for q in silences if q.target == signature.id and q.holds(at)]
    if quiet:
        return f"silenced {max(quiet, key=lambda q: q.until)}"
    if signature.maturity != "stable":
        return f"{signature.maturity}: recorded, decides nothing"
    return "in force"


def origins(signature: Signature, report: LintReport, file: str, text: str) -> Iterator[FieldOrigin]:
    """Every field that is set, in the format's order; what an overlay overruled is told too."""
    own = read_source(file, text)
    touches = [t for t in report.touches if t.signature == signature.id]
    for name in _PLAIN:
        value = _shown(getattr(signature, name))
        touched = [t for t in touches if t.field == name and t.target == signature.id]
        setting = next((t for t in touched if t.is_in_force and name != "streams"), None)
        if setting is not None:
            yield FieldOrigin(name, value, setting.file, setting.line, setting.before, setting.reason)
        elif value or (name,) in own.places:
            yield FieldOrigin(name, value, file, own.places[name,][0] if (name,) in own.places else 0)
        yield from (_told(t) for t in touched if t is not setting)
    yield from _patterns(signature, own, touches)
    for touch in touches:
        if touch.field == "enabled" or "#" in touch.target:
            yield _told(touch)
    for quiet in (q for q in report.silences if q.signature == signature.id):
        term = f"{quiet.target} from {quiet.since:%Y-%m-%dT%H:%MZ} until {quiet.until:%Y-%m-%dT%H:%MZ}"
        yield FieldOrigin("silence", term, quiet.file, quiet.line, reason=quiet.reason)


def _patterns(signature: Signature, own: Source, touches: Sequence[Touch]) -> Iterator[FieldOrigin]:
    for group in ("any", "unless"):
        added = {t.value: t for t in touches if t.field == group}
        for index, pattern in enumerate(getattr(signature.match, group)):
            shown = pattern.regex or pattern.text or ""
            path = ("match", group, index)
            if path in own.places:
                twin = added.get(shown)
                note = f", also in {twin.file}:{twin.line}" if twin is not None else ""
                yield FieldOrigin(f"match.{group}.{index}", shown, own.file, own.places[path][0], note=note)
            elif shown in added:
                one = added[shown]
                yield FieldOrigin(
                    f"match.{group}.{index}", shown, one.file, one.line, reason=one.reason, note=", added"
                )


def _told(touch: Touch) -> FieldOrigin:
    where = touch.field if touch.target == touch.signature else f"{touch.target} {touch.field}"
    note = "" if touch.is_in_force else ", " + (touch.before if touch.field in _LISTS else "overruled")
    before = "" if touch.field in _LISTS or not touch.is_in_force else touch.before
    return FieldOrigin(where, touch.value, touch.file, touch.line, before, touch.reason, note)


_LISTS = ("any", "unless", "streams")


def origins_told(state: str, found: Sequence[FieldOrigin]) -> dict[str, Any]:
    return {"state": state, "fields": [asdict(one) for one in found]}


def _shown(value: object) -> str:
    if value is None or value == []:
        return ""
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return str(value)
