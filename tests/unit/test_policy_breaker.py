# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The breaker: many workloads that fail alike share a cause, unless kernel or scheduler name the node they share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from relight.policy import Facts, History, Witness
from relight.types import Action, AttemptState, EvidenceStatus, NodeName, Suspect, WorkloadId
from tests.unit.policy_cases import ACT, blame, excluded, judge, nodes, suspect

BUS = "gpu_fell_off_bus"


def test_the_same_failure_in_three_workloads_excludes_nobody() -> None:
    verdict = judge(blame(BUS, suspect("n1")), history=History(same_failure_workloads=3))
    assert (verdict.action, verdict.reason, verdict.exclusions) == (Action.RESTART, "breaker", ())


def alike(*places: tuple[str, ...]) -> History:
    """So many other workloads with the same failure, and the nodes that kernel or scheduler blame for each."""
    blamed = {WorkloadId(f"w{number}"): frozenset(nodes(*names)) for number, names in enumerate(places)}
    return History(same_failure_workloads=1 + len(places), same_failure_places=blamed)


def test_jobs_that_share_one_dead_node_have_one_cause_and_leave_it() -> None:
    """Three jobs on a node whose GPU fell off the bus, by its kernel: weathering that would keep the node in."""
    verdict = judge(blame(BUS, suspect("n1", independent=True)), history=alike(("n1",), ("n1.site",)))
    assert excluded(verdict) == ("n1",)
    assert verdict.actionable
    assert any("3 workloads failed alike by 1 cause(s)" in said for said in verdict.decision_basis)


def test_a_node_that_the_scheduler_lost_under_several_jobs_is_left() -> None:
    facts = Facts(
        modes=ACT, state=AttemptState.NODE_FAILED, failed_nodes=nodes("n1"), allocated_nodes=nodes("n1", "n2")
    )
    verdict = judge(blame("cause_not_in_log"), facts=facts, history=alike(("n1",), ("n1",), ("n1",)))
    assert excluded(verdict) == ("n1",)


def test_a_node_event_makes_the_accusation_by_logs_a_hard_fact() -> None:
    witness = Witness(source="node:dcgm", is_independent=True)
    said = replace(alike(("n1",), ("n1",)), witnesses={NodeName("n1"): (witness,)})
    assert excluded(judge(blame(BUS, suspect("n1")), history=said)) == ("n1",)


@pytest.mark.parametrize(
    ("suspects", "others"),
    [
        # The same hard fact on as many nodes as would open the breaker: power, cooling or a driver, not a node.
        ((suspect("n1", independent=True),), (("n2",), ("n3",))),
        ((suspect("n1", independent=True),), (("n1", "n2"), ("n1", "n3"))),
        # Accusations by logs alone, of one node or of none.
        ((suspect("n1"),), ((), ())),
        ((suspect("n1"),), (("n1",), ())),
        ((suspect("n1", independent=True),), ((), ())),
        ((), (("n1",), ("n2",))),
    ],
)
def test_everything_else_in_three_workloads_still_opens_the_breaker(
    suspects: tuple[Suspect, ...], others: tuple[tuple[str, ...], ...]
) -> None:
    verdict = judge(blame(BUS, *suspects), history=alike(*others))
    assert (verdict.reason, verdict.exclusions) == ("breaker", ())
    assert "breaker_open" in verdict.blocked_by


def test_a_hard_fact_that_is_not_established_counts_as_an_accusation() -> None:
    said = blame(BUS, suspect("n1", independent=True), evidence_status=EvidenceStatus.SUPPORTED)
    assert judge(said, history=alike(("n2",), ())).reason == "breaker"


def test_a_breaker_that_is_open_stays_open_for_a_dead_node_too() -> None:
    said = replace(alike(("n1",), ("n1",)), is_breaker_open=True)
    assert "breaker_open" in judge(blame(BUS, suspect("n1", independent=True)), history=said).blocked_by
