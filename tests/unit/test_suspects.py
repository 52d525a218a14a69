# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How suspicion of a node rises, fades and is pardoned."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from relight.suspects import HALF_LIFE, INCIDENT_CAP, PRIOR, TOTAL_CAP, Suspicion, shares_a_cause
from relight.types import AttemptId, FailureClass, NodeName, Suspect, WorkloadId
from tests.unit.policy_cases import AT, nodes, suspect

N1 = NodeName("n1")


def accused(
    *attempts: str,
    suspects: tuple[Suspect, ...] = (suspect("n1"),),
    failure_class: FailureClass = FailureClass.HARDWARE,
    precision: float = 1.0,
) -> Suspicion:
    suspicion = Suspicion()
    for attempt in attempts:
        suspicion = suspicion.accused(
            suspects,
            attempt=AttemptId(attempt),
            workload=WorkloadId("w"),
            failure_class=failure_class,
            at=AT,
            precision=precision,
        )
    return suspicion


def factor(suspicion: Suspicion) -> float:
    return suspicion.records[N1].log_factor


def test_a_node_never_accused_has_the_prior() -> None:
    assert Suspicion().probability(N1, AT) == pytest.approx(PRIOR)


def test_suspicion_rises_with_every_attempt_that_accuses() -> None:
    once, twice, thrice = (accused(*attempts).probability(N1, AT) for attempts in ("a", ("a", "b"), ("a", "b", "c")))
    assert PRIOR < once < 0.5 < twice < thrice < 1


def test_one_attempt_accuses_a_node_once() -> None:
    assert accused("a", "a", "a") == accused("a")


def test_one_incident_and_all_of_them_are_capped() -> None:
    assert factor(accused("a")) == pytest.approx(INCIDENT_CAP)
    assert factor(accused(*"abcdefgh")) == pytest.approx(TOTAL_CAP)


def test_half_of_the_evidence_is_gone_after_a_half_life() -> None:
    record = accused("a").records[N1]
    assert record.aged(AT + HALF_LIFE) == pytest.approx(record.log_factor / 2)
    assert record.aged(AT - HALF_LIFE) == record.log_factor


def test_a_failure_speaks_of_its_node_as_far_as_its_class_does() -> None:
    by_class = [
        accused("a", failure_class=c).probability(N1, AT)
        for c in (FailureClass.APPLICATION, FailureClass.SYSTEM_SOFTWARE, FailureClass.HARDWARE)
    ]
    assert by_class == sorted(by_class)
    assert by_class[0] == pytest.approx(PRIOR)


def test_accusations_that_seldom_proved_right_weigh_less() -> None:
    assert factor(accused("a", precision=0.02)) < factor(accused("a"))
    assert factor(accused("a", precision=0.0)) == 0


def test_a_score_that_is_no_number_says_nothing() -> None:
    assert factor(accused("a", suspects=(suspect("n1", score=float("nan")),))) == 0


def test_many_nodes_at_once_raise_nobodys_suspicion() -> None:
    assert accused("a", suspects=tuple(suspect(n) for n in "wxyz")) == Suspicion()
    assert len(accused("a", suspects=tuple(suspect(n) for n in "xyz")).records) == 3


def test_half_of_a_rack_at_once_shares_a_cause() -> None:
    racks = dict.fromkeys(nodes("a", "b", "c", "d"), "r1")
    assert shares_a_cause(nodes("a", "b"), racks)
    assert not shares_a_cause(nodes("a"), racks)
    assert not shares_a_cause(nodes("a", "b"), {})
    five = racks | dict.fromkeys(nodes("e"), "r1")
    assert not shares_a_cause(nodes("a", "b"), five)
    assert shares_a_cause(nodes("a", "b"), five, allocated=nodes("a", "b", "c", "d"))


def test_a_rank_without_a_node_accuses_nobody() -> None:
    assert accused("a", suspects=(Suspect(node=None),)) == Suspicion()


def test_good_service_clears_a_node_but_earns_no_credit() -> None:
    better = accused("a").ran_well((N1,), timedelta(days=2), AT)
    assert 0 < factor(better) < factor(accused("a"))
    assert factor(accused("a").ran_well((N1,), timedelta(days=999), AT)) == 0
    assert Suspicion().ran_well((N1,), timedelta(days=9), AT) == Suspicion()


def test_a_clean_bench_test_halves_what_is_held_against_a_node() -> None:
    assert factor(accused("a").bench_passed(N1, AT)) == pytest.approx(factor(accused("a")) / 2)


def test_a_pardon_leaves_nothing() -> None:
    assert accused("a").pardoned(N1) == Suspicion()


def test_the_most_suspected_comes_first_and_workloads_are_told_apart() -> None:
    suspicion = accused("a", "b").accused(
        [suspect("n2"), suspect("n1")],
        attempt=AttemptId("c"),
        workload=WorkloadId("w2"),
        failure_class=FailureClass.NETWORK,
        at=AT,
    )
    assert [n for n, _ in suspicion.ranked(AT)] == ["n1", "n2"]
    assert suspicion.workloads(N1) == ("w", "w2")
    assert suspicion.workloads(NodeName("n9")) == ()


def test_suspicion_is_a_value() -> None:
    before = accused("a")
    kept = replace(before)
    before.ran_well((N1,), timedelta(days=1), AT)
    before.pardoned(N1)
    assert before == kept
