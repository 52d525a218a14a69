# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A slow rank under the real Slurm: observed by default; with the site's and a person's word restarted without it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.slurm.policy_words import rewrite_policy
from tests.slurm.proof import Proof
from tests.slurm.recovered import in_order, warm

pytestmark = pytest.mark.slurm
SLOW_RANK = 4  # the second of the three on the second node
EVERY = 20


@pytest.fixture(autouse=True)
def _alone(apart: Proof) -> Iterator[None]:
    yield
    apart.cancel_all()


def slowed(proof: Proof, name: str) -> str:
    """Six ranks on two nodes, one of which has become slow, and is known to be; two nodes are spare."""
    job_id = proof.train(name, nodes=2, each=3, submit=("--time=600",), checkpoint_every=EVERY)
    warm(proof, job_id)
    proof.order(job_id, SLOW_RANK, fault="slow", delay_s=0.3)
    proof.until(lambda: bool(proof.anomalies(job_id, "straggler")), 60, "the slow rank is named")
    assert proof.anomalies(job_id, "straggler")[0]["rank"] == SLOW_RANK
    return job_id


def assert_untouched(proof: Proof, job_id: str) -> None:
    job = proof.job(job_id)
    assert (job["JobState"], job["Restarts"], proof.milestones(job_id)) == ("RUNNING", "0", [])


def test_by_default_a_slow_rank_is_observed_and_said_to_be(apart: Proof) -> None:
    job_id = slowed(apart, "observed")
    apart.until(lambda: apart.advice(job_id) != {}, 20, "advice is on record")
    advice = apart.advice(job_id)
    assert (advice["action"], advice["reason"], advice["exclusions"]) == ("continue", "slowness_is_observed", [])
    saved = apart.step(job_id)
    apart.trains(job_id, saved + 2 * EVERY)
    assert_untouched(apart, job_id)


def test_where_the_site_and_a_person_say_so_it_is_restarted_without_the_slow_node(apart: Proof) -> None:
    rewrite_policy(apart.client, "slow nodes may be left out; restarts are cheap here, and one spare node is enough",
                   may_exclude=True, restart_s=5, margin=1.0, boundary_s=60, scarce_spares=0)  # fmt: skip
    job_id = slowed(apart, "approved")
    slow_node = apart.nodes(job_id)[SLOW_RANK // 3]
    apart.until(lambda: apart.advice(job_id).get("action") == "restart_excluding", 60, "it is weighed at a checkpoint")
    asked = apart.advice(job_id)
    assert [one["node"] for one in asked["exclusions"]] == [slow_node]
    assert (asked["state"], asked["blocked_by"]) == ("PROPOSED", ["awaiting_approval"])
    waiting = apart.step(job_id)
    apart.trains(job_id, waiting + EVERY)
    assert_untouched(apart, job_id)

    apart.command("approve", apart.advice(job_id)["id"], "--actor", "ada", "--yes")
    apart.until(lambda: apart.job(job_id)["Restarts"] == "1", 40, "it is carried out")
    before = apart.step(job_id)
    apart.until(lambda: apart.job(job_id)["JobState"] == "RUNNING", 60, "it runs again")
    apart.trains(job_id, before + 5)
    apart.until(lambda: apart.state(job_id) == "CONVERGED", 30, "the recommendation converges")
    assert slow_node not in apart.nodes(job_id)
    assert (apart.job(job_id)["Restarts"], apart.excluded(job_id)) == ("1", {slow_node})
    lost = before - apart.resumed_at(job_id)
    print(f"slow rank: {lost} steps were run again, of {EVERY} between two checkpoints")
    assert 0 <= lost <= EVERY // 2, "it was ended right after a checkpoint"
    kinds = apart.kinds(job_id)
    assert in_order(kinds, "anomaly.detected", "incident.opened", "recommendation.issued", "recommendation.approved",
                    "recommendation.claimed", "milestone.recorded", "reconciliation.reported"), kinds  # fmt: skip
