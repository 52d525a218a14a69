# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Who ran where: ranks tied to processes, GPUs and nodes, and whether a witness speaks of the job's nodes at all."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

from relight.types import Evidence, NodeName, Rank, SignatureId

_OWN_ADDRESS = SignatureId("nccl.own_address")
_SEVERAL = 4
_NODE_RANKS = 8
_ENDED_BY_OTHERS = frozenset({"Terminated", "Killed"})
_PCI = re.compile(r"(?:([\da-fA-F]{4,8}):)?([\da-fA-F]{2}):([\da-fA-F]{2})(?:\.([0-7]))?")
_DIGITS = re.compile(r"\d+")


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


def bus_address(pci: str) -> int | None:
    """`0000:c3:00.0` as the number that NCCL prints as `busId` (0xc3000); None for other texts."""
    found = _PCI.fullmatch(pci)
    if found is None:
        return None
    domain, bus, device, function = (int(part, 16) if part else 0 for part in found.groups())
    return (domain << 20) + (bus << 12) + (device << 4) + function


def named_nodes(e: Evidence) -> frozenset[NodeName]:
    """The nodes that a line speaks of."""
    told = e.captures.get("nodes") or e.captures.get("node")
    return frozenset(NodeName(n) for n in str(told).split(",") if n) if told is not None else frozenset()


def is_elsewhere(e: Evidence, allocated: frozenset[NodeName]) -> bool:
    """Whether a witness from outside speaks only of nodes that the job was not given.

    A name counts as another node only if it is formed like one of the job's own: aliases prove nothing.
    """
    if not allocated or not e.stream.is_independent:
        return False
    told = e.captures.get("nodes") or e.captures.get("node") or e.node
    names = [_short(n) for n in str(told).split(",") if n] if told is not None else []
    own = {_short(n) for n in allocated}
    forms = {_DIGITS.sub("#", n) for n in own}
    return bool(names) and all(n not in own and _DIGITS.sub("#", n) in forms for n in names)


def _short(node: str) -> str:
    return node.split(".")[0].lower()


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
