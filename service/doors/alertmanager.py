# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Alertmanager's webhook, version 4: alerts that name a job or a node become findings about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from relight.types import AttemptId, Stream
from service.doors.health import Finding
from service.doors.labels import whose
from service.doors.records import Record, normal_name

SOURCE = "alertmanager"
FATAL_LABEL = "relight_fatal"
MAX_ALERTS = 5_000
Resolve = Callable[[str | None, str | None, int | None], AttemptId | None]
_NEVER = datetime(1, 1, 1, tzinfo=UTC)
_STREAMS = {one.value: one for one in Stream if one.is_independent}
_WORDS = ("summary", "description", "message")


class Alert(BaseModel):
    """One alert as Alertmanager tells it; unknown fields are let pass, since versions add some."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    status: str = "firing"
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    startsAt: AwareDatetime  # noqa: N815 -- the sender's spelling
    endsAt: AwareDatetime = _NEVER  # noqa: N815
    fingerprint: str = ""


class Webhook(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    version: str = "4"
    alerts: list[Alert] = Field(max_length=MAX_ALERTS)


def findings(said: Webhook, resolve: Resolve) -> Iterator[Finding]:
    """One finding for each alert that names a known job or a node.

    An alert accuses its node only if its rule says so by the label `relight_fatal="true"`: severity tells
    how soon a person should look, not whether the machine is broken.
    """
    for alert in said.alerts:
        found = _finding(alert, resolve)
        if found is not None:
            yield found


def _finding(alert: Alert, resolve: Resolve) -> Finding | None:
    labels = {normal_name(name): value for name, value in alert.labels.items()}
    origin = whose(Record("", labels))
    node = origin.node or _host(labels.get("instance"))
    job = resolve(origin.attempt, origin.job, origin.restart)
    if node is None and job is None:
        return None
    is_firing = alert.status == "firing"
    name = alert.labels.get("alertname", "unnamed")
    identity = alert.fingerprint or str(sorted(alert.labels.items()))
    return Finding(
        source=SOURCE,
        key=f"{identity[:120]}/{alert.startsAt.isoformat()}/{alert.status}",
        at=alert.startsAt.astimezone(UTC),
        code=name,
        text=f"alert {name} {alert.status}: {_words(alert.annotations)}".rstrip(": "),
        node=node,
        gpu=labels.get("gpu") or labels.get("uuid"),
        job=job,
        is_fatal=is_firing and labels.get(FATAL_LABEL, "").lower() == "true",
        is_evidence=is_firing,
        stream=_STREAMS.get(labels.get("relight_stream", ""), Stream.DCGM),
    )


def _words(annotations: Mapping[str, str]) -> str:
    return " | ".join(text for name in _WORDS if (text := " ".join(annotations.get(name, "").split())))


def _host(instance: str | None) -> str | None:
    """The host of `n7:9100`; a scrape target on loopback says nothing of a node."""
    if not instance:
        return None
    host = instance.rsplit(":", 1)[0] if instance.count(":") == 1 else instance
    return None if host in {"localhost", "127.0.0.1", "::1"} else host
