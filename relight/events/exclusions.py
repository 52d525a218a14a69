# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Nodes that were kept out, pardoned, or allowed back."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from relight.types import AttemptId, ClusterId, Exclusion, NodeName, RecommendationId, WorkloadId


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionAdded:
    kind: ClassVar[str] = "exclusion.added"
    schema: ClassVar[int] = 1
    at: datetime
    exclusion: Exclusion
    evidence: tuple[str, ...] = ()
    recommendation: RecommendationId | None = None
    attempt: AttemptId | None = None
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
    actor: str = ""

    @property
    def node(self) -> NodeName:
        return self.exclusion.node


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionPardoned:
    kind: ClassVar[str] = "exclusion.pardoned"
    schema: ClassVar[int] = 1
    at: datetime
    node: NodeName
    actor: str
    scope: str = "workload"
    reason: str = ""
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExclusionExpired:
    kind: ClassVar[str] = "exclusion.expired"
    schema: ClassVar[int] = 1
    at: datetime
    node: NodeName
    scope: str = "workload"
    workload: WorkloadId | None = None
    cluster: ClusterId | None = None
