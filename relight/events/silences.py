# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Messages that somebody muted for a while, and the end of that."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar

from relight.silences import Silence
from relight.types import ClusterId, NodeName, WorkloadId


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceAdded:
    kind: ClassVar[str] = "silence.added"
    schema: ClassVar[int] = 1
    at: datetime
    silence: Silence
    actor: str
    cluster: ClusterId | None = None

    @property
    def workload(self) -> WorkloadId | None:
        return self.silence.matchers.workload

    @property
    def node(self) -> NodeName | None:
        return self.silence.matchers.node


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceEnded:
    """A person ended it early, or, with an empty actor, its time was over."""

    kind: ClassVar[str] = "silence.ended"
    schema: ClassVar[int] = 1
    at: datetime
    silence: str
    actor: str = ""
    reason: str = ""
    cluster: ClusterId | None = None
