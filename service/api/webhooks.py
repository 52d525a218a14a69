# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How findings of health services enter: what needs no action is counted, the rest is recorded."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import Field

from relight.types import ClusterId
from service.api.wire import Told
from service.application import Application
from service.doors.health import Finding, is_future, signals
from service.observing import Fate, Signal
from service.tokens import Principal

IGNORED = "ignored"


class FindingsTold(Told):
    """What became of the events; `ignored` ones ask for nothing: healthy, resolved, or about nothing known."""

    accepted: int = Field(description="signals recorded: one for a node, one for each attempt that held it")
    duplicates: int
    ignored: int


def take_in(
    app: Application, caller: Principal, cluster: ClusterId, source: str, found: Iterable[Finding], events: int
) -> FindingsTold:
    """Errors: AuditUnavailable; then no event counts as seen."""
    now, wanted, used = app.journal.now(), list[Signal](), 0
    for one in found:
        if is_future(one.at, now) or not (one.is_fatal or one.is_evidence):
            continue
        own = [signal for signal in signals(one, cluster, app.allocations, now) if _may(app, caller, signal)]
        used += bool(own)
        wanted += own
    fates = [item.fate for item in app.intake.accept_signals(wanted, caller.client)] if wanted else []
    told = FindingsTold(
        accepted=fates.count(Fate.ACCEPTED), duplicates=fates.count(Fate.DUPLICATE), ignored=events - used
    )
    for outcome, count in ((Fate.ACCEPTED, told.accepted), (Fate.DUPLICATE, told.duplicates), (IGNORED, told.ignored)):
        app.metrics.records.labels(source, outcome).inc(count)
    return told


def _may(app: Application, caller: Principal, signal: Signal) -> bool:
    if signal.attempt is None:
        return True
    with app.journal.view:
        known = app.journal.state.attempts.get(signal.attempt)
    return known is not None and caller.may_see(known.seen.cluster)
