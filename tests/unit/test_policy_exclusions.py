# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which nodes a verdict may exclude, for whom and for how long, and every limit on it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from relight.policy import Facts, History, Terms, Witness
from relight.progress import Ledger, entity_key
from relight.suspects import Suspicion
from relight.types import (
    Action,
    AttemptId,
    EvidenceStatus,
    Exclusion,
    FailureClass,
    FailureName,
    NodeName,
    Progress,
    Suspect,
    WorkloadId,
)
from tests.unit.policy_cases import (
    ACT,
    AT,
    HOUR,
    TABLE,
    blame,
    excluded,
    failed_before,
    judge,
    nodes,
    suspect,
)

BUS = "gpu_fell_off_bus"


def standing(*names: str) -> tuple[Exclusion, ...]:
    return tuple(Exclusion(node=n, reason="earlier", score=1.0, expires_at=AT + HOUR) for n in nodes(*names))


def test_without_a_nameable_node_an_excluding_restart_is_a_plain_one() -> None:
    verdict = judge(blame(BUS))
    assert (verdict.action, verdict.reason, verdict.exclusions) == (
        Action.RESTART,
        "no_node_to_exclude",
        (),
    )


@pytest.mark.parametrize("name", ["n1; scontrol reboot", "-n1", "", "n1\nn2", "a" * 300, "../etc"])
def test_what_is_not_a_node_name_is_never_excluded(name: str) -> None:
    assert judge(blame(BUS, suspect(name))).exclusions == ()


def test_a_log_cannot_accuse_a_node_that_its_job_does_not_run_on() -> None:
    facts = Facts(modes=ACT, allocated_nodes=nodes("n1", "n2"))
    verdict = judge(blame(BUS, suspect("n9", independent=True)), facts=facts)
    assert verdict.exclusions == ()
    assert any("n9: not a node of this job" in b for b in verdict.decision_basis)


def test_a_node_is_excluded_as_its_scheduler_spells_it() -> None:
    facts = Facts(modes=ACT, allocated_nodes=nodes("n1", "n2"))
    assert excluded(judge(blame(BUS, suspect("N1.cluster.example")), facts=facts)) == ("n1",)


def test_what_the_user_excludes_already_is_not_excluded_again() -> None:
    facts = Facts(modes=ACT, user_exclusions=nodes("n1"))
    assert judge(blame(BUS, suspect("n1")), facts=facts).exclusions == ()


def test_a_jobs_own_log_excludes_for_its_own_workload_only() -> None:
    (exclusion,) = judge(blame(BUS, suspect("n1"))).exclusions
    assert exclusion.scope == "workload"


def test_one_independent_witness_alone_is_not_enough_for_everybody() -> None:
    (exclusion,) = judge(blame(BUS, suspect("n1", independent=True))).exclusions
    assert exclusion.scope == "workload"


@pytest.mark.parametrize(
    ("suspects", "earlier", "scope"),
    [
        ((suspect("n1"), suspect("n1", independent=True)), (), "cluster"),
        ((suspect("n1", independent=True),), (Witness(source="dcgm", is_independent=True),), "cluster"),
        ((suspect("n1"),), (Witness(source="kernel", is_independent=True),), "cluster"),
        ((suspect("n1"),), (Witness(source="other_job", is_independent=False),), "workload"),
        ((suspect("n1"), suspect("n1")), (), "workload"),
    ],
)
def test_cluster_scope_takes_two_sources_and_one_out_of_the_users_reach(
    suspects: tuple[Suspect, ...], earlier: tuple[Witness, ...], scope: str
) -> None:
    history = History(witnesses={NodeName("n1"): earlier})
    (exclusion,) = judge(blame(BUS, *suspects), history=history).exclusions
    assert exclusion.scope == scope


@pytest.mark.parametrize(
    ("relapses", "hours"), [(0, 24), (1, 48), (2, 96), (3, 168), (50, 168), (10**9, 168), (-1, 24)]
)
def test_an_exclusion_expires_after_a_day_and_doubles_to_a_week(relapses: int, hours: int) -> None:
    history = History(relapses={NodeName("n1"): relapses})
    (exclusion,) = judge(blame(BUS, suspect("n1")), history=history).exclusions
    assert exclusion.expires_at - AT == timedelta(hours=hours)


@pytest.mark.parametrize("ttl", [timedelta(0), timedelta(days=-3), timedelta(days=9999)])
def test_no_table_can_make_an_exclusion_that_is_over_or_lasts_for_ever(ttl: timedelta) -> None:
    table = replace(TABLE, terms=Terms(ttl=ttl, ttl_max=ttl))
    (exclusion,) = judge(blame(BUS, suspect("n1")), table=table).exclusions
    assert AT < exclusion.expires_at <= AT + timedelta(days=7)


def test_a_decision_takes_two_nodes_and_the_best_witnessed_first() -> None:
    cause = blame(BUS, suspect("a", score=0.9), suspect("b", score=0.5), suspect("c", independent=True))
    verdict = judge(cause)
    assert excluded(verdict) == ("c", "a")
    assert "dropped b: at most 2 nodes a decision" in verdict.decision_basis


def test_four_nodes_at_once_share_a_cause_and_none_is_excluded() -> None:
    verdict = judge(blame(BUS, *(suspect(n) for n in "abcd")))
    assert (verdict.action, verdict.exclusions) == (Action.RESTART, ())


def test_half_a_rack_at_once_shares_a_cause() -> None:
    rack = nodes("a", "b", "c", "d")
    facts = Facts(modes=ACT, allocated_nodes=rack, racks=dict.fromkeys(rack, "r1"))
    assert judge(blame(BUS, suspect("a"), suspect("b")), facts=facts).exclusions == ()
    assert excluded(judge(blame(BUS, suspect("a")), facts=facts)) == ("a",)


@pytest.mark.parametrize(("size", "used", "room"), [(4, 2, 0), (4, 1, 1), (100, 4, 1), (100, 5, 0)])
def test_an_hour_takes_a_twentieth_of_the_partition_or_two_nodes(size: int, used: int, room: int) -> None:
    history = History(partition_nodes=size, excluded_last_hour=used)
    verdict = judge(blame(BUS, suspect("a"), suspect("b")), history=history)
    assert len(verdict.exclusions) == room


@pytest.mark.parametrize(("size", "excluded_now", "room"), [(4, 0, 1), (4, 1, 0), (40, 3, 1), (40, 4, 0), (40, 0, 2)])
def test_a_tenth_of_the_partition_or_one_node_stands_excluded_at_the_most(
    size: int, excluded_now: int, room: int
) -> None:
    history = History(partition_nodes=size, exclusions=standing(*(f"x{n}" for n in range(excluded_now))))
    verdict = judge(blame(BUS, suspect("a"), suspect("b")), history=history)
    assert len(verdict.exclusions) == room


def test_an_expired_exclusion_takes_no_room() -> None:
    over = tuple(replace(e, expires_at=AT) for e in standing("x"))
    history = History(partition_nodes=4, exclusions=over)
    assert excluded(judge(blame(BUS, suspect("a")), history=history)) == ("a",)


def test_a_node_that_is_excluded_already_is_renewed_without_taking_room() -> None:
    history = History(partition_nodes=4, exclusions=standing("a"), excluded_last_hour=2)
    assert excluded(judge(blame(BUS, suspect("a")), history=history)) == ("a",)


def test_an_unknown_partition_is_taken_for_no_larger_than_what_is_seen() -> None:
    few = History(exclusions=standing("x", "y"))
    assert judge(blame(BUS, suspect("a")), history=few).exclusions == ()


def test_the_weakest_accusation_goes_when_too_few_nodes_would_be_left() -> None:
    cause = blame(BUS, suspect("a", independent=True), suspect("b"))
    facts = Facts(modes=ACT, requested_nodes=8)
    verdict = judge(cause, history=History(partition_nodes=100, eligible_nodes=9), facts=facts)
    assert excluded(verdict) == ("a",)
    assert any(b.startswith("dropped b: without it too few nodes") for b in verdict.decision_basis)


def test_with_no_node_to_spare_the_restart_keeps_them_all_and_says_so() -> None:
    verdict = judge(
        blame(BUS, suspect("a", independent=True)),
        history=History(partition_nodes=100, eligible_nodes=8),
        facts=Facts(modes=ACT, requested_nodes=8),
    )
    assert (verdict.action, verdict.reason) == (Action.RESTART, "no_capacity_to_exclude")
    assert any("too few nodes" in b for b in verdict.decision_basis)


def test_leaving_out_a_dead_node_costs_no_capacity() -> None:
    verdict = judge(
        blame("node_failure"),
        history=History(partition_nodes=100, eligible_nodes=8),
        facts=Facts(modes=ACT, requested_nodes=8, failed_nodes=nodes("a")),
    )
    assert excluded(verdict) == ("a",)


def test_scarce_spares_are_spent_on_hard_facts_only() -> None:
    history = History(partition_nodes=100, eligible_nodes=10)
    facts = Facts(modes=ACT, requested_nodes=8)
    soft = judge(blame(BUS, suspect("a")), history=history, facts=facts)
    assert soft.exclusions == ()
    hard = judge(blame(BUS, suspect("a", independent=True)), history=history, facts=facts)
    assert excluded(hard) == ("a",)
    doubtful = blame(BUS, suspect("a", independent=True), evidence_status=EvidenceStatus.SUPPORTED)
    assert judge(doubtful, history=history, facts=facts).exclusions == ()
    plenty = replace(history, eligible_nodes=12)
    assert excluded(judge(blame(BUS, suspect("a")), history=plenty, facts=facts)) == ("a",)


def test_a_node_long_suspected_may_go_although_spares_are_scarce() -> None:
    suspicion = Suspicion()
    for n in range(3):
        suspicion = suspicion.accused(
            [suspect("a")],
            attempt=AttemptId(f"t{n}"),
            workload=WorkloadId(f"w{n}"),
            failure_class=FailureClass.HARDWARE,
            at=AT,
        )
    history = History(partition_nodes=100, eligible_nodes=10, suspicion=suspicion)
    verdict = judge(blame(BUS, suspect("a")), history=history, facts=Facts(modes=ACT, requested_nodes=8))
    assert excluded(verdict) == ("a",)


def test_a_whole_nvlink_domain_goes_together_or_stays() -> None:
    rack = nodes("a", "b", "c")
    facts = Facts(
        modes=ACT,
        allocated_nodes=(*rack, NodeName("z")),
        domains={**dict.fromkeys(rack, "d1"), NodeName("z"): "d2", NodeName("other"): "d1"},
    )
    whole = judge(blame("nvlink_error", suspect("b")), history=History(partition_nodes=100), facts=facts)
    assert excluded(whole) == ("a", "b", "c")
    small = judge(blame("nvlink_error", suspect("b")), history=History(partition_nodes=20), facts=facts)
    assert small.exclusions == ()
    not_wide = judge(blame(BUS, suspect("b")), history=History(partition_nodes=100), facts=facts)
    assert excluded(not_wide) == ("b",)


# ------------------------------------------------------------------ the same place again


def again(name: str, first: str | None, second: str | None) -> Action:
    before = failed_before(blame(name, suspect("n1", gpu=first)), 1, Progress.YES)
    return judge(blame(name, suspect("n1", gpu=second)), history=History(ledger=before)).action


@pytest.mark.parametrize(
    "name",
    [
        "gpu_contained_ecc",
        "gpu_sm_exception",
        "gpu_mmu_fault",
        "gpu_pushbuffer_error",
        "gpu_engine_class_error",
    ],
)
def test_the_same_gpu_twice_in_a_day_is_left_out_and_another_gpu_is_not(name: str) -> None:
    assert again(name, "0000:3b:00", "0000:3b:00") is Action.RESTART_EXCLUDING
    assert again(name, "0000:3b:00", "0000:86:00") is Action.RESTART
    assert again(name, None, None) is Action.RESTART_EXCLUDING


@pytest.mark.parametrize(
    "name",
    [
        "segfault", "gpu_launch_failure", "cuda_initialization_error", "gpu_memory_unavailable_at_start",
        "cuda_launch_timeout", "sdc_suspected", "ib_retry_exceeded", "ib_port_error",
    ],
)  # fmt: skip
def test_the_same_node_twice_in_a_day_is_left_out(name: str) -> None:
    assert again(name, "g0", "g1") is Action.RESTART_EXCLUDING


def test_a_time_out_names_no_node_however_often_it_comes() -> None:
    assert again("nccl_collective_timeout", None, None) is Action.RESTART


def test_the_same_gpu_after_a_day_is_a_first_time() -> None:
    cause = blame("gpu_contained_ecc", suspect("n1", gpu="g0"))
    old = Ledger().after(cause, Progress.YES, AT - timedelta(hours=25))
    assert judge(cause, history=History(ledger=old)).action is Action.RESTART


def test_only_the_repeated_suspect_is_left_out() -> None:
    before = failed_before(blame("segfault", suspect("n1")), 1, Progress.YES)
    verdict = judge(blame("segfault", suspect("n1"), suspect("n2")), history=History(ledger=before))
    assert excluded(verdict) == ("n1",)


def test_a_gpu_that_struck_another_workload_is_left_out_at_the_first_own_strike() -> None:
    key = entity_key(FailureName("gpu_mmu_fault"), NodeName("n1"), "g0")
    verdict = judge(blame("gpu_mmu_fault", suspect("n1", gpu="g0")), history=History(accused_elsewhere={key: 1}))
    assert excluded(verdict) == ("n1",)


@pytest.mark.parametrize("name", ["ib_port_error", "cuda_unknown_error", "gpu_channel_teardown"])
def test_a_doubtful_device_error_excludes_once_a_second_source_says_so(name: str) -> None:
    assert judge(blame(name, suspect("n1"))).action is Action.RESTART
    assert judge(blame(name, suspect("n1"), suspect("n1"))).action is Action.RESTART
    seconded = judge(blame(name, suspect("n1"), suspect("n1", independent=True)))
    assert excluded(seconded) == ("n1",)


@pytest.mark.parametrize("name", ["launch_failure", "device_plugin_failure"])
def test_a_black_hole_is_left_out_after_two_tries_or_two_workloads(name: str) -> None:
    cause = blame(name, suspect("n1"))
    quick = Facts(modes=ACT, runtime_s=5, progress=Progress.NO)
    first = judge(cause, facts=quick)
    assert first.action is Action.RESTART
    second = judge(cause, history=History(ledger=first.ledgers_after), facts=quick)
    assert excluded(second) == ("n1",)
    key = entity_key(FailureName(name), NodeName("n1"))
    for history in (History(accused_elsewhere={key: 1}), History(launch_failures={NodeName("n1"): 2})):
        assert excluded(judge(cause, history=history, facts=quick)) == ("n1",)
    alone = History(launch_failures={NodeName("n1"): 1})
    assert judge(cause, history=alone, facts=quick).exclusions == ()


def test_starts_that_fail_at_once_burn_no_retries_but_are_spaced_out() -> None:
    cause = blame("launch_failure")
    quick = Facts(modes=ACT, runtime_s=5, progress=Progress.NO)
    ledger = Ledger()
    for n in range(6):
        verdict = judge(cause, history=History(ledger=ledger), facts=quick, at=AT + n * HOUR)
        assert verdict.action is Action.RESTART
        ledger = verdict.ledgers_after
    assert (ledger.same_root_without_progress, verdict.delay_s) == (0, 1920)
    slow = judge(cause, facts=replace(quick, runtime_s=600))
    assert slow.ledgers_after.same_root_without_progress == 1


def test_a_failed_start_of_a_one_node_job_can_only_be_that_node() -> None:
    facts = Facts(modes=ACT, runtime_s=5, allocated_nodes=nodes("n1"))
    first = judge(blame("launch_failure"), facts=facts)
    second = judge(blame("launch_failure"), history=History(ledger=first.ledgers_after), facts=facts)
    assert excluded(second) == ("n1",)
