# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The events that make up a decision, built from the state as it is and recorded by the advisor."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from relight.events import (
    AnomalyDetected,
    AttributionMade,
    Event,
    IncidentOpened,
    ModeChanged,
    RecommendationIssued,
)
from relight.incidents import IncidentTransition
from relight.jsonform import encode
from relight.policy import PolicyEntry, PolicyTable, Verdict, decide
from relight.promotion import Stage
from relight.types import (
    Action,
    Anomaly,
    AnomalyKind,
    Attribution,
    EvidenceStatus,
    Exclusion,
    IncidentId,
    LogRef,
    Mode,
    RecommendationId,
    Suspect,
)
from service import course
from service.config import Recommend
from service.history import BREAKER, Question
from service.journal import Journal
from service.places import NOWHERE, Places
from service.records import AttemptRecord, IncidentRecord, RecommendationRecord
from service.refusals import Refused

_NAMESPACE = uuid.UUID("5f0d2c0e-5a0b-5c5e-9b62-0c1c7a5b9f11")


@dataclass(frozen=True, slots=True)
class Grounds:
    """What verdicts rest on: the policy table and the rule set in force."""

    policy: PolicyTable
    rule_set_hash: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """What a person wants done; it passes the same gates as our own verdict."""

    action: Action
    exclusions: tuple[Exclusion, ...]
    author: str


def identity(attempt: AttemptRecord, number: int) -> RecommendationId:
    """The id of an attempt's n-th recommendation: the same after every replay."""
    return RecommendationId(str(uuid.uuid5(_NAMESPACE, f"{attempt.seen.cluster}/{attempt.id}/{number}")))


class Verdicts:
    """From an attempt and its attribution to the events of a decision; records nothing.

    Errors: Refused if policy would not do what a person proposes.
    """

    def __init__(
        self, journal: Journal, settings: Recommend, grounds: Callable[[], Grounds], places: Places = NOWHERE,
        start: Stage = Stage.ACT,
    ) -> None:  # fmt: skip
        self._start = start
        self._places = places
        self._journal = journal
        self._settings = settings
        self._grounds = grounds

    def attributed(
        self, attempt: AttemptRecord, said: Attribution, now: datetime, version: str = ""
    ) -> AttributionMade:
        incident = self._journal.state.open_incident(attempt.id)
        return AttributionMade(
            at=now,
            attempt=attempt.id,
            failure=said.failure,
            failure_class=said.failure_class,
            evidence_status=said.evidence_status,
            attribution=encode(said),
            attributor=said.attributor,
            version=version or self._grounds().rule_set_hash,
            workload=attempt.seen.workload,
            cluster=attempt.seen.cluster,
            incident=incident.id if incident else None,
        )

    def noted(self, attempt: AttemptRecord, anomaly: Anomaly, now: datetime) -> AnomalyDetected:
        """An anomaly that opens no incident; it joins one that is open."""
        incident = self._journal.state.open_incident(attempt.id)
        return AnomalyDetected(
            at=now,
            anomaly=anomaly,
            incident=incident.id if incident else None,
            workload=attempt.seen.workload,
            cluster=attempt.seen.cluster,
        )

    def opened(self, attempt: AttemptRecord, anomaly: Anomaly, now: datetime) -> list[Event]:
        """The anomaly, and the incident it opens unless one is open: cascades fold under the first."""
        state = self._journal.state
        incident = state.open_incident(attempt.id)
        number = len(state.incidents_of.get(attempt.id, ())) + 1
        name = incident.id if incident else IncidentId(
            str(uuid.uuid5(_NAMESPACE, f"incident/{attempt.seen.cluster}/{attempt.id}/{number}"))
        )  # fmt: skip
        workload, cluster = attempt.seen.workload, attempt.seen.cluster
        events: list[Event] = [
            AnomalyDetected(at=now, anomaly=anomaly, incident=name, workload=workload, cluster=cluster)
        ]
        if incident is None:
            closing, before = course.after_recurrence(state, attempt, now)
            events += closing
            events.append(
                IncidentOpened(
                    at=now,
                    incident=name,
                    attempt=attempt.id,
                    onset_at=anomaly.onset_at,
                    anomalies=(anomaly.kind,),
                    summary=anomaly.summary,
                    recurrence_of=before.id if before else None,
                    workload=workload,
                    cluster=cluster,
                )
            )
        return events

    def decided(
        self, attempt: AttemptRecord, said: Attribution, now: datetime, deadline_s: float | None = None
    ) -> RecommendationIssued:
        """Our own verdict as the first generation of a recommendation."""
        within = min(deadline_s or self._settings.decide_within_s, self._hard_s())
        deadline = now + timedelta(seconds=within)
        table = self._grounds().policy
        question = self._question(attempt, said, table, now)
        verdict = decide(said, question.history(), question.facts(deadline), table, at=now)
        return self._issued(attempt, said, verdict, now, deadline)

    def proposed(
        self, attempt: AttemptRecord, said: Attribution, wanted: Proposal, now: datetime
    ) -> RecommendationIssued:
        """A person's proposal, judged as if the table asked for it and the evidence were certain."""
        grounds = self._grounds()
        claim = replace(
            said,
            action=wanted.action,
            evidence_status=EvidenceStatus.ESTABLISHED,
            suspects=tuple(
                Suspect(node=one.node, score=one.score, is_independent=True, reason=one.reason)
                for one in wanted.exclusions
            ),
        )
        entry = PolicyEntry(action=wanted.action, retries=grounds.policy.ceilings.same_root)
        table = replace(grounds.policy, failures={**grounds.policy.failures, said.failure: entry})
        question = self._question(attempt, claim, table, now)
        deadline = now + timedelta(seconds=self._settings.decide_within_s)
        facts = replace(question.facts(deadline), is_off=False)  # a class is off for our advice, not for people's
        verdict = decide(claim, question.history(), facts, table, at=now)
        missing = {one.node for one in wanted.exclusions} - {one.node for one in verdict.exclusions}
        if verdict.action is not wanted.action or missing:
            names = f", without excluding {', '.join(sorted(missing))}" if missing else ""
            raise Refused("refused_by_policy", f"policy would {verdict.action}{names}: {verdict.decision_basis[-1]}")
        issued = self._issued(attempt, said, verdict, now, deadline)
        return replace(
            issued, actor=wanted.author, reason=f"proposed by {wanted.author}", ledgers={}, verdict={},
            decision_basis=f"proposed by {wanted.author}; {issued.decision_basis}",
        )  # fmt: skip

    def revised(
        self, attempt: AttemptRecord, said: Attribution, known: RecommendationRecord, now: datetime
    ) -> RecommendationIssued | None:
        """The next generation of a recommendation, or None if it would say nothing new."""
        fresh = replace(
            self.decided(attempt, said, now),
            recommendation=known.id,
            generation=known.generation + 1,
            decide_deadline=known.issued.decide_deadline,
            expires_at=known.issued.expires_at,
            trigger=known.issued.trigger,
            actor=known.issued.actor,
            incident=known.issued.incident,
        )
        return fresh if _says(fresh) != _says(known.issued) else None

    def incident_steps(self, incident: IncidentRecord, issued: RecommendationIssued, now: datetime) -> list[Event]:
        """A decided incident is recommended on; one in approve mode waits for a person."""
        transitions = [IncidentTransition.DECISION_BEGUN, IncidentTransition.RECOMMENDED]
        if "awaiting_approval" in issued.blocked_by:
            transitions.append(IncidentTransition.APPROVAL_REQUESTED)
        named = issued.recommendation
        return [*course.steps(incident, transitions, now, reason=issued.reason, recommendation=named)]

    def breaker(self, issued: RecommendationIssued, now: datetime) -> list[Event]:
        """Too many workloads with one failure at once: back to monitor until a person says otherwise."""
        cluster = issued.cluster
        if "breaker_open" not in issued.blocked_by or cluster is None:
            return []
        known = self._journal.state.modes.get((cluster, "cluster", cluster))
        if known is not None and known.actor == BREAKER:
            return []
        return [
            ModeChanged(
                at=now,
                scope="cluster",
                target=cluster,
                mode=Mode.MONITOR,
                actor=BREAKER,
                reason=f"{issued.failure} in many workloads at once",
                previous=known.mode if known else self._settings.mode,
                cluster=cluster,
            )
        ]

    def _question(self, attempt: AttemptRecord, said: Attribution, table: PolicyTable, now: datetime) -> Question:
        state, mode = self._journal.state, self._settings.mode
        return Question(state, attempt, said, table, mode, now, self._places, self._start)

    def _hard_s(self) -> float:
        return float(self._grounds().policy.deadlines.hard_s)

    def _issued(
        self, attempt: AttemptRecord, said: Attribution, verdict: Verdict, now: datetime, deadline: datetime
    ) -> RecommendationIssued:
        return RecommendationIssued(
            at=now,
            recommendation=identity(attempt, 1),
            attempt=attempt.id,
            action=verdict.action,
            generation=1,
            mode=verdict.mode,
            is_actionable=verdict.actionable,
            failure=verdict.failure,
            failure_class=verdict.failure_class,
            evidence_status=said.evidence_status,
            decide_deadline=deadline,
            expires_at=now + timedelta(seconds=self._settings.expire_after_s),
            reason=verdict.reason,
            decision_basis="; ".join(verdict.decision_basis),
            retry_outlook=verdict.retry_outlook,
            exclusions=verdict.exclusions,
            blocked_by=verdict.blocked_by,
            policy_version=verdict.policy_version,
            rule_set_hash=self._grounds().rule_set_hash,
            signature=said.root.signature if said.root else None,
            ledgers={"before": encode(verdict.ledgers_before), "after": encode(verdict.ledgers_after)},
            verdict=encode(verdict),
            delay_s=verdict.delay_s,
            stop_grace_s=verdict.stop_grace_s,
            workload=attempt.seen.workload,
            cluster=attempt.seen.cluster,
        )


def asked_anomaly(attempt: AttemptRecord, said: Attribution, now: datetime) -> Anomaly:
    """The anomaly of an attempt that ended in failure before any detector spoke."""
    ended = attempt.ended_at or attempt.seen.at
    root = said.root
    onset = root.at if root is not None and root.at is not None and root.at <= now else min(ended, now)
    return Anomaly(
        attempt=attempt.id,
        kind=AnomalyKind.CRASH,
        detector="scheduler" if root is None else "crash",
        onset_at=onset,
        detected_at=now,
        score=1.0,
        evidence=(LogRef(file=root.where.file, line=root.where.line),) if root else (),
        summary=said.summary or f"{attempt.seen.state}: {attempt.seen.reason or 'no reason given'}",
    )


def _says(issued: RecommendationIssued) -> tuple[object, ...]:
    """What a reader acts on; a later expiry of the same exclusion is not news."""
    nodes = frozenset((one.node, one.scope) for one in issued.exclusions)
    return (issued.action, nodes, issued.failure, issued.failure_class, issued.evidence_status)
