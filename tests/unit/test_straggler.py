# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which ranks, nodes and stages the straggler detector names, and whom it leaves alone."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from detectors.straggler import StragglerDetector
from relight.testing.detector import NOON, ONE, OTHER, run
from relight.types import Anomaly, AttemptId, StepBatch
from tests.unit.detection_streams import RANKS, STEP_S, Slow, batches, shape, slow_rank, timings


def seen_by(slow: Slow, steps: int = 320, *, sigma: float = 0.01, seed: int = 100) -> list[Anomaly]:
    return run(StragglerDetector(), [shape(ONE), *batches(ONE, steps, slow, sigma=sigma, seed=seed)])


def ranks_of(said: Sequence[Anomaly]) -> set[int]:
    return {rank for a in said if a.scope in ("rank", "node") for rank in a.detail["ranks"]}


def test_a_slow_rank_is_named_once_with_its_node_onset_and_figures() -> None:
    (said,) = seen_by(slow_rank(5, 1.3, 150))
    assert (said.scope, said.rank, said.node) == ("rank", 5, "node1")
    assert abs(said.onset_at - (NOON + timedelta(seconds=150 * STEP_S))) <= timedelta(seconds=2 * STEP_S)
    assert said.detected_at - said.onset_at < timedelta(seconds=12 * STEP_S)
    assert said.baseline == pytest.approx(8.0, rel=0.05)
    assert said.detail["ratio"] == pytest.approx(1.3, rel=0.08)
    assert said.detail["severity"] == "critical"
    assert "rank 5 on node1" in said.summary


@pytest.mark.parametrize(("factor", "most_steps"), [(1.05, 40), (1.1, 15), (2.35, 8)])
def test_the_smaller_the_slowness_the_longer_it_takes(factor: float, most_steps: int) -> None:
    (said,) = seen_by(slow_rank(3, factor, 150))
    assert said.rank == 3
    assert said.detected_at <= NOON + timedelta(seconds=(150 + most_steps) * STEP_S)


def test_one_percent_is_nobody_s_fault() -> None:
    assert seen_by(slow_rank(3, 1.01, 150), 1000) == []


def test_a_rank_slow_from_its_first_step_is_named() -> None:
    (said,) = seen_by(slow_rank(9, 1.2, 0))
    assert said.rank == 9


def test_a_slow_spell_of_ten_minutes_is_named() -> None:
    (said,) = seen_by(slow_rank(9, 1.3, 150, until=210))
    assert said.rank == 9


def test_a_rank_slow_on_every_third_step_is_named() -> None:
    said = seen_by(lambda step, rank: 1.5 if rank == 2 and step >= 100 and step % 3 == 0 else 1.0)
    assert ranks_of(said) == {2}


def test_a_rank_slow_again_and_again_is_called_intermittent() -> None:
    said = seen_by(lambda step, rank: 1.4 if rank == 2 and step >= 100 and step % 200 < 40 else 1.0, 900)
    assert [a.rank for a in said] == [2] * len(said)
    assert len(said) >= 3
    assert [a.detail["is_intermittent"] for a in said[:3]] == [False, False, True]


def test_a_slow_node_is_named_as_a_node_with_all_its_ranks() -> None:
    said = run(
        StragglerDetector(),
        [shape(ONE, ranks=64, per_node=8), *batches(ONE, 300, lambda s, r: 1.1 if r // 8 == 3 and s >= 150 else 1.0, ranks=64)],
    )  # fmt: skip
    assert [(a.scope, a.node) for a in said] == [("node", "node3")]
    assert ranks_of(said) == set(range(24, 32))


def test_ranks_slow_all_over_the_job_are_uneven_work_and_accuse_nobody() -> None:
    said = seen_by(lambda step, rank: 1.2 if rank % 3 == 0 and step >= 150 else 1.0)
    assert ranks_of(said) == set()
    assert [a.scope for a in said] == ["job"]


def test_everybody_slower_at_once_names_nobody() -> None:
    assert seen_by(lambda step, rank: 1.3 if step >= 150 else 1.0) == []


def test_a_heavy_last_stage_is_an_imbalance_and_no_node_s_fault() -> None:
    stages = [rank // 4 for rank in range(RANKS)]
    (said,) = run(StragglerDetector(), batches(ONE, 300, stages=stages, heavy_stage=1.63))
    assert (said.scope, said.rank, said.node) == ("stage", None, None)
    assert said.detail["stage"] == 3
    assert said.detail["ratio"] == pytest.approx(1.63, rel=0.03)


def test_a_slow_rank_of_the_heavy_stage_is_found_among_its_peers() -> None:
    stages = [rank // 4 for rank in range(RANKS)]
    said = run(StragglerDetector(), batches(ONE, 300, slow_rank(13, 1.1, 150), stages=stages, heavy_stage=1.63))
    assert ranks_of(said) == {13}


def test_stages_may_come_with_the_shape_of_the_job() -> None:
    stages = [rank // 4 for rank in range(RANKS)]
    stream = [replace(b, stages=None) for b in batches(ONE, 200, stages=stages, heavy_stage=1.63)]
    said = run(StragglerDetector(), [shape(ONE, stages=stages), *stream])
    assert [a.scope for a in said] == ["stage"]


def test_workers_that_differ_widely_from_the_start_raise_no_alarm() -> None:
    speeds = np.linspace(0.8, 2.0, RANKS)
    assert seen_by(lambda step, rank: float(speeds[rank]), 600) == []


def test_one_noisy_rank_is_not_slow() -> None:
    rough = np.exp(np.random.default_rng(7).normal(0, 0.14, 2000))
    assert seen_by(lambda step, rank: float(rough[step]) if rank == 4 else 1.0, 2000) == []


def test_a_single_long_step_is_no_straggler() -> None:
    assert seen_by(lambda step, rank: 10.0 if rank == 4 and step in (100, 200) else 1.0) == []


def test_step_times_alone_accuse_nobody() -> None:
    stream = [replace(b, compute_s=None) for b in batches(ONE, 300, slow_rank(5, 1.5, 100))]
    assert run(StragglerDetector(), stream) == []


def test_work_that_is_a_sliver_of_the_step_accuses_nobody() -> None:
    stream = [
        replace(b, compute_s=[c * 1e-4 for c in b.compute_s or ()]) for b in batches(ONE, 300, slow_rank(5, 3.0, 100))
    ]
    assert run(StragglerDetector(), stream) == []


def test_alone_or_in_too_small_a_company_nobody_is_judged() -> None:
    for ranks in (1, 2):
        assert run(StragglerDetector(), batches(ONE, 300, slow_rank(0, 1.5, 0), ranks=ranks)) == []


def test_an_answer_needs_half_of_the_peers() -> None:
    few = [
        replace(b, compute_s=[c if rank < 7 else float("nan") for rank, c in enumerate(b.compute_s or ())])
        for b in batches(ONE, 300, slow_rank(5, 1.5, 100))
    ]  # fmt: skip
    assert run(StragglerDetector(), few) == []


def test_a_rank_that_vanishes_and_one_that_appears_raise_no_alarm() -> None:
    first, second = batches(ONE, 200, ranks=12), batches(ONE, 200, ranks=16, first=200, seed=101)
    assert run(StragglerDetector(), timings([*first, *second])) == []
    assert run(StragglerDetector(), [*second, *(replace(b, step=b.step + 400) for b in first)]) == []


def test_timings_one_by_one_in_any_order_say_the_same_as_batches() -> None:
    stream = batches(ONE, 250, slow_rank(2, 1.3, 150), ranks=4)
    single = timings(stream)
    shuffled = [t for i in range(0, len(single), 8) for t in sorted(single[i : i + 8], key=lambda t: (t.rank * 7) % 5)]
    (by_batch,), (by_timing,) = run(StragglerDetector(), stream), run(StragglerDetector(), shuffled)
    assert by_timing.rank == by_batch.rank == 2
    assert by_timing.detail["step"] == by_batch.detail["step"]


def test_slow_values_never_teach_the_baseline() -> None:
    long, short = StragglerDetector(), StragglerDetector()
    run(long, batches(ONE, 2000, slow_rank(5, 1.3, 150)))
    run(short, batches(ONE, 170, slow_rank(5, 1.3, 150)))
    biases = [d.snapshot()["tracks"][ONE]["engine"]["bias"][5] for d in (long, short)]
    assert biases[0] == biases[1]
    assert abs(biases[0]) < 0.02


def test_nothing_is_learnt_while_an_incident_is_open() -> None:
    detector, stream = StragglerDetector(), batches(ONE, 300)
    run(detector, stream[:100])
    detector.freeze(ONE, True)
    before = detector.snapshot()["tracks"][ONE]["engine"]
    run(detector, stream[100:200])
    frozen = detector.snapshot()["tracks"][ONE]["engine"]
    assert (frozen["bias"], frozen["sigma"]) == (before["bias"], before["sigma"])
    detector.freeze(ONE, False)
    run(detector, stream[200:])
    assert detector.snapshot()["tracks"][ONE]["engine"]["bias"] != before["bias"]


def test_another_batch_size_begins_a_new_baseline() -> None:
    detector = StragglerDetector()
    run(detector, [shape(ONE), *batches(ONE, 200)])
    run(detector, [shape(ONE, batch=1024)])
    assert detector.snapshot()["tracks"][ONE]["engine"]["ranks"] == []


def resumed(nodes: list[str]) -> list[int]:
    """How much each rank's baseline counts in an attempt that follows one on node0, node1, …"""
    detector = StragglerDetector()
    run(detector, [shape(ONE, workload="job"), *batches(ONE, 300)])
    detector.forget(ONE)
    run(detector, [shape(OTHER, workload="job", nodes=nodes)])
    taught: list[int] = detector.snapshot()["tracks"][OTHER]["engine"]["taught"]
    return taught


def test_baselines_carry_over_to_the_next_attempt_with_capped_weight() -> None:
    assert resumed([f"node{rank // 4}" for rank in range(RANKS)]) == [10] * RANKS


def test_a_rank_that_moved_to_another_node_begins_anew() -> None:
    assert resumed(["node9"] * 4 + [f"node{rank // 4}" for rank in range(4, RANKS)]) == [0] * 4 + [10] * 12


def test_training_that_went_back_to_a_checkpoint_is_followed() -> None:
    detector = StragglerDetector()
    run(detector, batches(ONE, 200))
    again = [
        replace(b, at=b.at + timedelta(seconds=3000))
        for b in batches(ONE, 100, slow_rank(5, 1.5, 20), first=50, seed=101)
    ]
    assert ranks_of(run(detector, again)) == {5}


def test_every_third_step_may_be_missing() -> None:
    stream = [b for b in batches(ONE, 400, slow_rank(5, 1.3, 150)) if b.step % 3]
    assert ranks_of(run(StragglerDetector(), stream)) == {5}


def test_ten_thousand_ranks_take_64_bytes_each_at_most() -> None:
    ranks, rng = 10_000, np.random.default_rng(100)
    detector, names = StragglerDetector(), tuple(range(10_000))
    for step in range(40):
        work = array("d", (8 * np.exp(rng.normal(0, 0.01, ranks))).tobytes())
        detector.observe(
            StepBatch(
                attempt=AttemptId("big"), at=NOON + timedelta(seconds=step), step=step, ranks=names,
                step_s=[10.0] * ranks, compute_s=work, stages=[rank % 8 for rank in names],
            )
        )  # fmt: skip
    assert detector.bytes_per_rank(AttemptId("big")) <= 64
