# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Silences as people set and end them, and which of them an incident falls under."""

from __future__ import annotations

import uuid
from datetime import datetime

from relight.events import SilenceAdded, SilenceEnded
from relight.jsonform import decode
from relight.silences import Matchers, Silence, Topic, about_something, ending
from relight.types import AttemptId, Attribution, ClusterId, FailureName, NodeName
from service.journal import Journal
from service.projection import Projection
from service.records import IncidentRecord, SilenceRecord
from service.refusals import Refused

_NAMESPACE = uuid.UUID("2f6f4f0a-6a2f-5d0e-8c3f-3f2f6c1d7b52")


class Silences:
    """Mutes messages; detection, advice, approval and action go on as ever.

    Errors: Refused for a silence without matcher or end; AuditUnavailable if it could not be recorded.
    """

    def __init__(self, journal: Journal) -> None:
        self._journal = journal

    def add(self, cluster: ClusterId, matchers: Matchers, ends_at: datetime, actor: str, reason: str) -> SilenceRecord:
        with self._journal.lock:
            now, state = self._journal.now(), self._journal.state
            try:
                until, wanted = ending(now, ends_at), about_something(matchers)
            except ValueError as why:
                raise Refused("invalid", str(why)) from why
            name = str(uuid.uuid5(_NAMESPACE, f"{cluster}/{len(state.silences) + 1}"))
            made = Silence(
                id=name, cluster=cluster, matchers=wanted, starts_at=now, ends_at=until, actor=actor, reason=reason
            )
            self._journal.record(SilenceAdded(at=now, silence=made, actor=actor, cluster=cluster))
            return state.silences[name]

    def end(self, name: str, actor: str, reason: str) -> SilenceRecord:
        """Ends it now; one that is over stays as it was."""
        with self._journal.lock:
            now, known = self._journal.now(), self._journal.state.silences.get(name)
            if known is None:
                raise Refused("not_found", f"no silence {name!r}")
            if known.stands(now):
                self._journal.record(self._ended(known, now, actor, reason))
            return self._journal.state.silences[name]

    def sweep(self) -> int:
        """Record the end of silences whose time is over; how many there were."""
        with self._journal.lock:
            now = self._journal.now()
            known = self._journal.state.silences.values()
            over = [self._ended(one, now, "", "its time is over") for one in known if one.is_overdue(now)]
            self._journal.record(*over)
            return len(over)

    @staticmethod
    def _ended(known: SilenceRecord, now: datetime, actor: str, reason: str) -> SilenceEnded:
        silence = known.silence
        return SilenceEnded(at=now, silence=silence.id, actor=actor, reason=reason, cluster=silence.cluster)


def silences_on(state: Projection, incident: IncidentRecord, at: datetime) -> list[SilenceRecord]:
    """Those that stand at that moment over an incident, by what is known of it now."""
    standing = [
        one for one in state.silences.values() if one.stands(at) and one.silence.cluster == incident.opened.cluster
    ]
    if not standing:
        return []  # most often, and then nothing has to be read
    topic = topic_of(state, incident)
    return [one for one in standing if one.silence.covers(topic)]


def topic_of(state: Projection, incident: IncidentRecord) -> Topic:
    """What an incident is about: by its newest attribution, its advice, and the nodes that the scheduler named."""
    opened = incident.opened
    advice = state.recommendations.get(incident.recommendation) if incident.recommendation is not None else None
    said = _attribution(state, opened.attempt)
    attempt = state.attempts.get(opened.attempt)
    nodes = set(attempt.seen.failed_nodes) if attempt is not None else set()
    if said is not None:
        nodes |= {NodeName(one) for one in (*said.nodes, *said.rank_nodes)}
    if advice is not None:
        nodes |= {one.node for one in advice.issued.exclusions}
    failure = said.failure if said is not None else None
    return Topic(
        cluster=opened.cluster or ClusterId(""),
        workload=opened.workload,
        nodes=frozenset(nodes),
        failure=FailureName(advice.issued.failure) if advice is not None else failure,
        signature=said.root.signature if said is not None and said.root is not None else None,
    )


def _attribution(state: Projection, attempt: AttemptId) -> Attribution | None:
    made = state.attribution(attempt)
    return decode(Attribution, made.event.attribution) if made is not None else None
