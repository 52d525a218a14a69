# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the straggler detector says: anomalies with their figures, and the evidence in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from detectors.peer_cusum import PeerCusum
from detectors.peer_groups import Floats, Slots
from detectors.second_votes import SecondVotes
from relight.types import Anomaly, AnomalyKind, AttemptId, NodeName, Rank


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """One step's verdict material: the engine after the step, and the work it judged."""

    attempt: AttemptId
    step: int
    at_s: float
    began_s: float
    engine: PeerCusum
    votes: SecondVotes
    work: Floats

    def ratio(self, slot: int) -> float:
        """How many times as long as expected, by the recent mean where one is kept."""
        rank = int(self.engine.ranks[slot])
        level = self.votes.level(rank)
        if level is None:
            level = float(self.engine.excess[slot]) / max(int(self.engine.count[slot]), 1)
        return math.exp(level)

    def onset_s(self, slot: int) -> float:
        return min(self.began_s + float(self.engine.since[slot]), self.at_s)


def severity(ratio: float) -> str:
    """A few percent are a notice; from a tenth on a restart may pay; a third is critical."""
    return "critical" if ratio >= 1.3 else "act" if ratio >= 1.1 else "notice"


def rank_anomaly(seen: Sighting, slot: int, node: NodeName | None, *, is_intermittent: bool) -> Anomaly:
    engine = seen.engine
    rank, ratio, steps = int(engine.ranks[slot]), seen.ratio(slot), int(engine.count[slot])
    stage = int(engine.stages[slot])
    peers = int(engine.groups.sizes[engine.groups.labels.searchsorted(stage)]) - 1
    expected = float(seen.work[slot]) / math.exp(float(engine.residual[slot]))
    where = f" on {node}" if node is not None else ""
    again = "; it comes and goes" if is_intermittent else ""
    vote = seen.votes.agrees(rank)
    text = (
        f"rank {rank}{where} takes {ratio:.2f} times as long as its {peers} peers of stage {stage} for its own "
        f"work, for {steps} steps up to step {seen.step} (expected {expected:.3g} s){again}; "
        f"ADWIN {_vote(vote)}"
    )
    detail = {
        "ratio": round(ratio, 4), "severity": severity(ratio), "steps": steps, "step": seen.step, "stage": stage,
        "peers": peers, "ranks": [rank], "second_vote": vote, "is_intermittent": is_intermittent,
    }  # fmt: skip
    return _anomaly(seen, [slot], scope="rank", text=text, detail=detail, baseline=expected, rank=Rank(rank), node=node)


def node_anomaly(seen: Sighting, slots: Slots, node: NodeName) -> Anomaly:
    engine = seen.engine
    each = [seen.ratio(int(s)) for s in slots]
    ratio = sorted(each)[len(each) // 2]
    ranks = [int(engine.ranks[s]) for s in slots]
    text = (
        f"node {node} is slow as a whole: {len(ranks)} of its ranks take about {ratio:.2f} times as long as their peers"
    )
    votes = [seen.votes.agrees(rank) for rank in ranks]
    detail = {
        "ratio": round(ratio, 4), "severity": severity(ratio), "step": seen.step, "ranks": ranks,
        "second_votes": sum(v is True for v in votes),
    }  # fmt: skip
    return _anomaly(seen, [int(s) for s in slots], scope="node", text=text, detail=detail, node=node)


def structure_anomaly(seen: Sighting, slot: int) -> Anomaly:
    stage = int(seen.engine.stages[slot])
    text = (
        f"more than a fifth of the ranks of stage {stage} became slower than the rest at once: "
        "the work is unevenly divided, no rank is at fault alone"
    )
    detail = {"stage": stage, "severity": "notice", "imbalance": True, "step": seen.step}
    return _anomaly(seen, [slot], scope="job", text=text, detail=detail)


def stage_anomaly(seen: Sighting, stage: int, ratio: float, since_s: float, is_from_start: bool) -> Anomaly:
    when = "from the start" if is_from_start else f"since {int(seen.at_s - since_s)} s"
    text = (
        f"pipeline stage {stage} takes {ratio:.2f} times as long as the other stages {when}: "
        "the workload is unevenly divided, no node is at fault"
    )
    return Anomaly(
        attempt=seen.attempt, kind=AnomalyKind.STRAGGLER, detector="straggler", scope="stage", summary=text,
        onset_at=_instant(min(since_s, seen.at_s)), detected_at=_instant(seen.at_s), score=ratio, threshold=1.2,
        baseline=1.0, detail={"stage": stage, "ratio": round(ratio, 4), "severity": "notice", "imbalance": True},
    )  # fmt: skip


def _anomaly(
    seen: Sighting, slots: list[int], *, scope: str, text: str, detail: dict[str, Any],
    baseline: float | None = None, rank: Rank | None = None, node: NodeName | None = None,
) -> Anomaly:  # fmt: skip
    worst = max(slots, key=lambda s: float(seen.engine.charge[s]))
    return Anomaly(
        attempt=seen.attempt, kind=AnomalyKind.STRAGGLER, detector="straggler", scope=scope, rank=rank, node=node,
        onset_at=_instant(min(seen.onset_s(s) for s in slots)), detected_at=_instant(seen.at_s),
        score=float(seen.engine.charge[worst]), threshold=float(seen.engine.threshold[worst]),
        baseline=baseline, summary=text, detail=detail,
    )  # fmt: skip


def _vote(agrees: bool | None) -> str:
    return "agrees" if agrees else "has not seen enough" if agrees is None else "sees no change yet"


def _instant(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, tz=UTC)
