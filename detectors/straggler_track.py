# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One attempt as the straggler detector sees it: its ranks, nodes and stages, and what to say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.peer_cusum import PeerCusum, PeerCusumOptions
from detectors.peer_groups import Floats, Slots
from detectors.rank_frames import RankFrames
from detectors.second_votes import SecondVotes
from detectors.stage_balance import StageBalance
from detectors.step_order import StepOrder
from detectors.straggler_words import Sighting, node_anomaly, rank_anomaly, stage_anomaly, structure_anomaly
from relight.jsonform import decode, encode
from relight.types import Anomaly, AttemptId, JobShape, NodeName

NODE_SHARE = 0.75
REPEATS = 3


class Track:
    """The state of one attempt; see `StragglerDetector` for shapes and units."""

    def __init__(self, options: PeerCusumOptions) -> None:
        self._options = options
        self.frames = RankFrames()
        self.order = StepOrder()
        self.shape: JobShape | None = None
        self._known: tuple[object, NDArray[np.int32]] | None = None
        self.start_over()

    def start_over(self) -> None:
        """Forget all baselines: the job is another one now."""
        self.engine = PeerCusum(self._options)
        self.votes = SecondVotes()
        self.stages = StageBalance(self._options)
        self._hot_nodes: set[str] = set()
        self._told_structure = False
        self._turn = 0
        self._began_s: float | None = None
        self._placed = False
        self._ordered: NDArray[np.int32] | None = None
        self._stages: Sequence[int] | None = None

    def take_shape(self, shape: JobShape) -> None:
        self.shape = shape
        self._placed = False
        self._ordered = None

    @property
    def nbytes(self) -> int:
        return self.engine.nbytes + (0 if self._known is None else int(self._known[1].nbytes))

    def as_ranks(self, ranks: Sequence[int]) -> NDArray[np.int32]:
        """The ranks as an array; the same object as in the last batch costs nothing."""
        if self._known is None or not (
            ranks is self._known[0] or (isinstance(ranks, range) and ranks == self._known[0])
        ):
            made = np.arange(ranks.start, ranks.stop, ranks.step) if isinstance(ranks, range) else np.asarray(ranks)
            self._known = (ranks if isinstance(ranks, range | tuple) else None, made.astype(np.int32))
        return self._known[1]

    # -------------------------------------------------------------- a step

    def see(
        self, attempt: AttemptId, step: int, at_s: float, ranks: NDArray[np.int32], work: Floats, wall_s: float,
        stages: Sequence[int] | None, *, learns: bool,
    ) -> tuple[Anomaly, ...]:  # fmt: skip
        """Judge one step; the arrays run in the order of `ranks`."""
        ordered = self._in_order(ranks, work, stages)
        if self._began_s is None:
            self._began_s = at_s
        new = self.engine.step(ordered, wall_s, at_s - self._began_s, learns=learns)
        self._ask_second(self.engine.residual, ordered)
        sighting = Sighting(
            attempt=attempt, step=step, at_s=at_s, began_s=self._began_s, engine=self.engine, votes=self.votes,
            work=ordered,
        )  # fmt: skip
        said = list(self._name(new, sighting)) if len(new) else []
        for stage, ratio, since_s, is_from_start in self.stages.see(self.engine, wall_s, at_s):
            said.append(stage_anomaly(sighting, stage, ratio, since_s, is_from_start))
        return tuple(said)

    def _in_order(self, ranks: NDArray[np.int32], work: Floats, stages: Sequence[int] | None) -> Floats:
        if ranks is self._ordered and (stages is None or stages is self._stages):
            return work
        engine, before = self.engine, len(self.engine.ranks)
        slots = engine.slots_of(ranks)
        if len(engine.ranks) != before:
            self._placed = False
        if stages is not None and len(stages) == len(slots):
            engine.place(slots, np.asarray(stages))
        elif not self._placed:
            self._place_by_shape()
        if len(ranks) == len(engine.ranks) and np.array_equal(ranks, engine.ranks):
            self._ordered, self._stages = ranks, stages
            return work
        self._ordered = None
        ordered = np.full(len(engine.ranks), np.nan, dtype=np.float32)
        ordered[slots[::-1]] = work[::-1]
        return ordered

    def _place_by_shape(self) -> None:
        self._placed = True
        known = self.shape.stages if self.shape is not None else ()
        if len(known):
            of_rank = np.asarray(known)
            ranks = np.clip(self.engine.ranks, 0, len(of_rank) - 1)
            self.engine.place(np.arange(len(ranks), dtype=np.int32), of_rank[ranks])

    def _ask_second(self, residual: Floats, work: Floats) -> None:
        """Feed ADWIN with the suspects' residuals, and its idea of the typical with one calm rank's."""
        engine = self.engine
        self._turn = (self._turn + 1) % max(len(residual), 1)
        thresholds = engine.threshold
        if engine.charge[self._turn] < thresholds[self._turn] / 4 and np.isfinite(work[self._turn]):
            self.votes.see_typical(float(residual[self._turn]))
        suspects = np.flatnonzero(engine.charge > thresholds / 4)
        self.votes.see({int(engine.ranks[s]): float(residual[s]) for s in suspects if np.isfinite(work[s])})

    # -------------------------------------------------------------- naming

    def node_of(self, rank: int) -> NodeName | None:
        nodes = self.shape.nodes if self.shape is not None else ()
        return nodes[rank] if 0 <= rank < len(nodes) else None

    def _name(self, new: Slots, sighting: Sighting) -> list[Anomaly]:
        said: list[Anomaly] = []
        warm = self.engine.charge > self.engine.threshold / 2
        told: set[str] = set()
        for slot in (int(s) for s in new):
            rank = int(self.engine.ranks[slot])
            level = self.votes.level(rank)
            if level is not None and level < self._options.effect / 2:
                self.engine.withdraw(slot)
                continue
            node = self.node_of(rank)
            members = self._members(node, sighting.work)
            if node is not None and len(members) > 1 and warm[members].mean() >= NODE_SHARE:
                self.engine.is_alarmed[members[warm[members]]] = True
                if node not in told and (node not in self._hot_nodes or self._repeats(slot)):
                    said.append(node_anomaly(sighting, members[warm[members]], node))
                told.add(node)
                self._hot_nodes.add(node)
            elif self._is_structure(slot, warm):
                said += self._say_once(structure_anomaly(sighting, slot))
            else:
                said.append(rank_anomaly(sighting, slot, node, is_intermittent=self._repeats(slot)))
        return said

    def _is_structure(self, slot: int, warm: NDArray[np.bool_]) -> bool:
        """So many ranks of a group slow at once, on several nodes, are uneven work and not faults."""
        group = self.engine.groups.around(slot)
        hot = group[warm[group]]
        nodes = {self.node_of(int(self.engine.ranks[s])) for s in hot}
        is_one_node = len(nodes) == 1 and None not in nodes
        return len(hot) > max(1, len(group) // 5) and not is_one_node

    def _say_once(self, anomaly: Anomaly) -> list[Anomaly]:
        was_told, self._told_structure = self._told_structure, True
        return [] if was_told else [anomaly]

    def _members(self, node: NodeName | None, work: Floats) -> Slots:
        """The slots of a node's ranks that reported this step."""
        nodes = self.shape.nodes if self.shape is not None and node is not None else ()
        ranks = [rank for rank, name in enumerate(nodes) if name == node]
        slots = np.searchsorted(self.engine.ranks, ranks).clip(0, max(len(self.engine.ranks) - 1, 0))
        slots = slots[self.engine.ranks[slots] == ranks] if len(ranks) else slots[:0]
        found: Slots = slots[np.isfinite(work[slots])].astype(np.int32)
        return found

    def _repeats(self, slot: int) -> bool:
        return bool(self.engine.alarms[slot] >= REPEATS)

    # -------------------------------------------------------------- state

    def learnt(self) -> dict[str, Any]:
        """What a later attempt of the same shape may begin with."""
        nodes = list(self.shape.nodes) if self.shape is not None else []
        return {"engine": self.engine.snapshot(), "nodes": nodes}

    def carry_over(self, past: Mapping[str, Any]) -> None:
        """Begin with an earlier attempt's baselines, where the rank still runs on the same node."""
        self.engine.restore(past["engine"])
        before, now = past["nodes"], list(self.shape.nodes) if self.shape is not None else []
        stays = [not before or not now or before[r : r + 1] == now[r : r + 1] for r in self.engine.ranks.tolist()]
        self.engine.begin_again(np.asarray(stays, dtype=bool))

    def snapshot(self) -> dict[str, Any]:
        return {
            "engine": self.engine.snapshot(),
            "frames": self.frames.snapshot(),
            "order": self.order.snapshot(),
            "votes": self.votes.snapshot(),
            "stages": self.stages.snapshot(),
            "shape": None if self.shape is None else encode(self.shape),
            "hot_nodes": sorted(self._hot_nodes),
            "turn": self._turn,
            "began_s": self._began_s,
            "placed": self._placed,
            "told_structure": self._told_structure,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.engine.restore(state["engine"])
        self.frames.restore(state["frames"])
        self.order = StepOrder(*state["order"])
        self.votes.restore(state["votes"])
        self.stages.restore(state["stages"])
        self.shape = None if state["shape"] is None else decode(JobShape, state["shape"])
        self._hot_nodes = set(state["hot_nodes"])
        self._turn, self._began_s, self._placed = state["turn"], state["began_s"], state["placed"]
        self._told_structure = state["told_structure"]
        self._ordered = None
