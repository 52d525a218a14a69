# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which bounds hold for an attempt's pauses: the job's own, its workload's, its partition's, or the site's."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from relight.types import AttemptId
from relight.watching import LEARNED, HangPolicy, HangTerms
from service.panel import Panel
from service.records import AttemptRecord


class Policy(Protocol):
    def __call__(self) -> HangPolicy:
        """What the policy in force says of hangs."""
        ...


class BoundPauses:
    """Tells detectors the bounds of each attempt, and again when policy or the job's words change."""

    def __init__(self, panel: Panel, policy: Policy | None = None) -> None:
        self._panel = panel
        self._policy = policy
        self._told: dict[AttemptId, HangTerms] = {}

    def tell(self, attempts: Iterable[AttemptRecord]) -> None:
        for attempt in attempts:
            terms = terms_of(attempt, self._policy() if self._policy is not None else HangPolicy())
            if self._told.get(attempt.id) != terms:
                self._told[attempt.id] = terms
                self._panel.bound(attempt.id, terms)

    @property
    def attempts(self) -> tuple[AttemptId, ...]:
        return tuple(self._told)

    def forget(self, attempt: AttemptId) -> None:
        self._told.pop(attempt, None)


def terms_of(attempt: AttemptRecord, policy: HangPolicy) -> HangTerms:
    partition = str(attempt.detail("partition") or attempt.detail("namespace") or "")
    said = (attempt.detail("opt_in") or {}).get("hang")
    own = HangTerms(**{name: said.get(name) for name in LEARNED.as_json()}) if isinstance(said, dict) else LEARNED
    return policy.terms_for(partition, str(attempt.seen.workload), own)
