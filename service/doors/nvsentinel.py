# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""NVSentinel's CloudEvents: health events of nodes, at least once, out of order, and weeks of them at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import orjson
from pydantic import (
    AliasChoices,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from relight.types import Stream
from service.doors.health import Finding
from service.doors.records import BadBody

SOURCE = "nvsentinel"
MAX_EVENTS = 1_000
_ACTIONS = {0: "NONE", 2: "COMPONENT_RESET", 5: "CONTACT_SUPPORT", 6: "RUN_FIELDDIAG", 15: "RESTART_VM",
            24: "RESTART_BM", 25: "REPLACE_VM", 26: "RUN_DCGMEUD", 99: "UNKNOWN"}  # fmt: skip
_STORE_ONLY = frozenset({"STORE_ONLY", "2"})


def _either(snake: str) -> AliasChoices:
    """Protobuf's JSON spells names in camel case or as in the schema, as the sender likes."""
    head, *tail = snake.split("_")
    return AliasChoices(snake, head + "".join(word.title() for word in tail))


class Entity(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    kind: str = Field(default="", validation_alias=_either("entity_type"))
    value: str = Field(default="", validation_alias=_either("entity_value"))


class HealthEvent(BaseModel):
    """The part of NVSentinel's event that we use; further fields are let pass."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    node: str = Field(min_length=1, max_length=253, validation_alias=_either("node_name"))
    agent: str = ""
    component: str = Field(default="", validation_alias=_either("component_class"))
    check: str = Field(default="", validation_alias=_either("check_name"))
    is_fatal: bool = Field(default=False, validation_alias=_either("is_fatal"))
    is_healthy: bool = Field(default=False, validation_alias=_either("is_healthy"))
    message: str = ""
    action: str = Field(default="UNKNOWN", validation_alias=_either("recommended_action"))
    codes: list[str] = Field(default_factory=list, max_length=64, validation_alias=_either("error_code"))
    entities: list[Entity] = Field(default_factory=list, validation_alias=_either("entities_impacted"))
    strategy: str = Field(default="", validation_alias=_either("processing_strategy"))
    generated_at: AwareDatetime | None = Field(default=None, validation_alias=_either("generated_timestamp"))

    @field_validator("action", "strategy", mode="before")
    @classmethod
    def _by_name(cls, said: Any, field: ValidationInfo) -> Any:
        """Enums come by name or by number."""
        if isinstance(said, int) and not isinstance(said, bool):
            return _ACTIONS.get(said, str(said)) if field.field_name == "action" else str(said)
        return said

    @field_validator("codes", mode="before")
    @classmethod
    def _as_text(cls, said: Any) -> Any:
        listed = said if isinstance(said, list) else [] if said is None else [said]
        return [str(code) if isinstance(code, int) else code for code in listed]

    @field_validator("generated_at", mode="before")
    @classmethod
    def _moment(cls, said: Any) -> Any:
        """RFC 3339, or protobuf's own pair of seconds and nanoseconds."""
        if isinstance(said, Mapping):
            return datetime.fromtimestamp(float(said.get("seconds", 0)), tz=UTC)
        return said


class CloudEvent(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    specversion: str
    id: str = Field(min_length=1, max_length=500)
    source: str = Field(min_length=1, max_length=500)
    type: str = ""
    time: AwareDatetime | None = None
    data: Any = None


def read_events(body: bytes, now: datetime) -> list[Finding]:
    """The findings of one CloudEvent in structured mode, or of a list of them.

    Errors: BadBody with the first fault and where it is; one bad event spoils a list, since a CloudEvents
    answer can't name single events.
    """
    try:
        said = orjson.loads(body)
    except orjson.JSONDecodeError as why:
        raise BadBody(f"not JSON: {why}") from why
    events = said if isinstance(said, list) else [said]
    if len(events) > MAX_EVENTS:
        raise BadBody(f"{len(events)} events in one request, at most {MAX_EVENTS}")
    try:
        return [found for raw in events for found in _findings(CloudEvent.model_validate(raw), now)]
    except ValidationError as why:
        fault = why.errors()[0]
        raise BadBody(f"/{'/'.join(map(str, fault['loc']))}: {fault['msg']}") from why


def _findings(event: CloudEvent, now: datetime) -> Iterator[Finding]:
    inside = event.data if isinstance(event.data, Mapping) else {}
    raw = inside.get("healthEvent", inside.get("health_event", inside if "nodeName" in inside else None))
    if raw is None:
        raise BadBody("data.healthEvent is missing")
    said = HealthEvent.model_validate(raw)
    does_count = not said.is_healthy and said.strategy not in _STORE_ONLY
    yield Finding(
        source=SOURCE,
        key=f"{event.source}/{event.id}"[:200],
        at=(said.generated_at or event.time or now).astimezone(UTC),
        code=",".join(said.codes) or said.check or "unknown",
        text=_condition(said),
        node=said.node,
        gpu=_entity(said, "GPU_UUID") or _entity(said, "GPU"),
        is_fatal=said.is_fatal and does_count,
        is_evidence=does_count,
        stream=Stream.DCGM,
    )


def _condition(said: HealthEvent) -> str:
    """The event as NVSentinel prints it into a node's conditions, which our signatures read."""
    parts = [said.check or said.component or SOURCE]
    parts += [f"ErrorCode:{code}" for code in said.codes]
    parts += [f"{name}:{value}" for name in ("GPU", "PCI", "GPU_UUID") if (value := _entity(said, name))]
    parts += [" ".join(said.message.split()), f"Recommended Action={said.action}"]
    return " ".join(part for part in parts if part)


def _entity(said: HealthEvent, kind: str) -> str | None:
    return next((one.value for one in said.entities if one.kind.upper() == kind), None)
