# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Steps as they are taken in: gathered over ranks, tallied over lines, and compared over attempts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from relight.events import AttemptObserved, Event, SignalAccepted
from relight.policy import PolicyTable
from relight.types import (
    AttemptId,
    AttemptState,
    Attribution,
    ClusterId,
    EvidenceStatus,
    FailureClass,
    FailureName,
    LogRef,
    Mode,
    Observation,
    Phase,
    Progress,
    Rank,
    StepBatch,
    StepProgress,
    StepTiming,
    WorkloadId,
)
from service.history import Question
from service.projection import Projection
from service.step_gathering import StepGathering
from service.step_tally import StepTally

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
JOB = AttemptId("a-1")


def timing(rank: int, step: int = 7, own: float | None = 0.2, at: datetime = NOW) -> StepTiming:
    return StepTiming(attempt=JOB, at=at, rank=Rank(rank), step=step, step_s=1.0 + rank, compute_s=own)


def gathered(*seen: Observation, world: int | None = 3) -> list[Observation]:
    return StepGathering().gathered(seen, NOW, lambda _: world)


def test_timings_of_all_ranks_become_one_batch_in_the_order_of_ranks() -> None:
    (batch,) = gathered(timing(2), timing(0), timing(1, own=None))
    assert isinstance(batch, StepBatch)
    assert (list(batch.ranks), list(batch.step_s)) == ([0, 1, 2], [1.0, 2.0, 3.0])
    assert batch.compute_s is not None
    assert str(list(batch.compute_s)) == "[0.2, nan, 0.2]"


@pytest.mark.parametrize("world", [None, 1, 4])
def test_of_a_part_of_the_ranks_or_of_unknown_ones_no_batch_is_made(world: int | None) -> None:
    found = gathered(timing(0), timing(1), timing(2), world=world)
    assert [type(one) for one in found] == [StepTiming] * 3


def test_two_steps_are_two_batches_and_the_first_of_doubled_reports_counts() -> None:
    doubled = StepTiming(attempt=JOB, at=NOW, rank=Rank(0), step=7, step_s=99.0)
    found = gathered(timing(0), doubled, timing(1), timing(2), *(timing(rank, step=8) for rank in range(3)))
    assert [(one.step, one.step_s[0]) for one in found if isinstance(one, StepBatch)] == [(7, 1.0), (8, 1.0)]


def test_a_throughput_joins_the_next_completed_step_once() -> None:
    steps = StepGathering()
    steps.rated(JOB, 8_000.0)
    seen = [StepProgress(attempt=JOB, at=NOW, step=step) for step in (1, 2)]
    found = steps.gathered(seen, NOW, lambda _: None)
    assert [one.throughput for one in found if isinstance(one, StepProgress)] == [8_000.0, None]


def test_a_time_ahead_of_ours_is_a_wrong_clock() -> None:
    (found,) = gathered(timing(0, at=NOW + timedelta(hours=1)), world=None)
    assert found.at == NOW


# ------------------------------------------------------------------ the tally of lines


def counts(*steps: int | Phase, tally: StepTally | None = None) -> dict[str, Any]:
    def seen() -> Iterable[StepProgress]:
        for number, step in enumerate(steps, 1):
            where = LogRef(file="job.out", line=number)
            phase = step if isinstance(step, Phase) else Phase.STEP
            count = step if isinstance(step, int) and not isinstance(step, Phase) else None
            yield StepProgress(attempt=JOB, at=NOW, step=count, phase=phase, where=where)

    return (tally or StepTally()).counts(JOB, seen())


def test_the_furthest_completed_step_counts() -> None:
    assert counts(1, 2, 5, 4) == {"step": 5, "logged_steps": 4}
    assert counts() == {}


def test_a_counter_that_starts_anew_each_epoch_is_said_to_be_relative() -> None:
    assert counts(*range(1, 101), 1, 2, 3, 4)["is_relative"] is True


@pytest.mark.parametrize(
    "steps",
    [
        [*range(1, 101), *range(90, 110)],  # back to a checkpoint
        [*range(1, 101), 3, 101],  # one late or garbled line
        [*range(1, 101), Phase.START, 1, 2, 3, 4],  # a start over that the log announces
        [*range(1, 10), 1, 2, 3, 4],  # too few steps to tell
    ],
)
def test_a_return_a_late_line_or_an_announced_start_is_not(steps: list[int | Phase]) -> None:
    assert "is_relative" not in counts(*steps)


def test_the_tally_goes_on_over_batches() -> None:
    tally = StepTally()
    assert "is_relative" not in counts(*range(1, 101), 1, 2, tally=tally)
    assert counts(3, tally=tally)["is_relative"] is True


# ------------------------------------------------------------------ progress over attempts

SAID = Attribution(
    failure=FailureName("nccl_collective_timeout"), failure_class=FailureClass.UNKNOWN,
    evidence_status=EvidenceStatus.HYPOTHESIS, made_progress=Progress.YES,
)  # fmt: skip
LOGGED = {"lines": 10, "files": {"job.out": 10}, "logged_steps": 5}


def of_attempt(index: int, said: dict[str, Any]) -> list[Event]:
    name, cluster = AttemptId(f"a-{index}"), ClusterId("c-1")
    running = AttemptObserved(
        at=NOW, attempt=name, workload=WorkloadId("w-1"), cluster=cluster, state=AttemptState.RUNNING,
        attempt_index=index,
    )  # fmt: skip
    taken_in = SignalAccepted(at=NOW, source="s", accepted=1, attempt=name, cluster=cluster, counts=said)
    return [running, *([taken_in] if said else []), replace(running, state=AttemptState.FAILED)]


def progress(*attempts: dict[str, Any]) -> Progress:
    """Of the last of some attempts of one workload, which all ended in failure."""
    state = Projection()
    events = [event for index, said in enumerate(attempts) for event in of_attempt(index, said)]
    for position, event in enumerate(events, 1):
        state.apply(position, event)
    last = state.attempts[AttemptId(f"a-{len(attempts) - 1}")]
    return Question(state, last, SAID, PolicyTable(), Mode.ACT, NOW).progress()


def test_a_job_that_dies_at_the_same_step_each_time_makes_no_progress() -> None:
    assert progress({**LOGGED, "step": 500}) is Progress.YES
    assert progress({**LOGGED, "step": 500}, {**LOGGED, "step": 500}) is Progress.NO
    assert progress({**LOGGED, "step": 500}, {**LOGGED, "step": 501}) is Progress.YES


def test_a_new_checkpoint_is_progress_even_where_no_step_is() -> None:
    before, after = {**LOGGED, "step": 500, "checkpoint_step": 400}, {**LOGGED, "step": 500, "checkpoint_step": 500}
    assert progress(before, after) is Progress.YES


def test_no_step_in_a_log_read_whole_is_no_progress_once_its_lines_are_understood() -> None:
    assert progress({**LOGGED, "step": 500}, {"lines": 10, "files": {"job.out": 10}}) is Progress.NO


@pytest.mark.parametrize(
    "said", [{}, {"lines": 10, "files": {"job.out": 20}, "gaps": 1}], ids=["nothing came", "lines are missing"]
)
def test_no_step_in_a_log_that_was_not_read_whole_says_nothing(said: dict[str, Any]) -> None:
    assert progress({**LOGGED, "step": 500}, said) is SAID.made_progress


def test_where_no_attempt_ever_stated_a_step_its_absence_says_nothing() -> None:
    plain = {"lines": 10, "files": {"job.out": 10}}
    assert progress(plain, plain) is SAID.made_progress


def test_steps_of_a_counter_that_starts_anew_are_never_a_strike() -> None:
    relative = {**LOGGED, "step": 100, "is_relative": True}
    assert progress(relative, relative) is SAID.made_progress
