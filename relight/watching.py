# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the anomalies of a job that still runs amount to: whether they open an incident, and what they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from relight.types import (
    Action,
    Anomaly,
    AnomalyKind,
    Attribution,
    EvidenceStatus,
    FailureClass,
    FailureName,
    NodeName,
    Rank,
    Scope,
    Suspect,
    Tier,
)

SILENT_HANG = FailureName("silent_hang")
DIVERGED = FailureName("nan_gradient")
SLOW = FailureName("throughput_drop")
# As the taxonomy has them; a test holds the two together.
CLASSES: Mapping[FailureName, FailureClass] = {
    SILENT_HANG: FailureClass.UNKNOWN,
    DIVERGED: FailureClass.APPLICATION,
    SLOW: FailureClass.UNKNOWN,
}
_SLOWNESS = frozenset({AnomalyKind.STRAGGLER, AnomalyKind.SLOWDOWN})
_WORTH_A_WORD = 1.1
TERM_RANGE_S = (30, 604_800)


def opens_incident(anomaly: Anomaly) -> bool:
    """Whether somebody should look: suspicions, novelties, notices and uneven work are recorded and no more."""
    if anomaly.tier is not Tier.CONFIRMED:
        return False
    match anomaly.kind:
        case AnomalyKind.CRASH | AnomalyKind.HANG:
            return True
        case AnomalyKind.DIVERGENCE:
            return anomaly.detail.get("may_restart") is True
        case AnomalyKind.STRAGGLER | AnomalyKind.SLOWDOWN:
            return not anomaly.detail.get("imbalance") and ratio_of(anomaly) >= _WORTH_A_WORD
        case AnomalyKind.NOVELTY:
            return False


def calls_for_advice(anomaly: Anomaly) -> bool:
    """Whether a job that still runs should be advised on before anybody asks: it will not end by itself.

    After a crash it does, and then it is asked about with all its lines at hand.
    """
    return opens_incident(anomaly) and anomaly.kind is not AnomalyKind.CRASH


def is_same_claim(one: Anomaly, other: Anomaly) -> bool:
    """One claim told twice: a crash is one for each attempt, other kinds may accuse several in turn."""
    if (one.kind, one.detector, one.tier) != (other.kind, other.detector, other.tier):
        return False
    if one.tier is Tier.SUSPECT:
        return one.onset_at == other.onset_at
    if one.kind in {AnomalyKind.CRASH, AnomalyKind.HANG}:
        return True
    about = (one.scope, one.rank, one.node, one.detail.get("trouble"), one.onset_at)
    return about == (other.scope, other.rank, other.node, other.detail.get("trouble"), other.onset_at)


def ratio_of(anomaly: Anomaly) -> float:
    """How many times as long the work takes, or 1.0 where the anomaly does not say."""
    said = anomaly.detail.get("ratio")
    return float(said) if isinstance(said, int | float) and not isinstance(said, bool) else 1.0


def attribution_by_watch(anomalies: Sequence[Anomaly]) -> Attribution | None:
    """What confirmed anomalies say of a job whose logs name no cause; None if they say nothing.

    A hang outranks divergence, and that slowness. The rank that stopped is named where heartbeats or steps
    told it; its node is where it ran and accuses nobody. A slow node is a suspect, on one witness.
    """
    confirmed = [one for one in anomalies if opens_incident(one)]
    hang = next((one for one in confirmed if one.kind is AnomalyKind.HANG), None)
    if hang is not None:
        return _hung(hang)
    diverged = next((one for one in reversed(confirmed) if one.kind is AnomalyKind.DIVERGENCE), None)
    if diverged is not None:
        return _claim(DIVERGED, diverged, EvidenceStatus.SUPPORTED)
    slow = [one for one in confirmed if one.kind in _SLOWNESS]
    return _slowed(slow) if slow else None


def _hung(hang: Anomaly) -> Attribution:
    ranks = tuple(Rank(int(rank)) for rank in hang.detail.get("ranks", ()))
    nodes = tuple(NodeName(str(node)) for node in hang.detail.get("nodes", ()))
    # Without a threshold a second sign agreed: a probe, a heartbeat that stopped, a line that says so.
    status = EvidenceStatus.SUPPORTED if hang.threshold is None else EvidenceStatus.HYPOTHESIS
    return _claim(SILENT_HANG, hang, status, ranks, nodes)


def _slowed(slow: Sequence[Anomaly]) -> Attribution:
    named = [one for one in slow if one.kind is AnomalyKind.STRAGGLER and one.scope in {Scope.NODE, Scope.RANK}]
    worst = max(named or slow, key=ratio_of)
    suspects = tuple(
        Suspect(node=one.node, rank=one.rank, score=min(1.0, ratio_of(one) - 1.0), reason=one.summary)
        for one in named
        if one.node is not None
    )
    ranks = tuple(dict.fromkeys(Rank(int(r)) for one in named for r in one.detail.get("ranks", ())))
    return _claim(SLOW, worst, EvidenceStatus.SUPPORTED, ranks, suspects=suspects)


def _claim(
    failure: FailureName,
    anomaly: Anomaly,
    status: EvidenceStatus,
    ranks: tuple[Rank, ...] = (),
    nodes: tuple[NodeName, ...] = (),
    suspects: tuple[Suspect, ...] = (),
) -> Attribution:
    return Attribution(
        failure=failure,
        failure_class=CLASSES[failure],
        evidence_status=status,
        ranks=ranks,
        rank_nodes=nodes,
        suspects=suspects,
        confirmations=tuple(anomaly.evidence),
        summary=anomaly.summary,
    )


# ------------------------------------------------------------------ what slowness costs


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """A job that goes on, but slower: since when, by how much, and how it stands with its checkpoints.

    `ratio` is a step's time now over the usual; `remaining_s` what is left to run at the present pace, None if
    unknown; `since_checkpoint_s` the work that a restart now would lose, None if no checkpoint was seen.
    """

    ratio: float
    since: datetime
    remaining_s: float | None = None
    since_checkpoint_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowTerms:
    """What a site says of slowness. By default nobody restarts for it, and no node is left out for it alone.

    `restart_s` is what a restart takes until the first new step; `margin` how many times its cost the expected
    gain must be; `boundary_s` how soon after a completed checkpoint a restart still counts as at the boundary.
    """

    may_exclude: bool = False
    restart_s: int = 900
    margin: float = 2.0
    boundary_s: int = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class HangTerms:
    """What somebody who knows a job says of its pauses, in seconds; None leaves it to what was learned.

    `at_least_s`: shorter than this no pause between steps is a hang. `at_most_s`: longer than this each is one,
    whatever the phase, and whether or not the job still writes. `start_s`: the same for the time until the first
    step, for a job whose steps are known to be read.
    """

    at_least_s: float | None = None
    at_most_s: float | None = None
    start_s: float | None = None

    def over(self, wider: HangTerms) -> HangTerms:
        """These terms, and `wider` ones where these say nothing; where both contradict, these hold."""
        least = wider.at_least_s if self.at_least_s is None else self.at_least_s
        most = wider.at_most_s if self.at_most_s is None else self.at_most_s
        if least is not None and most is not None and least > most:
            least, most = (least, least) if self.at_least_s is not None else (most, most)
        return HangTerms(
            at_least_s=least, at_most_s=most, start_s=wider.start_s if self.start_s is None else self.start_s
        )

    def faults(self) -> list[str]:
        """What is wrong with them, each with the way out."""
        named = {name: value for name, value in self.as_json().items() if value is not None}
        least_s, most_s = TERM_RANGE_S
        found = [
            f"{name} {value:g} is not from {least_s} to {most_s} s"
            for name, value in named.items()
            if not least_s <= value <= most_s
        ]
        if self.at_least_s is not None and self.at_most_s is not None and self.at_least_s > self.at_most_s:
            found.append(f"at_least_s {self.at_least_s:g} is above at_most_s {self.at_most_s:g}")
        return found

    def scaled(self, by: float) -> HangTerms:
        """The same on a clock that runs `by` times as fast."""
        least, most, start = self.at_least_s, self.at_most_s, self.start_s
        return HangTerms(
            at_least_s=None if least is None else least * by,
            at_most_s=None if most is None else most * by,
            start_s=None if start is None else start * by,
        )

    def as_json(self) -> dict[str, float | None]:
        return {"at_least_s": self.at_least_s, "at_most_s": self.at_most_s, "start_s": self.start_s}


LEARNED = HangTerms()


@dataclass(frozen=True, slots=True, kw_only=True)
class HangPolicy:
    """A site's terms for hangs: for all jobs, for those of a partition or namespace, and for single workloads."""

    default: HangTerms = LEARNED
    partitions: Mapping[str, HangTerms] = field(default_factory=dict)
    workloads: Mapping[str, HangTerms] = field(default_factory=dict)

    def terms_for(self, partition: str, workload: str, own: HangTerms = LEARNED) -> HangTerms:
        """The narrower goes before the wider: the job's own words, its workload, its partition, all."""
        by_place = self.partitions.get(partition, LEARNED).over(self.default)
        return own.over(self.workloads.get(workload, LEARNED).over(by_place))


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighing:
    """Whether a restart without the slow part pays, in seconds of the whole job."""

    is_worth_it: bool
    reason: str
    gain_s: float | None
    cost_s: float


def weigh_restart(slow: Slowness, terms: SlowTerms, at: datetime) -> Weighing:
    """Weigh a restart at the next checkpoint against going on slowly.

    Slowness often passes by itself, so it must have cost as much as a restart first, which is never more than
    twice the best that hindsight could do; and what is left must gain `margin` times the cost. What is unknown
    counts against the restart.
    Source: ski rental; fail-slow faults last 10 to 24 minutes in the mean (arXiv 2410.12588).
    """
    saved_ratio = 1.0 - 1.0 / max(slow.ratio, 1.0)
    cost_s = float(terms.restart_s)
    if slow.remaining_s is None:
        return Weighing(is_worth_it=False, reason="remaining_time_unknown", gain_s=None, cost_s=cost_s)
    gain_s = saved_ratio * max(slow.remaining_s, 0.0)
    lost_s = saved_ratio * max((at - slow.since).total_seconds(), 0.0)
    if gain_s < terms.margin * cost_s:
        return Weighing(is_worth_it=False, reason="gain_below_the_restarts_cost", gain_s=gain_s, cost_s=cost_s)
    if lost_s < cost_s:
        return Weighing(is_worth_it=False, reason="may_pass_by_itself", gain_s=gain_s, cost_s=cost_s)
    if slow.since_checkpoint_s is None or slow.since_checkpoint_s > terms.boundary_s:
        return Weighing(is_worth_it=False, reason="waits_for_the_next_checkpoint", gain_s=gain_s, cost_s=cost_s)
    return Weighing(is_worth_it=True, reason="restart_gains_more_than_it_costs", gain_s=gain_s, cost_s=cost_s)


def is_about_slowness(said: Attribution) -> bool:
    """Whether an attribution speaks of a job that merely became slower, by our own watching."""
    return said.failure == SLOW and said.action in {None, Action.CONTINUE}
