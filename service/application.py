# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Everything that serves a request, built once by `service.bootstrap` and handed to the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.advisor import Advisor
from service.allocations import Allocations
from service.approval import Approval
from service.chores import Chore
from service.config import Settings
from service.gates import Gates
from service.journal import Journal
from service.loop import Loop
from service.metrics import Metrics
from service.observing import Intake
from service.operating import Operation, Policies
from service.reconciling import Reconciliation
from service.tokens import TokenBook


@dataclass(frozen=True, slots=True, kw_only=True)
class Application:
    settings: Settings
    journal: Journal
    advisor: Advisor
    gates: Gates
    reconciliation: Reconciliation
    approval: Approval
    operation: Operation
    policies: Policies
    intake: Intake
    allocations: Allocations
    loop: Loop
    metrics: Metrics
    tokens: TokenBook
    rules_digest: Callable[[], str]
    degraded: Callable[[], list[str]]
    chores: tuple[Chore, ...] = ()
