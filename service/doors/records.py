# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A log record as a collector sent it, whatever protocol carried it, and the faults of its body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MAX_NANOS = 1 << 63
_JOURNAL_MARKS = ("_BOOT_ID", "__CURSOR", "__REALTIME_TIMESTAMP", "_MACHINE_ID")
_EXCEPTION = ("exception.type", "exception.message", "exception.stacktrace")
_MESSAGE_KEYS = ("message", "MESSAGE", "msg", "log", "body", "event")


class BadBody(ValueError):
    """The whole body is not what its content type says; sending it again would not help."""


@dataclass(frozen=True, slots=True)
class Record:
    """One record: its words (several lines, perhaps), its labels under normal names, and its time.

    `labels` come from resource, scope and record, or from a Loki stream: whoever configured the collector
    chose them. `journal` holds the fields of a systemd journal entry, which the journal itself vouches for.
    """

    text: str
    labels: Mapping[str, str]
    at: datetime | None = None
    journal: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A record that can't be used, with the reason that its sender is told."""

    reason: str


Item = Record | Unreadable


def normal_name(name: str) -> str:
    """One spelling for `slurm.job.id`, `SLURM_JOB_ID` and `slurm-job-id`: Loki allows no dots."""
    return name.lower().replace(".", "_").replace("-", "_")


def moment_of(nanos: int) -> datetime | None:
    """Nanoseconds since 1970, where 0 means "not known". Errors: ValueError beyond what fits 63 bits."""
    if not 0 <= nanos < _MAX_NANOS:
        raise ValueError(f"time {nanos} is not in nanoseconds since 1970")
    return _EPOCH + timedelta(microseconds=nanos // 1_000) if nanos else None


def record_of(body: Any, labels: Mapping[str, str], at: datetime | None, more: Iterable[str] = ()) -> Record:
    """A record from a decoded body; `more` are texts that belong to it, such as a stack trace."""
    journal = _journal_entry(body, labels)
    words = [text for text in (_words(body), *more) if text]
    return Record("\n".join(words), labels, at, journal)


def named_labels(attributes: Mapping[str, Any]) -> dict[str, str]:
    """The scalars among attributes, under their normal names."""
    found = ((normal_name(str(name)), label_text(value)) for name, value in attributes.items())
    return {name: text for name, text in found if text is not None}


def trace_of(attributes: Mapping[str, Any]) -> list[str]:
    """The exception that a record carries in its attributes, as the program would have printed it.

    A stack trace holds type and message already; without one they are all there is.
    """
    stack = [text for name in _EXCEPTION if isinstance(text := attributes.get(name), str) and text]
    whole = [text for text in stack if "\n" in text]
    return whole[-1:] or ([": ".join(stack)] if stack else [])


def label_text(value: Any) -> str | None:
    """A label as text; what is not a scalar is no label."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return value
        case int() | float():
            return str(value)
        case _:
            return None


def _words(body: Any) -> str:
    match body:
        case None:
            return ""
        case str():
            return body
        case Mapping():
            for key in _MESSAGE_KEYS:
                if isinstance(found := body.get(key), str):
                    return found
            return _compact(body)
        case _:
            return _compact(body)


def _compact(body: Any) -> str:
    match body:
        case str():
            return body
        case Mapping():
            return " ".join(f"{key}={_compact(value)}" for key, value in body.items())
        case list():
            return " ".join(_compact(value) for value in body)
        case _:
            return "" if body is None else str(body)


def _journal_entry(body: Any, labels: Mapping[str, str]) -> Mapping[str, str]:
    """The fields of a journal entry, which no program can set: they begin with an underscore.

    A job's own output may look like one, but it reaches a collector from a file, a pod or an SDK, and that
    shows in the labels.
    """
    if not isinstance(body, Mapping) or "_TRANSPORT" not in body:
        return {}
    if not any(mark in body for mark in _JOURNAL_MARKS):
        return {}
    if any(name in labels for name in ("log_file_path", "log_file_name", "service_name", "k8s_pod_name")):
        return {}
    return {key: value for key, value in body.items() if isinstance(value, str) and key.startswith("_")}
