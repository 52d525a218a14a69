# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which process on which host is which rank, by what NCCL prints when the ranks of a job find each other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from detectors.evidence import LogEvidence
from relight.types import NodeName, Rank, SignatureId

MAX_PLACED = 100_000
# `gpu-3:1811:2290 [5] NCCL INFO comm 0x55d0 rank 29 nranks 64 cudaDev 5 nvmlDev 5 busId c3000 …`, since NCCL 2.4.
_COMMUNICATOR = re.compile(
    rb"([A-Za-z][\w.-]*):(\d+):\d+ \[\d+\] NCCL INFO [^\n]{0,80}?\bcomm 0x[\da-f]+ rank (\d+) n[rR]anks (\d+)\b"
    rb"(?: cudaDev (\d+))?(?: nvmlDev (\d+))?(?: busId ([\da-f]+))?"
)
HINT = b"anks "
_SEVERAL_TASKS = re.compile(r"\d{1,6}(?:-\d{1,6})?(?:,\d{1,6}(?:-\d{1,6})?)+|\d{1,6}-\d{1,6}")
_MAX_TASKS = 256
_EXIT_REPORT = SignatureId("pytorch.exit_report")
_REPORTED_HOST = re.compile(rb"\bhost\s+: ([\w.-]+)\s*$")
_REPORTED_PID = re.compile(rb"\bexitcode\s+: -?\d+ \(pid: (\d+)\)")


@dataclass(frozen=True, slots=True)
class _Process:
    host: str
    pid: int
    device: int | None
    bus: int | None


@dataclass(slots=True)
class Placement:
    """Ranks of the largest communicator, each with the one process that said so.

    Shapes: at most 100,000 ranks; `read` may be called with any batch of a job's own lines, in order.
    Errors: none. Where two processes claim one rank, the communicator is not the whole job's, and nothing is known.
    Source: NCCL's `NCCL_DEBUG=INFO`, init.cc.
    """

    size: int = 0
    is_contradicted: bool = False
    _ranks: dict[int, _Process] = field(default_factory=dict)

    def read(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if HINT in line and (found := _COMMUNICATOR.search(line)) is not None:
                host, pid, rank, size, cuda, nvml, bus = found.groups()
                device = nvml if nvml is not None else cuda
                said = _Process(
                    host.decode(),
                    int(pid),
                    int(device) if device is not None else None,
                    int(bus, 16) if bus is not None else None,
                )
                self._take(said, int(rank), int(size))

    def _take(self, said: _Process, rank: int, size: int) -> None:
        if size > self.size:
            self.size, self.is_contradicted, self._ranks = size, False, {}
        if size < self.size or rank >= size or len(self._ranks) >= MAX_PLACED:
            return
        known = self._ranks.setdefault(rank, said)
        if (known.host, known.pid) != (said.host, said.pid):
            self.is_contradicted = True

    @property
    def rank_to_node(self) -> dict[Rank, NodeName]:
        """Every rank's node, or nothing: a part of the map would make its members look special.

        Ranks that say nothing are placed where those who speak leave no choice: each node has one block of ranks, in
        the order of its devices, all of one length.
        """
        if self.is_contradicted or not self._ranks:
            return {}
        if len(self._ranks) == self.size:
            return {Rank(rank): NodeName(one.host) for rank, one in sorted(self._ranks.items())}
        first: dict[str, set[int]] = {}
        for rank, one in self._ranks.items():
            if one.device is None:
                return {}
            first.setdefault(one.host, set()).add(rank - one.device)
        blocks = sorted((min(starts), host) for host, starts in first.items() if len(starts) == 1)
        length = self.size // len(first)
        if len(blocks) < len(first) or [start for start, _ in blocks] != [n * length for n in range(len(first))]:
            return {}
        if length * len(first) != self.size:
            return {}
        return {Rank(start + n): NodeName(host) for start, host in blocks for n in range(length)}

    @property
    def reported_places(self) -> dict[Rank, NodeName]:
        """The nodes of those ranks that spoke."""
        known = {} if self.is_contradicted else self._ranks
        return {Rank(rank): NodeName(one.host) for rank, one in known.items()}

    @property
    def process_ranks(self) -> dict[tuple[NodeName, int], Rank]:
        """Global ranks by host and process."""
        known = {} if self.is_contradicted else self._ranks
        return {(NodeName(one.host), one.pid): Rank(rank) for rank, one in known.items()}

    @property
    def device_ranks(self) -> dict[tuple[NodeName, int], Rank]:
        """Global ranks by host and the address of their GPU on the bus, as a number (domain, bus, device, function)."""
        known = {} if self.is_contradicted else self._ranks
        return {(NodeName(one.host), one.bus): Rank(rank) for rank, one in known.items() if one.bus is not None}


def reported_processes(read: LogEvidence) -> dict[tuple[NodeName, int | None], Rank]:
    """Ranks by host and process, by torchrun's report: host, rank and exit code on three lines in turn."""
    out: dict[tuple[NodeName, int | None], Rank] = {}
    for e in read.evidence:
        rank = e.captures.get("rank")
        if e.signature != _EXIT_REPORT or not isinstance(rank, int):
            continue
        index = e.order - read.base
        around = read.log.lines[index - 1 : index + 2] if index > 0 else []
        host = _REPORTED_HOST.search(around[0]) if around else None
        pid = _REPORTED_PID.search(around[2]) if len(around) > 2 else None
        if host is not None:
            out.setdefault((NodeName(host[1].decode()), int(pid[1]) if pid is not None else None), Rank(rank))
    return out


def reported_tasks(read: LogEvidence) -> dict[Rank, NodeName]:
    """Where tasks ran, by srun's report on those that ended: `srun: error: n3: tasks 16-23: Exited …`.

    Only where a node has several tasks is a task a rank: a lone one may be a launcher with ranks of its own.
    """
    out: dict[Rank, NodeName] = {}
    for e in read.evidence:
        node, tasks = e.captures.get("node"), str(e.captures.get("tasks", ""))
        if node is None or _SEVERAL_TASKS.fullmatch(tasks) is None or {"[", ","} & set(str(node)):
            continue
        for part in tasks.split(","):
            first, _, last = part.partition("-")
            for task in range(int(first), min(int(last or first), int(first) + _MAX_TASKS) + 1):
                out[Rank(task)] = NodeName(str(node))
    return out
