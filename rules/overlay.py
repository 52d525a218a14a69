# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The overlay format: what a site changes about signatures that it does not own, and what it silences for a while."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, model_validator

from relight.types import Action, Severity, Stream
from rules.schema import Fires, Maturity, Pattern, Silent
from rules.source import Source, Value

KIND = "overlay"
LONGEST_SILENCE = timedelta(days=30)
Reason = Annotated[str, StringConstraints(min_length=3, max_length=300, strip_whitespace=True)]
Target = Annotated[str, StringConstraints(pattern=r"^[a-z0-9_]+\.[a-z0-9_]+(#[\w.-]{1,40})?$", max_length=121)]


def _moment(value: object) -> object:
    """A date is its first moment in UTC; a time without zone is refused."""
    if not isinstance(value, str):
        raise ValueError("write a date or a time in quotes, as in '2026-12-24' or '2026-12-24T18:00:00Z'")
    try:
        if len(value) == len("2026-12-24"):
            day = date.fromisoformat(value)
            return datetime(day.year, day.month, day.day, tzinfo=UTC)
        said = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("no date or time; write '2026-12-24' or '2026-12-24T18:00:00Z'") from None
    if said.tzinfo is None:
        raise ValueError("the time names no zone; end it with Z or an offset such as +01:00")
    return said.astimezone(UTC)


Moment = Annotated[datetime, BeforeValidator(_moment)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Additions(_Strict):
    """What is added to a signature: spellings, near misses that must not count, streams."""

    any: tuple[Pattern, ...] = Field((), max_length=40)
    unless: tuple[Pattern, ...] = Field((), max_length=40)
    streams: tuple[Stream, ...] = ()


class Examples(_Strict):
    """Lines that prove the additions; the signature's own examples must go on passing beside them."""

    fires: tuple[Fires, ...] = ()
    silent: tuple[Silent, ...] = ()


class Change(_Strict):
    """What one overlay changes about one signature, or about one row of a table."""

    reason: Reason
    enabled: Annotated[bool, Field(strict=True)] | None = None
    severity: Severity | None = None
    action: Action | None = None
    maturity: Maturity | None = None
    add: Additions = Additions()
    tests: Examples = Examples()

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not any(getattr(self, name) is not None for name in FIELDS) and self.add == Additions():
            raise ValueError(f"it changes nothing; give one of {', '.join(FIELDS)}, add")
        return self


FIELDS = ("enabled", "severity", "action", "maturity")
ROW_FIELDS = ("enabled", "severity", "action")


class Silence(_Strict):
    """A signature whose matches are counted and shown, and decide nothing until `until`."""

    signature: Target
    since: Moment = Field(alias="from")
    until: Moment
    reason: Reason
    author: str = Field("", max_length=120)

    @model_validator(mode="after")
    def _ends(self) -> Self:
        if self.until <= self.since:
            raise ValueError("'until' must be after 'from'")
        if self.until - self.since > LONGEST_SILENCE:
            raise ValueError(
                f"a silence lasts {LONGEST_SILENCE.days} days at most; for good, use 'changes' with enabled: false"
            )
        return self

    def holds(self, at: datetime) -> bool:
        return self.since <= at < self.until


class Overlay(_Strict):
    """A file of a site: `order` decides where two overlays set the same field, the higher wins."""

    kind: Literal["overlay"]
    order: int = Field(0, strict=True, ge=-1000, le=1000)
    changes: dict[Target, Change] = Field(default_factory=dict)
    silences: tuple[Silence, ...] = ()

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not self.changes and not self.silences:
            raise ValueError("it holds neither 'changes' nor 'silences'")
        return self


@dataclass(frozen=True, slots=True)
class ParsedOverlay:
    """A file that holds a valid overlay, with its places for later problems."""

    source: Source
    overlay: Overlay


def is_overlay(value: Value) -> bool:
    """Also one that forgot its kind or wrote it otherwise: it is then told what is wrong with an overlay."""
    if not isinstance(value, dict):
        return False
    return str(value.get("kind", "")).lower() == KIND or bool({"changes", "silences"} & value.keys())


def overlay_json_schema() -> dict[str, Any]:
    """JSON Schema (draft-07) of an overlay file, for editors."""
    schema = Overlay.model_json_schema(ref_template="#/definitions/{model}")
    schema["definitions"] = schema.pop("$defs", {})
    return {"$schema": "http://json-schema.org/draft-07/schema#", "$id": "overlay.v1.json", **schema}
