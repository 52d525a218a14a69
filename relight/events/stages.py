# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How far a class of failures is trusted: raised by people, lowered by people or by its own record."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar

from relight.jsonform import JsonObject
from relight.promotion import Stage
from relight.types import ClusterId, FailureClass


@dataclass(frozen=True, slots=True, kw_only=True)
class StageChanged:
    """`record` is what the class had to show at that moment, so that the decision can be judged later."""

    kind: ClassVar[str] = "stage.changed"
    schema: ClassVar[int] = 1
    at: datetime
    failure_class: FailureClass
    stage: Stage
    previous: Stage
    actor: str
    reason: str
    record: JsonObject = field(default_factory=dict)
    cluster: ClusterId | None = None
