# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which of the accused nodes may be excluded: evidence first, then every limit on the damage."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from relight.policy_terms import Facts, History, PolicyEntry, PolicyTable
from relight.suspects import shares_a_cause
from relight.types import Attribution, EvidenceStatus, Exclusion, NodeName, Suspect

OWN_WITNESS = "job_log"
INDEPENDENT_WITNESS = "node_or_scheduler_log"
CERTAIN = 0.9

# A name that reaches a scheduler's command line; anything else in a log is not a node.
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}\Z")


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """All that is said against one node (or against the whole NVLink domain it drags along)."""

    node: NodeName
    members: tuple[NodeName, ...]
    score: float
    is_independent: bool
    sources: tuple[str, ...]
    probability: float
    reason: str

    @property
    def strength(self) -> tuple[bool, int, float, float]:
        return (self.is_independent, len(self.sources), self.probability, self.score)


@dataclass(frozen=True, slots=True, kw_only=True)
class Narrowed:
    """The exclusions that survived, and what was dropped on the way, each with its reason."""

    exclusions: tuple[Exclusion, ...] = ()
    basis: tuple[str, ...] = ()
    is_out_of_capacity: bool = False


def narrow(
    attribution: Attribution,
    entry: PolicyEntry,
    history: History,
    facts: Facts,
    table: PolicyTable,
    *,
    at: datetime,
) -> Narrowed:
    """From suspects to exclusions under every limit; fewer than asked for is said, never hidden."""
    basis: list[str] = []
    suspects = _nameable(attribution.suspects, facts, basis)
    if shares_a_cause(
        {s.node for s in suspects if s.node is not None},
        facts.racks,
        allocated=facts.allocated_nodes,
        at_most=table.limits.correlated_nodes,
    ):
        return Narrowed(basis=(*basis, "no exclusion: many nodes at once share a cause"))
    accused = _accusations(suspects, attribution, entry, history, facts, at)
    accused = _per_decision(accused, table.limits.nodes_per_decision, basis)
    accused = _within_limits(accused, history, facts, table, basis, at)
    fitting = _with_capacity(accused, attribution, history, facts, table, basis)
    made = [e for a in fitting for e in _exclusions(a, history, table, at)]
    return Narrowed(
        exclusions=tuple({e.node: e for e in made}.values()),
        basis=tuple(basis),
        is_out_of_capacity=bool(accused) and not fitting,
    )


def partition_size(history: History, facts: Facts) -> int:
    """Nodes that the percentages refer to: as reported, and never below what the job itself has."""
    reported = history.partition_nodes or history.cluster_nodes or 0
    return max(reported, len(facts.allocated_nodes), facts.requested_nodes)


def _is_sized(history: History) -> bool:
    return bool(history.partition_nodes or history.cluster_nodes)


def witnesses(node: NodeName, suspects: Iterable[Suspect], history: History) -> tuple[str, ...]:
    """The distinct sources that accuse a node, now and before."""
    now = (INDEPENDENT_WITNESS if s.is_independent else OWN_WITNESS for s in suspects if s.node == node)
    return tuple(dict.fromkeys((*now, *(w.source for w in history.witnesses.get(node, ())))))


def short_name(node: str) -> str:
    """A host without its domain: logs and schedulers rarely agree on the long form."""
    return node.split(".", 1)[0].lower()


def _nameable(suspects: Sequence[Suspect], facts: Facts, basis: list[str]) -> tuple[Suspect, ...]:
    """Suspects with a node this job may accuse: well named, its own, and not excluded by its user."""
    own = {short_name(n): n for n in facts.allocated_nodes}
    users = {short_name(n) for n in facts.user_exclusions}
    kept: list[Suspect] = []
    for suspect in suspects:
        if suspect.node is None:
            continue
        name = suspect.node
        if not _NODE_NAME.match(name):
            basis.append("dropped a suspect: not a node name")
        elif own and short_name(name) not in own:
            basis.append(f"dropped {name}: not a node of this job")
        elif short_name(name) in users:
            basis.append(f"dropped {name}: its user excludes it already")
        else:
            kept.append(replace(suspect, node=own.get(short_name(name), name)))
    return tuple(kept)


def _accusations(
    suspects: Sequence[Suspect],
    attribution: Attribution,
    entry: PolicyEntry,
    history: History,
    facts: Facts,
    at: datetime,
) -> list[Accusation]:
    """One accusation a node or a domain, the strongest first."""
    grouped: dict[str, list[Suspect]] = {}
    for suspect in suspects:
        node = NodeName(str(suspect.node))
        domain = facts.domains.get(node) if entry.is_domain_wide else None
        grouped.setdefault(f"domain {domain}" if domain else f"node {node}", []).append(suspect)
    accused = [
        _accusation(group, is_domain.startswith("domain "), attribution, history, facts, at)
        for is_domain, group in grouped.items()
    ]
    return sorted(accused, key=lambda a: (a.strength, a.node), reverse=True)


def _accusation(
    group: Sequence[Suspect],
    is_domain: bool,
    attribution: Attribution,
    history: History,
    facts: Facts,
    at: datetime,
) -> Accusation:
    first = max(group, key=lambda s: (s.is_independent, s.score, str(s.node)))
    node = NodeName(str(first.node))
    members: tuple[NodeName, ...] = (node,)
    if is_domain:
        own = set(facts.allocated_nodes)
        members = tuple(
            sorted(n for n, domain in facts.domains.items() if domain == facts.domains[node] and (not own or n in own))
        ) or (node,)
    earlier = [w for s in group if s.node is not None for w in history.witnesses.get(s.node, ())]
    return Accusation(
        node=node,
        members=members,
        score=first.score,
        is_independent=any(s.is_independent for s in group) or any(w.is_independent for w in earlier),
        sources=tuple(dict.fromkeys(w for s in group if s.node is not None for w in witnesses(s.node, group, history))),
        probability=max(history.suspicion.probability(n, at) for n in members),
        reason=first.reason or str(attribution.failure),
    )


def _per_decision(accused: list[Accusation], limit: int, basis: list[str]) -> list[Accusation]:
    basis += [f"dropped {extra.node}: at most {limit} nodes a decision" for extra in accused[limit:]]
    return accused[:limit]


def _within_limits(
    accused: list[Accusation],
    history: History,
    facts: Facts,
    table: PolicyTable,
    basis: list[str],
    at: datetime,
) -> list[Accusation]:
    """What still fits into the hour and into the standing share; a domain fits whole or not at all."""
    size = partition_size(history, facts)
    standing = {e.node for e in history.exclusions if e.expires_at > at}
    hourly_left = table.limits.per_hour(size) - history.excluded_last_hour
    standing_left = table.limits.standing(size, is_known=_is_sized(history)) - len(standing)
    kept: list[Accusation] = []
    for one in accused:
        new = [n for n in one.members if n not in standing]
        if len(new) > hourly_left:
            basis.append(f"dropped {one.node}: the hour's limit of exclusions is reached")
        elif len(new) > standing_left:
            basis.append(f"dropped {one.node}: the limit of standing exclusions is reached")
        else:
            hourly_left -= len(new)
            standing_left -= len(new)
            kept.append(one)
    return kept


def _with_capacity(
    accused: list[Accusation],
    attribution: Attribution,
    history: History,
    facts: Facts,
    table: PolicyTable,
    basis: list[str],
) -> list[Accusation]:
    """Drop the weakest accusations until the workload can still start; scarce spares need hard facts."""
    if history.eligible_nodes is None:
        return accused
    need = max(facts.requested_nodes, 1)
    kept = list(accused)
    while kept:
        # A node that the scheduler holds for dead is no capacity: leaving it out costs nothing.
        dead = set(facts.failed_nodes)
        cost = len({n for a in kept for n in a.members} - dead)
        spares = history.eligible_nodes - cost - need
        if spares < 0:
            dropped = kept.pop()
            basis.append(f"dropped {dropped.node}: without it too few nodes are left to start on")
            continue
        soft = [a for a in kept if not _is_hard(a, attribution)]
        if spares > table.limits.scarce_spares or not soft:
            break
        kept.remove(soft[-1])
        basis.append(f"dropped {soft[-1].node}: spares are scarce and the evidence is not a hard fact")
    return kept


def _is_hard(accusation: Accusation, attribution: Attribution) -> bool:
    is_fact = accusation.is_independent and attribution.evidence_status is EvidenceStatus.ESTABLISHED
    return is_fact or accusation.probability >= CERTAIN


def _exclusions(accusation: Accusation, history: History, table: PolicyTable, at: datetime) -> Iterable[Exclusion]:
    """Cluster scope takes several sources, one of them out of the user's reach; else the workload only."""
    is_witnessed = accusation.is_independent and len(accusation.sources) >= table.limits.cluster_witnesses
    for node in accusation.members:
        yield Exclusion(
            node=node,
            reason=accusation.reason,
            score=accusation.score,
            expires_at=at + table.terms.of(history.relapses.get(node, 0)),
            scope="cluster" if is_witnessed else "workload",
        )
