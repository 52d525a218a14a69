# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The attributor that the settings name, with the built-in one behind it, and what an attribution is worth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import structlog

from relight.attribute import AttemptFacts
from relight.ports import Attributor
from relight.types import CAUSE_NOT_IN_LOG, NO_FAILURE, Attribution, Evidence, EvidenceStatus, FailureClass

log = structlog.get_logger(__name__)

_RICHNESS = (
    EvidenceStatus.UNKNOWN,
    EvidenceStatus.HYPOTHESIS,
    EvidenceStatus.SUPPORTED,
    EvidenceStatus.ESTABLISHED,
)
UNKNOWN_CAUSE = Attribution(
    failure=CAUSE_NOT_IN_LOG,
    failure_class=FailureClass.UNKNOWN,
    evidence_status=EvidenceStatus.UNKNOWN,
)

NOTHING_FAILED = Attribution(
    failure=NO_FAILURE, failure_class=FailureClass.BENIGN, evidence_status=EvidenceStatus.UNKNOWN
)


def richness(said: Attribution) -> int:
    """How far the evidence carries it: of two, the richer counts."""
    return _RICHNESS.index(said.evidence_status)


class ChosenAttributor:
    """Who attributes is a setting; that something attributes is not.

    An attributor that raises is replaced by the built-in one for this verdict, and named in `failing` for good.
    Errors: none of the plugin's.
    """

    def __init__(self, name: str, chosen: Attributor, behind: Attributor) -> None:
        self.name = name
        self._chosen, self._behind = chosen, behind
        self._failures = 0
        self.failed: Callable[[str, Exception, int], None] | None = None

    @property
    def failing(self) -> tuple[str, ...]:
        return (self.name,) if self._failures else ()

    def attribute(self, evidence: Sequence[Evidence], facts: AttemptFacts) -> Attribution:
        try:
            return replace(self._chosen.attribute(evidence, facts), attributor=self.name)
        except Exception as why:  # noqa: BLE001 -- a plugin may raise anything; advice must go on without it
            self._failures += 1
            log.error("attributor_failed", attributor=self.name, failures=self._failures, error=repr(why))
            if self.failed is not None and self._failures == 1:
                self.failed(self.name, why, self._failures)
            return self._behind.attribute(evidence, facts)
