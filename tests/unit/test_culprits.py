# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whom the winning claim accuses: ranks, and nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from relight.types import (
    Action,
    Evidence,
    EvidenceStatus,
    NodeName,
    Rank,
    Role,
    SignatureId,
    Stream,
)
from tests.unit.claims import claim, verdict


def test_the_rank_that_never_complains_is_the_one_the_others_wait_for() -> None:
    ranks = frozenset(map(Rank, range(4)))
    nodes = {Rank(r): NodeName(f"n{r}") for r in range(4)}
    waiting = [
        claim("nccl_collective_timeout", 10 + r, Role.SYMPTOM, rank=Rank(r), captures={"seq": 70}) for r in (0, 1, 3)
    ]
    said = verdict(*waiting, logged_ranks=ranks, rank_to_node=nodes)
    assert said.ranks == (2,)
    assert said.rank_nodes == ("n2",)
    assert said.nodes == ()


def test_victims_alone_accuse_nobody() -> None:
    said = verdict(claim("remote_peer_exited", 1, Role.SYMPTOM, rank=Rank(5)))
    assert said.ranks == ()


def test_a_worker_that_left_without_a_word_explains_its_peers() -> None:
    said = verdict(
        claim("remote_peer_exited", 5, Role.SYMPTOM, rank=Rank(0), file="r0"),
        claim("cause_not_in_log", 9, Role.TEARDOWN, rank=Rank(1), file="r1", captures={"exit_code": 7}),
        logged_ranks=frozenset(map(Rank, (0, 1))),
    )
    assert said.failure == "cause_not_in_log"
    assert said.ranks == (1,)


def test_two_port_errors_on_one_host_exclude_it() -> None:
    said = verdict(claim("ib_port_error", 1, node=NodeName("n7"), count=3, accuses_node="writer"))
    assert (said.action, said.nodes) == (Action.RESTART_EXCLUDING, ("n7",))


def test_an_exception_repeated_by_other_ranks_in_other_words_accuses_the_first_only() -> None:
    said = verdict(
        claim("python_exception", 1, rank=Rank(2), title="IndexError: 17", captures={"exception": "IndexError"}),
        claim("python_exception", 2, rank=Rank(1), title="IndexError: 18", captures={"exception": "IndexError"}),
        claim("python_exception", 3, rank=Rank(0), title="OSError: lost", captures={"exception": "OSError"}),
    )
    assert said.ranks == (2, 1)


def test_a_jobs_own_log_is_no_independent_witness() -> None:
    own = verdict(claim("gpu_fell_off_bus", 1, node=NodeName("n1")))
    kernel = verdict(claim("gpu_fell_off_bus", 1, node=NodeName("n1"), stream=Stream.KERNEL))
    assert [s.is_independent for s in (*own.suspects, *kernel.suspects)] == [False, True]


def test_a_file_missing_on_all_ranks_of_one_node_only_is_not_established() -> None:
    places = {Rank(r): NodeName(f"n{r // 4}") for r in range(16)}
    ranks = [claim("input_missing", r, rank=Rank(r)) for r in range(4, 8)]
    assert verdict(*ranks, rank_to_node=places).evidence_status is EvidenceStatus.HYPOTHESIS
    everywhere = [claim("input_missing", r, rank=Rank(r)) for r in range(16)]
    assert verdict(*everywhere, rank_to_node=places).evidence_status is EvidenceStatus.ESTABLISHED
    assert verdict(ranks[0], rank_to_node=places).evidence_status is EvidenceStatus.ESTABLISHED


def test_a_block_of_eight_is_one_node_where_tasks_elsewhere_were_ended() -> None:
    ranks = [claim("input_missing", r, rank=Rank(r)) for r in range(24, 30)]
    ended = [
        claim("cause_not_in_log", 40 + n, Role.TEARDOWN, captures={"node": f"n{n}", "tasks": "0-7", "reason": "Terminated"})
        for n in range(2)
    ]  # fmt: skip
    assert verdict(*ranks, *ended).evidence_status is EvidenceStatus.HYPOTHESIS
    assert verdict(*ranks, *ended[:1]).evidence_status is EvidenceStatus.ESTABLISHED


def lost(order: int, node: str, peer: str) -> Evidence:
    return claim("ib_retry_exceeded", order, node=NodeName(node), captures={"peer": peer}, accuses_node="captured")


def test_the_host_that_several_others_lost_is_kept_out_once_its_address_has_a_name() -> None:
    own = claim(
        "none",
        1,
        Role.BENIGN,
        signature=SignatureId("nccl.own_address"),
        node=NodeName("n9"),
        captures={"peer": "10.0.0.9"},
    )
    said = verdict(own, lost(2, "n1", "10.0.0.9"), lost(3, "n2", "10.0.0.9"))
    assert (said.action, [one.node for one in said.suspects]) == (Action.RESTART_EXCLUDING, ["n9"])
    unnamed = verdict(lost(2, "n1", "10.0.0.9"), lost(3, "n2", "10.0.0.9"))
    assert unnamed.action is None
    alone = verdict(own, lost(2, "n1", "10.0.0.9"), lost(3, "n1", "10.0.0.9"))
    mutual = verdict(own, lost(2, "n1", "10.0.0.9"), lost(3, "n9", "n1"))
    assert (alone.action, mutual.action) == (None, None)


def test_a_launch_failure_that_the_nodes_own_daemon_confirms_lies_on_that_node() -> None:
    launcher = claim("launch_failure", 1, captures={"node": "n2"})
    daemon = claim("launch_failure", 2, stream=Stream.SCHEDULER, file="slurmd-n2.log", node=NodeName("n2"))
    assert verdict(launcher, daemon).action is Action.RESTART_EXCLUDING
    assert verdict(launcher, replace(daemon, node=NodeName("n3"))).action is None
    assert verdict(launcher, replace(daemon, stream=Stream.APPLICATION)).action is None


def waiting(rank: int, order: int, **captures: Any) -> Evidence:
    return claim("nccl_collective_timeout", order, Role.SYMPTOM, rank=Rank(rank), captures=captures)


def test_the_rank_that_never_enqueued_what_the_others_wait_for_is_the_culprit() -> None:
    waits = [waiting(r, r + 1, seq=9311, last_enqueued=9313) for r in range(3)]
    late = claim("nccl_collective_timeout", 9, Role.CONFIRMATION, rank=Rank(3), captures={"last_enqueued": 9310})
    assert verdict(*waits, late).ranks == (3,)
    assert verdict(*waits, replace(late, captures={"last_enqueued": 9313})).ranks == ()
    elsewhere = replace(late, captures={"last_enqueued": 9310, "group": "tp"})
    assert verdict(*waits, elsewhere).ranks == ()


def test_the_few_in_another_collective_are_the_culprits_of_a_desync() -> None:
    waits = [waiting(r, r + 1, seq=30522, op="ALLREDUCE") for r in range(3)]
    told = verdict(*waits, waiting(3, 9, seq=30522, op="ALLGATHER"))
    assert (told.failure, told.ranks) == ("collective_desync", (3,))
    halves = verdict(*waits[:2], *(waiting(r, r + 5, seq=30522, op="ALLGATHER") for r in (2, 3)))
    assert (halves.failure, halves.ranks) == ("collective_desync", ())


def test_a_broken_gpu_is_told_from_the_errors_of_its_neighbours() -> None:
    kernel = claim("gpu_fell_off_bus", 1, stream=Stream.KERNEL, file="n1.log", node=NodeName("n1"))
    own = claim("gpu_fell_off_bus", 4, rank=Rank(2))
    neighbours = [claim("python_exception", 5 + r, rank=Rank(r)) for r in (0, 1)]
    assert verdict(kernel, own, *neighbours).ranks == (2,)
    assert verdict(kernel, *neighbours).ranks == (0, 1)


def test_what_happens_on_a_node_that_the_job_was_not_given_is_not_its_failure() -> None:
    kernel = claim("gpu_fell_off_bus", 1, stream=Stream.KERNEL, file="syslog", node=NodeName("gpu031"))
    ours = frozenset(NodeName(f"gpu{n:03d}") for n in range(11, 15))
    told = verdict(kernel, nodes=ours)
    assert told.failure == "none" and "not of this job" in told.losers[0].reason
    assert verdict(replace(kernel, node=NodeName("gpu012.cluster")), nodes=ours).failure == "gpu_fell_off_bus"
    assert verdict(kernel, nodes=frozenset({NodeName("c1")})).failure == "gpu_fell_off_bus"
    assert verdict(replace(kernel, stream=Stream.APPLICATION), nodes=ours).failure == "gpu_fell_off_bus"
