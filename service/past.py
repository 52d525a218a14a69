# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What earlier attempts left behind for a decision: spent retries, suspicion, accusations, restarts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING

from relight.events import (
    Disposition,
    Event,
    ExclusionAdded,
    ExclusionPardoned,
    RecommendationIssued,
    ReconciliationReported,
    SignalAccepted,
)
from relight.jsonform import JsonObject, decode
from relight.progress import Ledger
from relight.suspects import Suspicion
from relight.types import (
    Action,
    AttemptId,
    Attribution,
    ClusterId,
    FailureName,
    NodeName,
    WorkloadId,
)

if TYPE_CHECKING:
    from service.projection import Projection

REMEMBERED = timedelta(days=7)
DRAINED = "drained"
_NOBODY = WorkloadId("")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """Somebody named a node: `source` is whose word it is, so that one voice is not counted twice."""

    at: datetime
    cluster: ClusterId
    node: NodeName
    source: str
    is_independent: bool
    workload: WorkloadId
    attempt: AttemptId | None
    failure: FailureName
    gpu: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSeen:
    at: datetime
    cluster: ClusterId
    workload: WorkloadId
    attempt: AttemptId
    failure: FailureName


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartDone:
    at: datetime
    cluster: ClusterId
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeExcluded:
    at: datetime
    cluster: ClusterId
    node: NodeName


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrained:
    """Somebody took a node out, at a time that the scheduler told."""

    at: datetime
    cluster: ClusterId
    node: NodeName


class Past:
    """A fold beside `Projection`: what policy wants to know of the time before an attempt."""

    def __init__(self) -> None:
        self.ledgers: dict[WorkloadId, list[tuple[AttemptId, Ledger]]] = {}
        self.suspicion: dict[ClusterId, Suspicion] = {}
        self.accusations: list[Accusation] = []
        self.failures: list[FailureSeen] = []
        self.restarts: list[RestartDone] = []
        self.excluded: list[NodeExcluded] = []
        self.drained: list[NodeDrained] = []

    def ledger_before(self, workload: WorkloadId, attempt: AttemptId) -> Ledger:
        """What was spent before this attempt: a revised verdict on it must not count it twice."""
        earlier = [ledger for owner, ledger in self.ledgers.get(workload, ()) if owner != attempt]
        return earlier[-1] if earlier else Ledger()

    def apply(self, event: Event, state: Projection) -> None:
        match event:
            case RecommendationIssued() if event.verdict:
                self._decided(event, state)
            case ReconciliationReported() if event.disposition is Disposition.CONVERGED:
                self._executed(event, state)
            case ExclusionAdded():
                cluster = event.cluster or ClusterId("")
                self.excluded.append(NodeExcluded(at=event.at, cluster=cluster, node=event.node))
            case ExclusionPardoned():
                self._pardoned(event)
            case SignalAccepted() if event.counts.get("node_events"):
                self._node_events(event)
            case _:
                pass  # the other events say nothing of the past that policy asks for

    def _decided(self, event: RecommendationIssued, state: Projection) -> None:
        workload, cluster = event.workload or _NOBODY, event.cluster or ClusterId("")
        self._spent(workload, event)
        is_first = event.generation == 1
        made = state.attribution(event.attempt)
        if made is None:
            return
        said = decode(Attribution, made.event.attribution)
        self.suspicion[cluster] = self.suspicion.get(cluster, Suspicion()).accused(
            said.suspects,
            attempt=event.attempt,
            workload=workload,
            failure_class=said.failure_class,
            at=event.at,
        )
        attempt = state.attempts.get(event.attempt)
        user = str(attempt.detail("user", "")) if attempt else ""
        known = {(a.node, a.gpu) for a in self.accusations if a.attempt == event.attempt}
        self.accusations = [a for a in self.accusations if event.at - a.at <= REMEMBERED] + [
            Accusation(
                at=event.at, cluster=cluster, node=one.node, source=f"user:{user}" if user else workload,
                is_independent=one.is_independent, workload=workload, attempt=event.attempt,
                failure=event.failure, gpu=one.gpu,
            )
            for one in said.suspects
            if one.node is not None and (one.node, one.gpu) not in known
        ]  # fmt: skip
        if is_first:
            seen = FailureSeen(
                at=event.at, cluster=cluster, workload=workload, attempt=event.attempt, failure=event.failure
            )
            self.failures = [f for f in self.failures if event.at - f.at <= REMEMBERED] + [seen]

    def _spent(self, workload: WorkloadId, event: RecommendationIssued) -> None:
        after = event.ledgers.get("after")
        if not isinstance(after, Mapping):
            return
        kept = [pair for pair in self.ledgers.get(workload, ()) if pair[0] != event.attempt]
        self.ledgers[workload] = [*kept, (event.attempt, ledger_from(after))]

    def _executed(self, event: ReconciliationReported, state: Projection) -> None:
        known = state.recommendations.get(event.recommendation)
        if known is None or known.issued.action not in {Action.RESTART, Action.RESTART_EXCLUDING}:
            return
        attempt = state.attempts.get(known.issued.attempt)
        done = RestartDone(
            at=event.at,
            cluster=known.issued.cluster or ClusterId(""),
            user=str(attempt.detail("user", "")) if attempt else "",
        )
        self.restarts = [r for r in self.restarts if event.at - r.at <= REMEMBERED] + [done]

    def _pardoned(self, event: ExclusionPardoned) -> None:
        cluster = event.cluster or ClusterId("")
        self.suspicion[cluster] = self.suspicion.get(cluster, Suspicion()).pardoned(event.node)
        self.accusations = [a for a in self.accusations if (a.cluster, a.node) != (cluster, event.node)]

    def _node_events(self, event: SignalAccepted) -> None:
        cluster = event.cluster or ClusterId("")
        fresh = [one for one in self.drained if event.at - one.at <= REMEMBERED]
        self.drained = fresh + [
            NodeDrained(at=datetime.fromisoformat(one["at"]), cluster=cluster, node=NodeName(str(one["node"])))
            for one in event.counts["node_events"]
            if one.get("code") == DRAINED and "at" in one
        ]
        kept = [a for a in self.accusations if event.at - a.at <= REMEMBERED]
        self.accusations = kept + [
            Accusation(
                at=event.at, cluster=cluster, node=NodeName(str(one["node"])), source=f"node:{event.source}",
                is_independent=True, workload=_NOBODY, attempt=None, failure=FailureName(str(one["code"])),
            )
            for one in event.counts["node_events"]
            if one.get("is_fatal")
        ]  # fmt: skip


def ledger_from(said: JsonObject) -> Ledger:
    """The ledger that was written as JSON; times inside a mapping are not typed by annotation."""
    times = said.get("same_node_at") or {}
    plain = decode(Ledger, {name: value for name, value in said.items() if name != "same_node_at"})
    return replace(
        plain,
        same_node=MappingProxyType(dict(plain.same_node)),
        same_node_at=MappingProxyType({key: datetime.fromisoformat(at) for key, at in times.items()}),
    )
