# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The types every wire model is made of: names, moments, pages, and entity tags."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Generic, TypeVar

from fastapi import Path, Query, Request, Response
from pydantic import (
    AfterValidator,
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    model_validator,
)

from relight.shape import MOST
from service.api.problems import Problem
from service.terminal import escaped

Item = TypeVar("Item")
Model = TypeVar("Model", bound=BaseModel)

_HALF = re.compile("[\ud800-\udfff]")
_DATE = re.compile(r"\d{4}-\d\d-\d\d[Tt ]")
MAX_PAGE = 250
DEFAULT_PAGE = 100


def shown(at: datetime) -> str:
    """RFC 3339 in UTC with milliseconds."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _spelled_out(at: Any) -> Any:
    """A bare number would be taken for an epoch in a unit that nobody named."""
    if not isinstance(at, datetime) and not (isinstance(at, str) and _DATE.match(at)):
        raise ValueError(f"need RFC 3339 with a zone, got {at!r}")
    return at


Moment = Annotated[
    AwareDatetime,
    BeforeValidator(_spelled_out),
    AfterValidator(lambda at: at.astimezone(UTC)),
    PlainSerializer(shown, return_type=str, when_used="json"),
]
Identifier = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,199}$")]
PathId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:@+-]{0,199}$")]
Node = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}$")]
Words = Annotated[str, Field(max_length=2_000)]
Reason = Annotated[str, Field(min_length=1, max_length=2_000)]
Actor = Annotated[str, Field(min_length=1, max_length=200)]
Count = Annotated[int, Field(ge=0, le=2**53)]
Measure = Annotated[int, Field(ge=1, le=MOST)]


class Ask(BaseModel):
    """A request body: unknown fields are refused, since a typo must not be advice ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _holds_whole_characters(cls, said: Any) -> Any:
        """JSON can spell half a character, which no answer and no store could spell again."""
        if isinstance(said, Mapping):
            for name, value in said.items():
                words = value if isinstance(value, list) else [value]
                if any(isinstance(word, str) and _HALF.search(word) for word in words):
                    raise ValueError(f"{name} holds half a character (a lone surrogate)")
        return said


class Told(BaseModel):
    """An answer; readers must bear new fields and new enum values."""

    model_config = ConfigDict(frozen=True)


class Page(Told, Generic[Item]):
    """A slice of a list; `next_cursor` is absent on the last one."""

    items: list[Item]
    next_cursor: str | None = None


Limit = Annotated[int, Query(ge=1, le=MAX_PAGE, description="items in a page")]
Cursor = Annotated[str | None, Query(max_length=200, description="`next_cursor` of the page before")]


def cursor_of(position: int) -> str:
    return base64.urlsafe_b64encode(f"v1:{position}".encode()).decode().rstrip("=")


def position_of(cursor: str) -> int:
    """Errors: Problem bad_cursor unless `cursor_of` made it."""
    try:
        padded = cursor + "=" * (-len(cursor) % 4)
        version, _, position = base64.b64decode(padded, altchars=b"-_", validate=True).decode().partition(":")
        number = int(position)
    except (binascii.Error, ValueError) as why:
        raise Problem("bad_cursor", f"can't read cursor {cursor!r}: {why}") from why
    if version != "v1" or cursor_of(number) != cursor:
        raise Problem("bad_cursor", f"can't read cursor {cursor!r}; start again without one")
    return number


def page(
    records: Iterable[Item], key: Callable[[Item], int], limit: int, cursor: str | None
) -> tuple[Sequence[Item], str | None]:
    """Newest first by `key`, which never changes for a record, so pages stay stable while others arrive."""
    before = None if cursor is None else position_of(cursor)
    ordered = sorted(records, key=key, reverse=True)
    rest = [record for record in ordered if before is None or key(record) < before]
    cut = rest[:limit]
    return cut, cursor_of(key(cut[-1])) if len(rest) > limit else None


def tag(body: BaseModel) -> str:
    """A strong entity tag: the digest of what the resource says."""
    text = json.dumps(body.model_dump(mode="json", exclude={"etag"}), sort_keys=True)
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:20]}"'


def single(request: Request, response: Response, body: Model) -> Model | Response:
    """A single resource with its ETag, or 304 if the caller has it already."""
    etag = tag(body)
    if etag in _listed(request.headers.get("if-none-match")):
        return Response(status_code=304, headers={"ETag": etag})
    response.headers["ETag"] = etag
    return body


def require_match(request: Request, current: BaseModel | None) -> None:
    """Errors: 428 without If-Match on something that exists, 412 if it changed or is gone."""
    wanted = _listed(request.headers.get("if-match"))
    if current is None:
        if wanted:
            raise Problem("precondition_failed", "If-Match was sent, but there is nothing yet")
        return
    if not wanted:
        raise Problem("precondition_required", "read it first, then send its ETag as If-Match")
    if "*" not in wanted and tag(current) not in wanted:
        raise Problem("precondition_failed", f"it is now {tag(current)}; read it again")


def _listed(header: str | None) -> frozenset[str]:
    return frozenset(part.strip().removeprefix("W/") for part in (header or "").split(",") if part.strip())


def body_hash(body: BaseModel) -> str:
    """What two requests must share to be the same request."""
    text = json.dumps(body.model_dump(mode="json", exclude_unset=True), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def harmless(value: Any) -> Any:
    """Text out of a log, anywhere in a JSON value, without what could drive a terminal."""
    match value:
        case str():
            return escaped(value)
        case Mapping():
            return {escaped(str(name)): harmless(item) for name, item in value.items()}
        case list() | tuple():
            return [harmless(item) for item in value]
        case _:
            return value


FromLog = Annotated[str, BeforeValidator(harmless)]
JsonObject = Annotated[dict[str, Any], BeforeValidator(harmless)]
