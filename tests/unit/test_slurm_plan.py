# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The next step of a recovery: total, never a second restart, never a hold that is not ours."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controllers.slurm.plan import Do, Over, Reached, Verb, Wait, Wanted, next_step, took_effect
from relight.hold_mark import HoldMark, MarkState
from relight.jobs import JobRecord
from relight.types import Action, AttemptState, NodeName, RecommendationId

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
RX = RecommendationId("r-1")
N1, N2 = NodeName("n1"), NodeName("n2")


def mark(state: MarkState = MarkState.DECIDING, restart: int = 1, name: str = "r-1") -> str:
    return HoldMark(recommendation=RecommendationId(name), generation=1, restart_count=restart, placed_at=NOON,
                    until=NOON + timedelta(seconds=60), state=state).text()  # fmt: skip


def job(state: AttemptState | None = AttemptState.FAILED, restart: int = 0, **over: object) -> JobRecord:
    return JobRecord(**{"job_id": "7", "state": state, "restart_count": restart, "priority": 1, **over})  # type: ignore[arg-type]


def held(restart: int = 1, text: str = "", reason: str = "job_requeued_in_held_state", **over: object) -> JobRecord:
    return job(AttemptState.PENDING, restart, priority=0, reason=reason, admin_comment=text, **over)


def wanted(action: Action = Action.RESTART_EXCLUDING, **over: object) -> Wanted:
    return Wanted(**{"recommendation": RX, "action": action, "restart_count": 0, "exclusions": (N1,), **over})  # type: ignore[arg-type]


def test_the_usual_way() -> None:
    assert next_step(job(), wanted()) == Do(verb=Verb.REQUEUE_HOLD)
    assert next_step(held(text=mark()), wanted(we_held=True)) == Do(verb=Verb.SET_EXCLUSIONS)
    assert next_step(held(text=mark(), exc_nodes=(N1,)), wanted(we_held=True)) == Do(verb=Verb.RELEASE)
    going = job(AttemptState.PENDING, 1, exc_nodes=(N1,))
    assert next_step(going, wanted(we_held=True)) == Reached(reason="desired_state_observed")


def test_what_slurm_did_by_itself_is_adopted() -> None:
    pending = job(AttemptState.PENDING, 1, reason="BeginTime")
    assert next_step(pending, wanted()) == Do(verb=Verb.SET_EXCLUSIONS)
    assert next_step(pending, wanted(exclusions=())) == Reached(reason="already_satisfied")
    elsewhere = job(AttemptState.RUNNING, 1, nodes=(N2,))
    assert next_step(elsewhere, wanted()) == Reached(reason="already_satisfied")
    same = job(AttemptState.RUNNING, 1, nodes=(N1,))
    assert next_step(same, wanted()) == Over(disposition="ABANDONED", reason="superseded")


@pytest.mark.parametrize(
    "other",
    [held(reason="JobHeldUser"), held(reason="JobHoldMaxRequeue", text=mark()), held(text=mark(name="r-2")),
     held(text=mark(restart=9))],
)  # fmt: skip
def test_a_hold_that_is_not_ours_is_left_alone(other: JobRecord) -> None:
    assert isinstance(next_step(other, wanted()), Over)
    assert isinstance(next_step(other, wanted(we_held=True, we_released=True)), Over)


def test_a_hold_that_could_not_be_marked_yet_is_still_ours() -> None:
    assert next_step(held(), wanted(we_held=True)) == Do(verb=Verb.SET_EXCLUSIONS)
    assert isinstance(next_step(held(), wanted(we_held=False)), Over)


def test_what_is_overdue_is_released_first_and_excluded_after() -> None:
    late = wanted(we_held=True, is_overdue=True)
    assert next_step(held(text=mark()), late) == Do(verb=Verb.RELEASE)
    assert next_step(held(text=mark(MarkState.EXPIRED)), wanted(we_held=True)) == Do(verb=Verb.RELEASE)
    assert next_step(job(AttemptState.PENDING, 1), late) == Do(verb=Verb.SET_EXCLUSIONS)


def test_users_win() -> None:
    cancelled = job(AttemptState.CANCELLED_BY_USER, 1)
    assert next_step(cancelled, wanted(we_held=True)) == Over(disposition="ABANDONED", reason="user_cancelled")
    assert next_step(job(AttemptState.CANCELLED_BY_USER), wanted()) == Over(
        disposition="ABANDONED", reason="user_cancelled"
    )


def test_a_run_that_is_none_of_the_advised_one_is_not_ended() -> None:
    running = job(AttemptState.RUNNING, start_at=NOON)
    assert isinstance(next_step(running, wanted()), Over), "advice was on a run that had ended"
    other = wanted(was_running=True, started_at=NOON - timedelta(hours=1))
    assert isinstance(next_step(running, other), Over)
    hung = wanted(was_running=True, started_at=NOON)
    assert next_step(running, hung) == Do(verb=Verb.REQUEUE_HOLD)


def test_a_stop_holds_first_and_cancels_only_after_its_grace() -> None:
    stop = wanted(Action.STOP, exclusions=(), was_running=True, started_at=NOON)
    assert next_step(job(AttemptState.RUNNING, start_at=NOON), stop) == Do(
        verb=Verb.REQUEUE_HOLD, state=MarkState.STOPPED
    )
    waiting = held(text=mark(MarkState.STOPPED))
    over = wanted(Action.STOP, we_held=True, is_grace_over=True)
    assert isinstance(next_step(waiting, wanted(Action.STOP, we_held=True)), Wait)
    assert next_step(waiting, over) == Do(verb=Verb.CANCEL)
    released = job(AttemptState.PENDING, 1)
    assert next_step(released, over) == Over(disposition="ABANDONED", reason="user_released")
    assert next_step(job(AttemptState.RUNNING, 1), over) == Over(disposition="ABANDONED", reason="user_released")


def test_a_stop_of_what_has_ended_needs_nothing() -> None:
    assert next_step(job(), wanted(Action.STOP)) == Reached(reason="already_satisfied")


def test_a_stop_takes_over_a_hold_that_awaited_the_decision() -> None:
    awaiting = held(text=mark())
    assert next_step(awaiting, wanted(Action.STOP, we_held=True)) == Do(verb=Verb.REQUEUE_HOLD, state=MarkState.STOPPED)
    assert not took_effect(Verb.REQUEUE_HOLD, awaiting, wanted(Action.STOP, we_held=True), ())


@pytest.mark.parametrize("over", [{"requeueable": False}, {"is_batch": False}, {"het_offset": 1}])
def test_what_must_not_be_requeued_is_not(over: dict[str, object]) -> None:
    assert next_step(job(**over), wanted()) == Over(disposition="ABANDONED", reason="not_requeueable")  # type: ignore[arg-type]


_JOBS = st.builds(
    JobRecord,
    job_id=st.just("7"),
    state=st.sampled_from([None, *AttemptState]),
    restart_count=st.integers(0, 3),
    priority=st.sampled_from([0, 1, None]),
    reason=st.sampled_from(["", "BeginTime", "JobHeldUser", "JobHoldMaxRequeue", "job_requeued_in_held_state", "x"]),
    requeueable=st.booleans(),
    is_batch=st.booleans(),
    is_ambiguous=st.booleans(),
    nodes=st.sampled_from([(), (N1,), (N2,)]),
    exc_nodes=st.sampled_from([(), (N1,), (N1, N2)]),
    start_at=st.sampled_from([None, NOON]),
    admin_comment=st.sampled_from(
        ["", mark(), mark(MarkState.STOPPED), mark(MarkState.EXPIRED), mark(restart=2), mark(name="q")]
    ),
)
_WANTED = st.builds(
    Wanted,
    recommendation=st.just(RX),
    action=st.sampled_from([Action.RESTART, Action.RESTART_EXCLUDING, Action.STOP]),
    restart_count=st.integers(0, 2),
    exclusions=st.sampled_from([(), (N1,)]),
    was_running=st.booleans(),
    started_at=st.sampled_from([None, NOON]),
    we_held=st.booleans(),
    we_released=st.booleans(),
    we_cancelled=st.booleans(),
    is_overdue=st.booleans(),
    is_decided=st.booleans(),
    is_grace_over=st.booleans(),
)


@given(st.none() | _JOBS, _WANTED)
def test_every_state_leads_to_one_step_and_never_to_harm(seen: JobRecord | None, asked: Wanted) -> None:
    step = next_step(seen, asked)
    if not isinstance(step, Do):
        return
    assert seen is not None
    assert not seen.is_ambiguous
    assert seen.state is not None
    if step.verb is Verb.REQUEUE_HOLD and seen.state is not AttemptState.PENDING:
        assert seen.restart_count == asked.restart_count, "never a second restart for one failure"
        assert seen.requeueable
    if step.verb is Verb.SET_EXCLUSIONS:
        assert seen.state is AttemptState.PENDING
    if step.verb is Verb.RELEASE:
        assert not seen.is_schedulers_hold
    if step.verb is Verb.CANCEL:
        assert asked.stops
        assert asked.is_grace_over
        assert asked.is_decided
        assert seen.is_held
