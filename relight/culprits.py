# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whom a failure accuses: ranks that caused it and nodes it happened on, never the victims that report it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from relight.types import Evidence, FailureClass, FailureName, NodeName, Rank, Role, Stream, Suspect, Taxonomy

# Failures whose reporters are victims: who speaks waited for somebody else.
VICTIMS_REPORT = frozenset(
    map(
        FailureName,
        (
            "nccl_collective_timeout",
            "nccl_early_timeout",
            "collective_desync",
            "remote_peer_exited",
            "barrier_timeout_at_checkpoint",
            "rendezvous_lost",
            "rendezvous_unreachable",
            "silent_hang",
        ),
    )
)
_ALL_RANKS_FAIL = frozenset(map(FailureName, ("time_limit", "preempted", "user_cancelled", "node_removed")))
_KILLED = FailureName("killed_unconfirmed")
_DESYNC = FailureName("collective_desync")
_KILLS_WORKERS = frozenset(map(FailureName, ("host_oom_killed", "host_oom_other_process", "node_memory_pressure")))
# A value that the next all-reduce hands to everybody: once several ranks show it, none can be told from it.
_SPREADS = frozenset({FailureName("nan_gradient")})
_MAX_NODES = 64
_DIGITS = re.compile(r"\d+")


def culprit_ranks(
    failure: FailureName,
    winner: Evidence,
    claims: Sequence[Evidence],
    evidence: Sequence[Evidence],
    rank_to_node: Mapping[Rank, NodeName],
    logged_ranks: frozenset[Rank],
    taxonomy: Taxonomy,
) -> tuple[Rank, ...]:
    """Global ranks that the evidence accuses, in order of appearance; empty means not known.

    `claims` are those that may still be the cause, `evidence` is all there is.
    """
    if failure in _ALL_RANKS_FAIL:
        return ()
    if failure == _DESYNC and (few := _in_another_collective(claims)):
        return few
    named = _named_ranks(claims, winner.failure)
    if named:
        return named
    if failure in VICTIMS_REPORT:
        return _behind(evidence) or _missing(claims, rank_to_node, logged_ranks)
    if winner.stream.is_independent and not isinstance(winner.captures.get("rank"), int):
        own = _own_words(winner, claims, rank_to_node, taxonomy)
        if own:
            return own
    out: dict[Rank, None] = {}
    for e in (winner, *(c for c in claims if _is_alike(c, winner))):
        for rank in _accused_ranks(e, rank_to_node):
            out.setdefault(rank)
    if not out and failure in _KILLS_WORKERS:
        # The kernel names a process, the launcher the rank that got the signal.
        killed = [r for c in claims if c.failure == _KILLED for r in _accused_ranks(c, rank_to_node)]
        return tuple(dict.fromkeys(killed)) or _killed_tasks(claims, failure, rank_to_node)
    return () if failure in _SPREADS and len(out) > 1 else tuple(out)


def _behind(evidence: Sequence[Evidence]) -> tuple[Rank, ...]:
    """The ranks that never enqueued the collective in which the others wait, group by group."""
    stuck: dict[str, int] = {}
    enqueued: dict[str, dict[Rank, int]] = {}
    for e in evidence:
        group, seq, last = str(e.captures.get("group", "")), e.captures.get("seq"), e.captures.get("last_enqueued")
        if isinstance(seq, int):
            stuck[group] = min(seq, stuck.get(group, seq))
        if isinstance(last, int) and e.rank is not None:
            ranks = enqueued.setdefault(group, {})
            ranks[e.rank] = max(last, ranks.get(e.rank, last))
    for group, ranks in enqueued.items():
        behind = tuple(r for r, last in ranks.items() if group in stuck and last < stuck[group])
        if behind and len(behind) * 2 < len(ranks):
            return behind
    return ()


def _in_another_collective(claims: Sequence[Evidence]) -> tuple[Rank, ...]:
    """The few that wait in another collective than most; without a clear majority nobody is accused."""
    first: dict[Rank, str] = {}
    for c in claims:
        if c.rank is not None and c.captures.get("op") is not None:
            first.setdefault(c.rank, str(c.captures["op"]))
    ops = sorted(first.values(), key=lambda op: -sum(o == op for o in first.values()))
    few = tuple(r for r, op in first.items() if op != ops[0])
    return few if len(few) * 2 < len(first) else ()


def _own_words(
    winner: Evidence, claims: Sequence[Evidence], rank_to_node: Mapping[Rank, NodeName], taxonomy: Taxonomy
) -> tuple[Rank, ...]:
    """Ranks whose own processes name a cause, where a witness from outside names only the node.

    A broken device is told from what its neighbours then run into.
    """
    told = [c for c in claims if c.rank is not None and c.stream is Stream.APPLICATION]
    own = [c for c in told if c.role is Role.ROOT or c.failure == winner.failure]
    own = own or [c for c in told if c.failure not in VICTIMS_REPORT]
    own = [c for c in own if taxonomy[c.failure].failure_class is FailureClass.HARDWARE] or own
    accused = set(_accused_nodes(winner, rank_to_node))
    ranks = dict.fromkeys(c.rank for c in own if c.rank is not None)
    return tuple(r for r in ranks if rank_to_node.get(r) is None or rank_to_node[r] in accused)


def _killed_tasks(
    claims: Sequence[Evidence], failure: FailureName, rank_to_node: Mapping[Rank, NodeName]
) -> tuple[Rank, ...]:
    """The tasks that the launcher names for the same failure, unless places show that a task holds several ranks."""
    tasks = [str(c.captures["tasks"]) for c in claims if c.failure == failure and c.captures.get("tasks")]
    ranks = tuple(Rank(int(t)) for t in tasks if t.isdigit())
    return ranks if not rank_to_node or all(r in rank_to_node for r in ranks) else ()


def _is_alike(c: Evidence, winner: Evidence) -> bool:
    """The same claim from another rank; of exceptions only those with the same words: others are echoes."""
    if c.failure != winner.failure or c.role is not winner.role:
        return False
    if c.failure == _KILLED:
        return c.signature == winner.signature
    if "exception" not in winner.captures:
        return True
    return _DIGITS.sub("#", c.title) == _DIGITS.sub("#", winner.title)


def _accused_ranks(e: Evidence, rank_to_node: Mapping[Rank, NodeName]) -> tuple[Rank, ...]:
    if e.accuses_node == "captured" and e.captures.get("rank") is None:
        nodes = set(_accused_nodes(e, rank_to_node))
        tasks = str(e.captures.get("tasks", ""))
        if tasks.isdigit() and len(rank_to_node) in {0, len(set(rank_to_node.values()))}:
            return (Rank(int(tasks)),)
        return tuple(r for r, n in rank_to_node.items() if n in nodes)
    rank = _accused_rank(e)
    if rank is not None:
        return (rank,)
    if e.accuses_node == "none":
        return ()
    on_node = tuple(r for r, n in rank_to_node.items() if n == e.node)
    return on_node if len(on_node) == 1 else ()


def _named_ranks(claims: Sequence[Evidence], failure: FailureName) -> tuple[Rank, ...]:
    """Ranks that a line lists as missing or failed: `[missing ranks: 0, 3]`."""
    lists = [str(c.captures["ranks"]) for c in claims if c.failure == failure and c.captures.get("ranks")]
    return tuple(dict.fromkeys(Rank(int(n)) for text in lists for n in _DIGITS.findall(text)[:_MAX_NODES]))


def _accused_rank(e: Evidence) -> Rank | None:
    named = e.captures.get("rank")
    if isinstance(named, int):
        return Rank(named)
    if e.rank is not None:
        return e.rank
    local = e.captures.get("local_rank")
    return Rank(local) if isinstance(local, int) else None


def _missing(
    claims: Sequence[Evidence], rank_to_node: Mapping[Rank, NodeName], logged_ranks: frozenset[Rank]
) -> tuple[Rank, ...]:
    """The ranks that never complain while most others do; nothing if that is not a clear minority."""
    known = set(rank_to_node) | set(logged_ranks)
    reporters = {c.rank for c in claims if c.failure in VICTIMS_REPORT and c.rank is not None}
    missing = sorted((known - reporters) & set(logged_ranks))
    if not reporters or not missing or len(missing) * 2 >= len(known | reporters):
        return ()
    return tuple(missing)


def suspects_of(
    winner: Evidence, claims: Sequence[Evidence], rank_to_node: Mapping[Rank, NodeName]
) -> tuple[Suspect, ...]:
    """Nodes that the winning claim points to; claims of the same failure from elsewhere add theirs."""
    out: dict[NodeName, Suspect] = {}
    same = [c for c in claims if c.failure == winner.failure and c.role is winner.role]
    for e in (winner, *same):
        for node in _accused_nodes(e, rank_to_node):
            known = out.get(node)
            independent = e.stream.is_independent or bool(known and known.is_independent)
            gpu = e.captures.get("pci") or e.captures.get("uuid") or e.captures.get("gpu")
            out[node] = Suspect(
                node=node,
                rank=e.rank,
                gpu=str(gpu) if gpu is not None else None,
                is_independent=independent,
                score=1.0 if independent else 0.7,
                reason=f"{e.title} ({e.where.file}:{e.where.line})",
            )
            if len(out) >= _MAX_NODES:
                return tuple(out.values())
    return tuple(out.values())


def _accused_nodes(e: Evidence, rank_to_node: Mapping[Rank, NodeName]) -> tuple[NodeName, ...]:
    if e.accuses_node == "none":
        return ()
    if e.accuses_node == "captured":
        named = e.captures.get("nodes") or e.captures.get("node") or e.captures.get("peer")
        return tuple(NodeName(n) for n in str(named).split(",") if n) if named is not None else ()
    if e.node is not None:
        return (e.node,)
    rank = _accused_rank(e)
    return (rank_to_node[rank],) if rank is not None and rank in rank_to_node and e.role is Role.ROOT else ()
