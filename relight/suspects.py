# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How much a node is suspected, over attempts and workloads, with decay, caps and pardon."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from types import MappingProxyType

from relight.types import AttemptId, FailureClass, NodeName, Suspect, WorkloadId

# Prior share of bad nodes and failures a day of good and bad ones. Assumed from published fleet
# figures (about 6.5 failures per 1,000 node-days); they set the scale, sites only need the order.
PRIOR = 0.015
HEALTHY_PER_DAY = 0.0065
LEMON_PER_DAY = 0.35
HALF_LIFE = timedelta(days=14)
INCIDENT_CAP = math.log(30.0)
TOTAL_CAP = 3 * INCIDENT_CAP
CORRELATED_NODES = 3
REMEMBERED_ATTEMPTS = 16

_Change = Callable[[float], float]

# How far a failure of a class speaks of the node it happened on.
CLASS_WEIGHT: Mapping[FailureClass, float] = MappingProxyType(
    {
        FailureClass.HARDWARE: 1.0,
        FailureClass.NETWORK: 0.5,
        FailureClass.SYSTEM_SOFTWARE: 0.3,
        FailureClass.STORAGE: 0.3,
        FailureClass.UNKNOWN: 0.1,
        FailureClass.APPLICATION: 0.0,
        FailureClass.RESOURCE: 0.0,
        FailureClass.USER_OR_SCHEDULER: 0.0,
        FailureClass.BENIGN: 0.0,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeRecord:
    """The evidence against one node as of `at`: log Bayes factor, who accused it, and for what attempts."""

    log_factor: float
    at: datetime
    attempts: tuple[AttemptId, ...] = ()
    workloads: tuple[WorkloadId, ...] = ()
    times: int = 0

    def aged(self, at: datetime) -> float:
        """The log Bayes factor at `at`; a clock that went back ages nothing."""
        elapsed = max((at - self.at) / HALF_LIFE, 0.0)
        return self.log_factor * math.pow(2.0, -elapsed)


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """The standing suspicion against every node; a value, each method returns a new one.

    Units: natural-log Bayes factors in favour of "this node fails more than others".
    """

    records: Mapping[NodeName, NodeRecord] = field(default_factory=dict)

    def accused(
        self,
        suspects: Iterable[Suspect],
        *,
        attempt: AttemptId,
        workload: WorkloadId,
        failure_class: FailureClass,
        at: datetime,
        precision: float = 1.0,
        racks: Mapping[NodeName, str] | None = None,
    ) -> Suspicion:
        """Suspicion after an attempt named nodes; at most once per attempt and node.

        `precision` is how often such accusations proved right (0..1, from bench tests). Many nodes at
        once speak of a shared cause: then nobody's suspicion rises.
        """
        weights: dict[NodeName, float] = {}
        for suspect in suspects:
            if suspect.node is not None:
                weights[suspect.node] = max(weights.get(suspect.node, 0.0), _unit(suspect.score))
        if not weights or shares_a_cause(weights, racks or {}):
            return self
        scale = CLASS_WEIGHT[failure_class] * _unit(precision)
        records = dict(self.records)
        for node, weight in weights.items():
            record = records.get(node, NodeRecord(log_factor=0.0, at=at))
            if attempt not in record.attempts:
                records[node] = _charged(record, weight * scale, attempt, workload, at)
        return replace(self, records=records)

    def ran_well(self, nodes: Iterable[NodeName], duration: timedelta, at: datetime) -> Suspicion:
        """Time in service without an incident speaks for a node, down to no suspicion at all."""
        relief = (LEMON_PER_DAY - HEALTHY_PER_DAY) * max(duration / timedelta(days=1), 0.0)
        return self._scaled(nodes, at, lambda factor: max(factor - relief, 0.0))

    def bench_passed(self, node: NodeName, at: datetime) -> Suspicion:
        """A clean bench test halves what is held against a node."""
        return self._scaled((node,), at, lambda factor: factor / 2)

    def pardoned(self, node: NodeName) -> Suspicion:
        """An operator's word: nothing is held against the node any more."""
        return replace(self, records={n: r for n, r in self.records.items() if n != node})

    def probability(self, node: NodeName, at: datetime) -> float:
        """Probability in (0, 1) that the node is a bad one; the prior for a node never accused."""
        record = self.records.get(node)
        log_factor = 0.0 if record is None else record.aged(at)
        return 1.0 / (1.0 + math.exp(-(math.log(PRIOR / (1.0 - PRIOR)) + log_factor)))

    def workloads(self, node: NodeName) -> tuple[WorkloadId, ...]:
        """The distinct workloads that accused a node; two of them are worth more than one twice."""
        record = self.records.get(node)
        return () if record is None else record.workloads

    def ranked(self, at: datetime) -> tuple[tuple[NodeName, float], ...]:
        """Every node held in suspicion, the most suspected first."""
        pairs = ((n, self.probability(n, at)) for n in self.records)
        return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))

    def _scaled(self, nodes: Iterable[NodeName], at: datetime, change: _Change) -> Suspicion:
        records = dict(self.records)
        for node in nodes:
            record = records.get(node)
            if record is not None:
                records[node] = replace(record, log_factor=change(record.aged(at)), at=max(at, record.at))
        return replace(self, records=records)


def shares_a_cause(
    nodes: Iterable[NodeName],
    racks: Mapping[NodeName, str],
    *,
    allocated: Iterable[NodeName] = (),
    at_most: int = CORRELATED_NODES,
) -> bool:
    """True if so many nodes are named at once that one cause behind them is likelier than many.

    More than `at_most` nodes; or at least half, and two or more, of a rack with four or more
    nodes of the job.
    """
    named = set(nodes)
    if len(named) > at_most:
        return True
    members: dict[str, set[NodeName]] = {}
    own = set(allocated)
    for node, rack in racks.items():
        if not own or node in own:
            members.setdefault(rack, set()).add(node)
    return any(
        len(there) >= 4 and len(there & named) >= 2 and 2 * len(there & named) >= len(there)
        for there in members.values()
    )


def _charged(record: NodeRecord, weight: float, attempt: AttemptId, workload: WorkloadId, at: datetime) -> NodeRecord:
    gain = math.log((1.0 - weight) + weight * LEMON_PER_DAY / HEALTHY_PER_DAY)
    factor = min(record.aged(at) + min(gain, INCIDENT_CAP), TOTAL_CAP)
    return NodeRecord(
        log_factor=factor,
        at=max(at, record.at),
        attempts=(*record.attempts, attempt)[-REMEMBERED_ATTEMPTS:],
        workloads=tuple(dict.fromkeys((*record.workloads, workload)))[-REMEMBERED_ATTEMPTS:],
        times=record.times + 1,
    )


def _unit(value: float) -> float:
    """Into 0..1; what is not a number says nothing."""
    return 0.0 if math.isnan(value) else min(max(value, 0.0), 1.0)
