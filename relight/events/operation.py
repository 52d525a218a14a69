# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What Relight did to itself: modes, policy, packs, models, starts and repairs."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import ClassVar

from relight.jsonform import JsonObject
from relight.types import AttemptId, ClusterId, Mode, WorkloadId


class Repair(StrEnum):
    """What the audit log did to itself when it was opened or got its disk back."""

    WAL_QUARANTINED = "wal_quarantined"
    SPILL_FOLDED_BACK = "spill_folded_back"
    SPILL_QUARANTINED = "spill_quarantined"
    TAIL_MISSING = "tail_missing"
    CHAIN_BROKEN = "chain_broken"
    MIGRATED = "migrated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChanged:
    """`scope` is cluster, partition, class or workload; `target` is the name within that scope."""

    kind: ClassVar[str] = "mode.changed"
    schema: ClassVar[int] = 1
    at: datetime
    scope: str
    target: str
    mode: Mode
    actor: str
    reason: str
    previous: Mode | None = None
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChanged:
    """The policy table was replaced; `text` is the whole table, so that replay needs no file."""

    kind: ClassVar[str] = "policy.changed"
    schema: ClassVar[int] = 1
    at: datetime
    version: str
    text: str
    actor: str
    reason: str
    previous: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackLoaded:
    kind: ClassVar[str] = "pack.loaded"
    schema: ClassVar[int] = 1
    at: datetime
    pack: str
    digest: str
    signatures: int
    version: str = ""
    source: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackRefused:
    """Changed rule files had faults, so the set `digest` stays in force; `first` are the first of the `problems`."""

    kind: ClassVar[str] = "pack.refused"
    schema: ClassVar[int] = 1
    at: datetime
    pack: str
    digest: str
    problems: int
    first: tuple[str, ...] = ()
    source: str = ""
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPromoted:
    kind: ClassVar[str] = "model.promoted"
    schema: ClassVar[int] = 1
    at: datetime
    model: str
    version: str
    digest: str
    actor: str
    reason: str
    stage: str = "live"
    previous: str = ""
    metrics: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectorFailed:
    """A detector raised: its silence from here on says nothing about health."""

    kind: ClassVar[str] = "detector.failed"
    schema: ClassVar[int] = 1
    at: datetime
    detector: str
    error: str
    failures: int = 1
    is_disabled: bool = False
    attempt: AttemptId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalAccepted:
    """One batch of signals, counted: log lines stay where they are, but for pushed ones that claim a failure.

    Those stand in `counts`, cut and redacted: a verdict may rest on them, and nobody sends them again.
    """

    kind: ClassVar[str] = "signal.accepted"
    schema: ClassVar[int] = 1
    at: datetime
    source: str
    accepted: int
    duplicates: int = 0
    refused: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    digest: str = ""
    attempt: AttemptId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    actor: str = ""
    counts: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStarted:
    kind: ClassVar[str] = "service.started"
    schema: ClassVar[int] = 1
    at: datetime
    version: str
    config_digest: str = ""
    loaded: JsonObject = field(default_factory=dict)
    cluster: ClusterId | None = None
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceStopped:
    kind: ClassVar[str] = "service.stopped"
    schema: ClassVar[int] = 1
    at: datetime
    reason: str = ""
    cluster: ClusterId | None = None
    actor: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRepaired:
    """The audit log had to mend or doubt itself; `first` to `last` are the positions concerned."""

    kind: ClassVar[str] = "audit.repaired"
    schema: ClassVar[int] = 1
    at: datetime
    repair: Repair
    summary: str
    first: int | None = None
    last: int | None = None
    kept_at: str = ""
    detail: JsonObject = field(default_factory=dict)
