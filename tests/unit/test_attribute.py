# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which claim wins, and which lose and why."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from relight.types import (
    Evidence,
    EvidenceStatus,
    FailureClass,
    FailureName,
    NodeName,
    Rank,
    Role,
    SignatureId,
    Stream,
)
from tests.unit.claims import START, claim, verdict


def test_nothing_claimed_is_no_failure() -> None:
    said = verdict()
    assert (said.failure, said.failure_class, said.root) == ("none", FailureClass.BENIGN, None)


def test_the_deeper_cause_wins_over_an_earlier_symptom() -> None:
    said = verdict(
        claim("nccl_collective_timeout", 1, Role.SYMPTOM), claim("gpu_fell_off_bus", 5, stream=Stream.KERNEL)
    )
    assert said.failure == "gpu_fell_off_bus"
    assert [x.failure for x in said.losers] == ["nccl_collective_timeout"]
    assert "explained by gpu_fell_off_bus" in said.losers[0].reason


def test_of_equal_claims_the_earliest_is_the_root() -> None:
    said = verdict(claim("python_exception", 9), claim("python_exception", 3))
    assert said.root is not None
    assert said.root.where.line == 3


def test_time_orders_claims_of_different_files_where_all_are_stamped() -> None:
    late = claim("python_exception", 1, file="a", at=START + timedelta(seconds=9))
    early = claim("python_exception", 2, file="b", at=START)
    root = verdict(late, early).root
    assert root is not None
    assert root.where.file == "b"


def test_teardown_alone_means_that_the_cause_is_not_in_the_log() -> None:
    said = verdict(claim("cause_not_in_log", 4, Role.TEARDOWN))
    assert said.failure == "cause_not_in_log"
    assert said.evidence_status is EvidenceStatus.UNKNOWN


def test_teardown_after_a_completed_run_is_no_failure() -> None:
    assert verdict(claim("cause_not_in_log", 4, Role.TEARDOWN), is_completed=True).failure == "none"


def test_what_training_survived_is_not_the_cause() -> None:
    said = verdict(claim("python_exception", 2, is_survived=True))
    assert said.failure == "none"
    assert said.losers[0].reason == "training went on after it"


def test_a_signature_under_test_is_recorded_and_never_decides() -> None:
    said = verdict(claim("gpu_fell_off_bus", 2, maturity="test"))
    assert said.failure == "none"
    assert "recorded, never decides" in said.losers[0].reason


def test_a_benign_line_excuses_named_failures_in_its_own_file_only() -> None:
    benign = claim("none", 1, Role.BENIGN, excuses=(FailureName("python_exception"),))
    assert verdict(benign, claim("python_exception", 2)).failure == "none"
    assert verdict(benign, claim("python_exception", 2, file="other")).failure == "python_exception"


def test_what_comes_after_an_order_to_end_is_how_the_program_died() -> None:
    said = verdict(claim("user_cancelled", 1, Role.SYMPTOM), claim("python_exception", 2))
    assert said.failure == "user_cancelled"


def test_a_person_who_cancels_a_broken_job_is_not_its_cause() -> None:
    said = verdict(claim("nccl_collective_timeout", 1, Role.SYMPTOM), claim("user_cancelled", 2, Role.SYMPTOM))
    assert said.failure == "nccl_collective_timeout"


def test_the_time_limit_stands_even_though_something_was_reported_before() -> None:
    assert verdict(claim("python_exception", 1), claim("time_limit", 2)).failure == "time_limit"


def test_a_steps_cancel_yields_to_any_other_claim() -> None:
    step = claim("user_cancelled", 1, Role.SYMPTOM, signature=SignatureId("slurm.step_cancelled"), file="a")
    assert verdict(step, claim("killed_unconfirmed", 2, Role.SYMPTOM, file="b")).failure == "killed_unconfirmed"


def test_kills_after_the_scheduler_began_to_end_the_step_accuse_nobody() -> None:
    said = verdict(
        claim(
            "killed_unconfirmed",
            1,
            Role.SYMPTOM,
            accuses_node="captured",
            captures={"node": "n4", "tasks": "3"},
        ),
        claim("cause_not_in_log", 2, Role.TEARDOWN, signature=SignatureId("slurm.job_ending")),
        claim(
            "killed_unconfirmed",
            3,
            Role.SYMPTOM,
            accuses_node="captured",
            captures={"node": "n1", "tasks": "0"},
        ),
    )
    assert said.ranks == (3,)
    assert said.nodes == ("n4",)


def test_ranks_waiting_in_different_collectives_have_parted_ways() -> None:
    said = verdict(
        claim("nccl_collective_timeout", 1, Role.SYMPTOM, rank=Rank(0), captures={"op": "BROADCAST", "seq": 90}),
        claim("nccl_collective_timeout", 2, Role.SYMPTOM, rank=Rank(1), captures={"op": "ALLGATHER", "seq": 92}),
    )
    assert said.failure == "collective_desync"


def test_different_collectives_in_different_groups_are_no_desync() -> None:
    said = verdict(
        claim("nccl_collective_timeout", 1, Role.SYMPTOM, rank=Rank(0), captures={"op": "BROADCAST", "seq": 90}),
        claim("nccl_collective_timeout", 2, Role.SYMPTOM, rank=Rank(1), captures={"op": "ALLGATHER", "seq": 92}),
        claim("cause_not_in_log", 3, Role.TEARDOWN, captures={"group": "11"}),
        claim("cause_not_in_log", 4, Role.TEARDOWN, captures={"group": "12"}),
    )
    assert said.failure == "nccl_collective_timeout"


def test_a_first_collective_that_never_finished_is_an_early_timeout() -> None:
    said = verdict(claim("nccl_collective_timeout", 1, Role.SYMPTOM, captures={"op": "ALLGATHER", "seq": 1}))
    assert said.failure == "nccl_early_timeout"


def test_device_memory_that_ran_out_after_long_good_work_is_another_failure() -> None:
    assert verdict(claim("cuda_oom", 1, steps_before=4)).failure == "cuda_oom"
    assert verdict(claim("cuda_oom", 1, steps_before=4_000)).failure == "cuda_oom_after_progress"


def test_a_root_establishes_and_a_lone_symptom_is_a_hypothesis() -> None:
    root = verdict(claim("python_exception", 1))
    symptom = verdict(claim("killed_unconfirmed", 1, Role.SYMPTOM))
    backed = verdict(claim("killed_unconfirmed", 1, Role.SYMPTOM), claim("killed_unconfirmed", 2, Role.CONFIRMATION))
    assert [a.evidence_status for a in (root, symptom, backed)] == [
        EvidenceStatus.ESTABLISHED,
        EvidenceStatus.HYPOTHESIS,
        EvidenceStatus.SUPPORTED,
    ]


def test_pods_without_a_place_are_the_consequence_of_a_lost_node() -> None:
    lost = claim("node_not_responding", 1)
    crowded = [claim("pod_evicted_by_taint", 2), claim("insufficient_gpu_capacity", 3)]
    assert verdict(lost, *crowded).failure == "node_not_responding"
    assert verdict(crowded[1]).failure == "insufficient_gpu_capacity"


def test_clean_up_between_two_reports_of_one_cancel_does_not_explain_it() -> None:
    said = verdict(
        claim("user_cancelled", 1, at=START, file="job.log"),
        claim("gpu_channel_teardown", 2, Role.SYMPTOM, at=START + timedelta(seconds=1), file="kern.log"),
        claim("user_cancelled", 3, at=START + timedelta(seconds=2), file="slurmctld.log"),
    )
    assert said.failure == "user_cancelled"


def test_a_port_that_the_job_trained_on_after_is_no_cause_in_the_kernels_words_either() -> None:
    def down(minutes: int = 0, count: int = 1) -> Evidence:
        at = START + timedelta(minutes=minutes)
        return claim("ib_port_error", 1, Role.SYMPTOM, stream=Stream.KERNEL, file="kern.log", at=at, count=count)

    survived = claim("ib_port_error", 2, is_survived=True, at=START + timedelta(seconds=20))
    assert verdict(down(), survived).failure == "none"
    assert verdict(down(), replace(survived, is_survived=False)).failure == "ib_port_error"
    assert verdict(down(minutes=90), survived).failure == "ib_port_error", "a later one that the job is silent about"
    assert verdict(down(count=2), survived).failure == "ib_port_error", "one more than the job speaks of"


def test_a_loss_before_the_hosts_last_boot_is_no_cause_of_what_the_program_did() -> None:
    kernel: dict[str, Any] = {"stream": Stream.KERNEL, "file": "n1-dmesg.log", "node": NodeName("n1")}
    lost = claim("gpu_fell_off_bus", 1, at=START, **kernel)
    booted = claim(
        "none", 2, Role.BENIGN, at=START + timedelta(hours=9), **kernel, signature=SignatureId("host.kernel_booted")
    )
    outgrown = claim("cuda_oom", 9)
    told = verdict(lost, booted, outgrown)
    assert told.failure == "cuda_oom" and "has booted since" in told.losers[0].reason
    assert verdict(lost, outgrown).failure == "gpu_fell_off_bus"
    assert verdict(lost, booted, claim("remote_peer_exited", 9, Role.SYMPTOM)).failure == "gpu_fell_off_bus"
    died_before_it = claim("cuda_oom", 9, at=START + timedelta(seconds=5))
    assert verdict(lost, booted, died_before_it).failure == "gpu_fell_off_bus"


@pytest.mark.parametrize("role", list(Role))
def test_evidence_of_a_silenced_signature_is_told_and_moves_nothing(role: Role) -> None:
    """Nor does it back, excuse, order an end or date a teardown."""
    quiet = claim("time_limit", 1, role, maturity="silenced until noon", excuses=(FailureName("cuda_oom"),))
    said = verdict(quiet, claim("cuda_oom", 2))
    assert (said.failure, said.evidence_status, said.confirmations) == ("cuda_oom", EvidenceStatus.ESTABLISHED, ())
    told = [one.reason for one in said.losers]
    accusing = role in {Role.ROOT, Role.SYMPTOM}
    assert told == (["signature is silenced until noon: recorded, never decides"] if accusing else [])
    assert verdict(quiet).failure == "none"


def test_of_several_nodes_each_must_be_spoken_for_to_excuse_a_claim() -> None:
    lost = claim("node_not_responding", 1, stream=Stream.SCHEDULER, captures={"nodes": "n1,n2"})
    back = [
        claim(
            "none", 2 + n, Role.BENIGN, stream=Stream.SCHEDULER, captures={"node": f"n{n}"}, last_order=2 + n,
            excuses=(FailureName("node_not_responding"),), excuses_earlier_only=True,
        )
        for n in (1, 2)
    ]  # fmt: skip
    assert verdict(lost, *back).failure == "none"
    assert verdict(lost, back[0]).failure == "node_not_responding"
    assert verdict(*back, replace(lost, order=9, last_order=9)).failure == "node_not_responding"
