# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What anomalies of a running job amount to, and when a restart for slowness pays."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relight.policy import Facts, History, PolicyTable, decide
from relight.types import (
    Action,
    Anomaly,
    AnomalyKind,
    AttemptId,
    AttemptState,
    EvidenceStatus,
    Mode,
    NodeName,
    Rank,
    Tier,
)
from relight.watching import (
    CLASSES,
    Slowness,
    SlowTerms,
    attribution_by_watch,
    is_same_claim,
    opens_incident,
    weigh_restart,
)
from service.bootstrap import taxonomy

NOW = datetime(2026, 11, 2, 12, tzinfo=UTC)
HOUR_S = 3_600.0


def anomaly(kind: AnomalyKind, **over: Any) -> Anomaly:
    said = Anomaly(
        attempt=AttemptId("a"), kind=kind, detector=kind.value, onset_at=NOW - timedelta(minutes=5), detected_at=NOW,
        score=9.0, summary="as seen",
    )  # fmt: skip
    return replace(said, **over)


def straggler(node: str = "n7", ratio: float = 1.3, **over: Any) -> Anomaly:
    detail = {"ratio": ratio, "ranks": [3]}
    return anomaly(AnomalyKind.STRAGGLER, scope="rank", rank=Rank(3), node=NodeName(node), detail=detail, **over)


def test_the_classes_are_those_of_the_taxonomy() -> None:
    assert {name: taxonomy()[name].failure_class for name in CLASSES} == CLASSES


def test_latency_is_from_the_onset_to_the_claim() -> None:
    assert anomaly(AnomalyKind.HANG).latency_s == 300
    assert anomaly(AnomalyKind.HANG, detected_at=NOW - timedelta(hours=1)).latency_s == 0


@pytest.mark.parametrize(
    ("one", "opens"),
    [
        (anomaly(AnomalyKind.HANG), True),
        (anomaly(AnomalyKind.HANG, tier=Tier.SUSPECT), False),
        (anomaly(AnomalyKind.CRASH), True),
        (anomaly(AnomalyKind.NOVELTY), False),
        (anomaly(AnomalyKind.DIVERGENCE, detail={"may_restart": True}), True),
        (anomaly(AnomalyKind.DIVERGENCE, detail={"may_restart": False}), False),
        (straggler(ratio=1.3), True),
        (straggler(ratio=1.05), False),
        (anomaly(AnomalyKind.STRAGGLER, scope="stage", detail={"ratio": 1.6, "imbalance": True}), False),
        (anomaly(AnomalyKind.SLOWDOWN, detail={"ratio": 1.2}), True),
        (anomaly(AnomalyKind.SLOWDOWN, detail={}), False),
    ],
)
def test_only_what_somebody_should_look_at_opens_an_incident(one: Anomaly, opens: bool) -> None:
    assert opens_incident(one) is opens


def test_a_suspicion_and_its_confirmation_are_two_claims_and_two_ranks_are_two() -> None:
    hang = anomaly(AnomalyKind.HANG)
    assert is_same_claim(hang, replace(hang, summary="later", onset_at=NOW))
    assert not is_same_claim(hang, replace(hang, tier=Tier.SUSPECT))
    assert not is_same_claim(straggler(), replace(straggler(), rank=Rank(4)))


def test_a_hang_names_its_rank_and_accuses_no_node() -> None:
    hang = anomaly(AnomalyKind.HANG, detail={"ranks": [5], "nodes": ["n2"]})
    said = attribution_by_watch([straggler(), hang])
    assert said is not None
    assert (said.failure, said.ranks, said.rank_nodes, said.suspects) == ("silent_hang", (5,), ("n2",), ())
    assert said.evidence_status is EvidenceStatus.SUPPORTED
    by_time_alone = attribution_by_watch([replace(hang, threshold=300.0)])
    assert by_time_alone is not None
    assert by_time_alone.evidence_status is EvidenceStatus.HYPOTHESIS


def test_suspicions_and_notices_name_nothing() -> None:
    assert attribution_by_watch([anomaly(AnomalyKind.HANG, tier=Tier.SUSPECT), straggler(ratio=1.02)]) is None


# ------------------------------------------------------------------ weighing


def slow(**over: Any) -> Slowness:
    said = Slowness(ratio=1.25, since=NOW - timedelta(hours=3), remaining_s=20 * HOUR_S, since_checkpoint_s=10.0)
    return replace(said, **over)


def test_a_restart_pays_if_the_rest_gains_more_and_the_slowness_has_cost_as_much() -> None:
    weighed = weigh_restart(slow(), SlowTerms(), NOW)
    assert weighed.is_worth_it
    assert weighed.gain_s == pytest.approx(0.2 * 20 * HOUR_S)
    assert weighed.cost_s == 900


@pytest.mark.parametrize(
    ("over", "reason"),
    [
        ({"remaining_s": None}, "remaining_time_unknown"),
        ({"remaining_s": 2 * HOUR_S}, "gain_below_the_restarts_cost"),
        ({"ratio": 1.0}, "gain_below_the_restarts_cost"),
        ({"ratio": 0.5}, "gain_below_the_restarts_cost"),
        ({"since": NOW - timedelta(minutes=30)}, "may_pass_by_itself"),
        ({"since": NOW + timedelta(hours=1)}, "may_pass_by_itself"),
        ({"since_checkpoint_s": 121.0}, "waits_for_the_next_checkpoint"),
        ({"since_checkpoint_s": None}, "waits_for_the_next_checkpoint"),
    ],
)
def test_what_is_unknown_small_young_or_unsaved_speaks_against_a_restart(over: dict[str, Any], reason: str) -> None:
    weighed = weigh_restart(slow(**over), SlowTerms(), NOW)
    assert (weighed.is_worth_it, weighed.reason) == (False, reason)


# ------------------------------------------------------------------ policy

FACTS = Facts(
    state=AttemptState.RUNNING, allocated_nodes=(NodeName("n7"), NodeName("n8")), requested_nodes=2,
    modes={"cluster": Mode.ACT},
)  # fmt: skip
HISTORY = History(cluster_nodes=100, partition_nodes=100, eligible_nodes=90)


def verdict(terms: SlowTerms, *found: Anomaly, **over: Any) -> Any:
    said = attribution_by_watch(found or [straggler()])
    assert said is not None
    entry = {name: PolicyTable().entry(name, one.failure_class) for name, one in taxonomy().items()}
    failures = {**entry, said.failure: replace(entry[said.failure], action=Action.CONTINUE, observes_only=True)}
    table = PolicyTable(slowness=terms, failures=failures)
    return decide(said, HISTORY, replace(FACTS, slowness=slow(**over)), table, at=NOW)


def test_slowness_alone_is_observed() -> None:
    said = verdict(SlowTerms())
    assert (said.action, said.reason, said.exclusions) == (Action.CONTINUE, "slowness_is_observed", ())
    assert "would gain 14400 s and cost 900 s" in " ".join(said.decision_basis)


def test_where_the_site_allows_it_a_person_is_asked_and_nobody_acts_alone() -> None:
    said = verdict(SlowTerms(may_exclude=True))
    assert (said.action, said.mode) == (Action.RESTART_EXCLUDING, Mode.APPROVE)
    assert [one.node for one in said.exclusions] == ["n7"]
    assert "awaiting_approval" in said.blocked_by
    assert not said.actionable


def test_between_checkpoints_the_job_goes_on() -> None:
    said = verdict(SlowTerms(may_exclude=True), since_checkpoint_s=900.0)
    assert (said.action, said.reason) == (Action.CONTINUE, "waits_for_the_next_checkpoint")


def test_a_slow_job_without_a_slow_node_is_never_restarted() -> None:
    said = verdict(SlowTerms(may_exclude=True), anomaly(AnomalyKind.SLOWDOWN, detail={"ratio": 1.5}))
    assert (said.action, said.reason) == (Action.CONTINUE, "no_slow_node_is_known")


def test_a_node_that_may_not_be_excluded_makes_no_restart_either() -> None:
    said = verdict(SlowTerms(may_exclude=True), straggler(node="somewhere-else"))
    assert (said.action, said.reason) == (Action.CONTINUE, "no_node_to_exclude")
