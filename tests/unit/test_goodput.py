# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""GPU-hours: what trained, what was lost since the checkpoint, and what each stage of a recovery cost."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from relight.goodput import Part, Run, Trouble, cluster_waterfall, spans, waterfall
from relight.types import AttemptId, AttemptState, ClusterId, WorkloadId

START = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def run(index: int = 0, **over: object) -> Run:
    usual = Run(
        attempt=AttemptId(f"a-{index}"),
        workload=WorkloadId("w"),
        cluster=ClusterId("c"),
        index=index,
        nodes=2,
        gpus=16,
        state=AttemptState.FAILED,
        submitted_at=at(0),
        started_at=at(0),
    )
    return replace(usual, **over)  # type: ignore[arg-type]


FAILED = run(
    first_step_at=at(6), checkpoint_at=at(60), ended_at=at(70),
    trouble=Trouble(onset_at=at(66), detected_at=at(72), decided_at=at(73), acted_at=at(75), is_open=False),
)  # fmt: skip
NEXT = run(1, state=AttemptState.RUNNING, submitted_at=at(75), started_at=at(90), first_step_at=at(96))


def minutes(found: tuple[object, ...]) -> dict[Part, float]:
    told: dict[Part, float] = {}
    for one in found:
        told[one.part] = told.get(one.part, 0) + (one.end - one.begin) / timedelta(minutes=1)  # type: ignore[attr-defined]
    return told


def test_every_stage_of_a_recovery_is_told_apart() -> None:
    assert minutes(spans([FAILED, NEXT], at(126))) == {
        Part.RELOAD: 6 + 6, Part.PRODUCTIVE: 54 + 30, Part.LOST: 6, Part.DETECT: 6, Part.DECIDE: 1,
        Part.ACT: 2, Part.QUEUE: 15,
    }  # fmt: skip


def test_hours_are_those_of_all_gpus_of_the_run() -> None:
    told = waterfall([FAILED, NEXT], at(126))
    assert told.hours[Part.LOST] == 6 / 60 * 16
    assert told.total == 126 / 60 * 16
    assert told.goodput_ratio == 84 / 126


def test_without_step_reports_nothing_counts_as_productive_nor_as_lost() -> None:
    told = minutes(spans([run(ended_at=at(70))], at(100)))
    assert told == {Part.UNKNOWN: 70}
    assert waterfall([run(ended_at=at(70))], at(100)).goodput_ratio is None


def test_without_any_checkpoint_report_a_failed_runs_steps_are_unknown() -> None:
    assert minutes(spans([replace(FAILED, checkpoint_at=None)], at(75)))[Part.UNKNOWN] == 60


def test_a_run_that_saved_nothing_lost_everything_where_checkpoints_are_reported() -> None:
    second = run(1, started_at=at(90), submitted_at=at(75), first_step_at=at(96), ended_at=at(100))
    told = minutes(tuple(one for one in spans([FAILED, second], at(120)) if one.attempt == second.attempt))
    assert told == {Part.RELOAD: 6, Part.LOST: 4}


def test_a_run_that_never_came_to_a_step_only_loaded() -> None:
    second = run(1, started_at=at(90), submitted_at=at(75), ended_at=at(100))
    told = minutes(tuple(one for one in spans([FAILED, second], at(120)) if one.attempt == second.attempt))
    assert told == {Part.RELOAD: 10}


def test_a_completed_run_keeps_the_steps_behind_its_last_checkpoint() -> None:
    done = run(state=AttemptState.COMPLETED, first_step_at=at(5), checkpoint_at=at(50), ended_at=at(65))
    assert minutes(spans([done], at(300))) == {Part.RELOAD: 5, Part.PRODUCTIVE: 60}


def test_an_incident_that_healed_itself_cost_nothing() -> None:
    healed = run(
        state=AttemptState.COMPLETED, first_step_at=at(5), ended_at=at(65),
        trouble=Trouble(onset_at=at(20), detected_at=at(30), is_open=False, is_harmless=True),
    )  # fmt: skip
    assert minutes(spans([healed], at(300))) == {Part.RELOAD: 5, Part.PRODUCTIVE: 60}


def test_a_straggler_costs_no_stage_while_its_job_goes_on() -> None:
    slow = Trouble(onset_at=at(20), detected_at=at(30), stops_training=False)
    going = run(state=AttemptState.RUNNING, first_step_at=at(5), trouble=slow)
    assert minutes(spans([going], at(65))) == {Part.RELOAD: 5, Part.PRODUCTIVE: 60}
    ended = replace(going, state=AttemptState.FAILED, ended_at=at(65), checkpoint_at=at(60))
    assert minutes(spans([ended], at(70))) == {Part.RELOAD: 5, Part.PRODUCTIVE: 55, Part.LOST: 5, Part.DECIDE: 5}


def test_waiting_for_an_approval_counts_until_now() -> None:
    waiting = replace(FAILED, trouble=Trouble(onset_at=at(66), detected_at=at(72), decided_at=at(73)))
    assert minutes(spans([waiting], at(103)))[Part.ACT] == 30


def test_where_nobody_of_ours_acted_the_next_submission_ends_the_act() -> None:
    by_hand = replace(FAILED, trouble=Trouble(onset_at=at(66), detected_at=at(72), decided_at=at(73), is_open=False))
    told = minutes(spans([by_hand, replace(NEXT, submitted_at=at(83))], at(126)))
    assert (told[Part.ACT], told[Part.QUEUE]) == (10, 7)


def test_a_stopped_workload_gives_its_gpus_back() -> None:
    assert max(one.end for one in spans([FAILED], at(900))) == at(75)


def test_unknown_gpu_counts_make_node_hours_and_stay_out_of_the_sum() -> None:
    mute = replace(FAILED, gpus=None, workload=WorkloadId("mute"))
    assert not waterfall([mute], at(126)).is_in_gpu_hours
    total = cluster_waterfall({WorkloadId("w"): [FAILED], WorkloadId("mute"): [mute]}, at(126))
    assert total.left_out == ("mute",)
    assert total.total == waterfall([FAILED], at(126)).total


moments = st.none() | st.integers(-50, 200).map(at)


@given(
    st.lists(
        st.builds(
            run, index=st.integers(0, 3), state=st.sampled_from(AttemptState), started_at=moments, ended_at=moments,
            first_step_at=moments, checkpoint_at=moments,
            trouble=st.none() | st.builds(
                Trouble, onset_at=st.integers(-50, 200).map(at), detected_at=moments, decided_at=moments,
                acted_at=moments, is_open=st.booleans(), is_harmless=st.booleans(), stops_training=st.booleans()),
        ),
        max_size=4, unique_by=lambda one: one.attempt,
    )
)  # fmt: skip
def test_whatever_the_marks_no_time_is_counted_twice(runs: list[Run]) -> None:
    found = spans(runs, at(100))
    assert all(one.begin < one.end for one in found)
    for before, after in pairwise(found):
        assert before.end <= after.begin
