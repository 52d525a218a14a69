# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whom a failure accuses: ranks that caused it and nodes it happened on, never the victims that report it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from relight.types import Evidence, FailureName, NodeName, Rank, Role, SignatureId, Stream, Suspect

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
_KILLS_WORKERS = frozenset(map(FailureName, ("host_oom_killed", "host_oom_other_process", "node_memory_pressure")))
# A value that the next all-reduce hands to everybody: once several ranks show it, none can be told from it.
_SPREADS = frozenset({FailureName("nan_gradient")})
_OWN_ADDRESS = SignatureId("nccl.own_address")
_MAX_NODES = 64
_SEVERAL = 4
_NODE_RANKS = 8
_ENDED_BY_OTHERS = frozenset({"Terminated", "Killed"})


def culprit_ranks(
    failure: FailureName,
    winner: Evidence,
    claims: Sequence[Evidence],
    rank_to_node: Mapping[Rank, NodeName],
    logged_ranks: frozenset[Rank],
) -> tuple[Rank, ...]:
    """Global ranks that the evidence accuses, in order of appearance; empty means not known."""
    if failure in _ALL_RANKS_FAIL:
        return ()
    named = _named_ranks(claims, winner.failure)
    if named:
        return named
    if failure in VICTIMS_REPORT:
        return _missing(claims, rank_to_node, logged_ranks)
    if winner.stream.is_independent and not isinstance(winner.captures.get("rank"), int):
        own = _own_words(winner, claims, rank_to_node)
        if own:
            return own
    out: dict[Rank, None] = {}
    for e in (winner, *(c for c in claims if _is_alike(c, winner))):
        for rank in _accused_ranks(e, rank_to_node):
            out.setdefault(rank)
    if not out and failure in _KILLS_WORKERS:
        # The kernel names a process, the launcher the rank that got the signal.
        return tuple(dict.fromkeys(r for c in claims if c.failure == _KILLED for r in _accused_ranks(c, rank_to_node)))
    return () if failure in _SPREADS and len(out) > 1 else tuple(out)


def _own_words(winner: Evidence, claims: Sequence[Evidence], rank_to_node: Mapping[Rank, NodeName]) -> tuple[Rank, ...]:
    """Ranks whose own processes name a cause, where a witness from outside names only the node."""
    told = [c for c in claims if c.rank is not None and c.stream is Stream.APPLICATION]
    own = [c for c in told if c.role is Role.ROOT or c.failure == winner.failure]
    own = own or [c for c in told if c.failure not in VICTIMS_REPORT]
    accused = set(_accused_nodes(winner, rank_to_node))
    ranks = dict.fromkeys(c.rank for c in own if c.rank is not None)
    return tuple(r for r in ranks if rank_to_node.get(r) is None or rank_to_node[r] in accused)


def nodes_of(ranks: Sequence[Rank], rank_to_node: Mapping[Rank, NodeName]) -> tuple[NodeName, ...]:
    """Where the culprit ranks ran, if they are few among the known ones: all ranks together name no node."""
    if not ranks or len(ranks) * 2 > len(rank_to_node):
        return ()
    return tuple(dict.fromkeys(rank_to_node[r] for r in ranks if r in rank_to_node))


def with_peer_names(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The same evidence with peers told by name, where a process of the host has said that the address is its own."""
    owners: dict[str, set[NodeName]] = {}
    for e in evidence:
        if e.signature == _OWN_ADDRESS and e.node is not None:
            owners.setdefault(str(e.captures.get("peer")), set()).add(e.node)
    names = {address: nodes.pop() for address, nodes in owners.items() if len(nodes) == 1}
    return [
        replace(e, captures={**e.captures, "peer": names[str(e.captures["peer"])]})
        if e.signature != _OWN_ADDRESS and str(e.captures.get("peer")) in names
        else e
        for e in evidence
    ]


def with_ranks(
    evidence: Sequence[Evidence],
    process_ranks: Mapping[tuple[NodeName, int], Rank],
    device_ranks: Mapping[tuple[NodeName, int], Rank],
) -> list[Evidence]:
    """The same evidence with the rank of each process or GPU that a line names.

    A process id without a node counts if only one host reported it.
    """
    by_pid: dict[int, set[Rank]] = {}
    for (_, pid), rank in process_ranks.items():
        by_pid.setdefault(pid, set()).add(rank)
    known = {pid: next(iter(ranks)) for pid, ranks in by_pid.items() if len(ranks) == 1}
    return [
        e if (stated := _stated_rank(e, process_ranks, device_ranks, known)) is None
        else replace(e, captures={**e.captures, "rank": stated})
        for e in evidence
    ]  # fmt: skip


def _stated_rank(
    e: Evidence,
    process_ranks: Mapping[tuple[NodeName, int], Rank],
    device_ranks: Mapping[tuple[NodeName, int], Rank],
    known: Mapping[int, Rank],
) -> Rank | None:
    if isinstance(e.captures.get("rank"), int) or e.rank is not None:
        return None
    address = bus_address(str(e.captures.get("pci", "")))
    if e.node is not None and address is not None and (e.node, address) in device_ranks:
        return device_ranks[e.node, address]
    pid = e.captures.get("pid")
    if not isinstance(pid, int):
        return None
    return process_ranks.get((e.node, pid)) if e.node is not None else known.get(pid)


_PCI = re.compile(r"(?:([\da-fA-F]{4,8}):)?([\da-fA-F]{2}):([\da-fA-F]{2})(?:\.([0-7]))?")


def bus_address(pci: str) -> int | None:
    """`0000:c3:00.0` as the number that NCCL prints as `busId` (0xc3000); None for other texts."""
    found = _PCI.fullmatch(pci)
    if found is None:
        return None
    domain, bus, device, function = (int(part, 16) if part else 0 for part in found.groups())
    return (domain << 20) + (bus << 12) + (device << 4) + function


def is_of_one_node(ranks: Sequence[Rank], rank_to_node: Mapping[Rank, NodeName], evidence: Sequence[Evidence]) -> bool:
    """Whether several ranks failed, all of one node, though others ran: then the node may differ, not the program.

    Without places it takes most of an aligned block of eight, and a report of tasks that were ended elsewhere.
    """
    if len(ranks) < _SEVERAL:
        return False
    if all(r in rank_to_node for r in ranks) and len(set(rank_to_node.values())) > 1:
        return len({rank_to_node[r] for r in ranks}) == 1
    ended = {
        str(e.captures["node"])
        for e in evidence
        if "tasks" in e.captures and e.captures.get("reason") in _ENDED_BY_OTHERS
    }
    return len({r // _NODE_RANKS for r in ranks}) == 1 and len(ended) > 1


_DIGITS = re.compile(r"\d+")


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
