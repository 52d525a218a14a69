# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Everything that serves a request, built once by `service.bootstrap` and handed to the API."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from service.advisor import Advisor
from service.allocations import Allocations
from service.answer_links import AnswerLinks
from service.approval import Approval
from service.chores import Chore
from service.config import Settings
from service.gates import Gates
from service.journal import Journal
from service.loop import Loop
from service.metrics import Metrics
from service.models_in_use import ModelsInUse
from service.observing import Intake
from service.operating import Operation, Policies
from service.promoting import Stages
from service.reconciling import Reconciliation
from service.repairs import Repairs
from service.rules_store import RuleStore
from service.silencing import Silences
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
    stages: Stages
    silences: Silences
    intake: Intake
    allocations: Allocations
    loop: Loop
    metrics: Metrics
    repairs: Repairs
    tokens: TokenBook
    rules_digest: Callable[[], str]
    rules: RuleStore
    models: ModelsInUse
    degraded: Callable[[], list[str]]
    links: AnswerLinks | None = None
    chores: tuple[Chore, ...] = ()
