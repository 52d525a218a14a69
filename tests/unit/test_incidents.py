# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The lives of incidents and recommendations, step by step."""

from __future__ import annotations

from functools import reduce

import pytest

from relight.incidents import (
    IllegalTransition,
    IncidentState,
    IncidentTransition,
    RecommendationState,
    RecommendationTransition,
    advance,
    allowed,
)

N, T = IncidentState, IncidentTransition
R, S = RecommendationState, RecommendationTransition

BEFORE_ACTING = (N.OPEN, N.DECIDING, N.RECOMMENDED, N.AWAITING_APPROVAL)
OPEN_RECOMMENDATIONS = (R.PROPOSED, R.APPROVED, R.CLAIMED, R.ACTING)


def live(*steps: IncidentTransition, start: IncidentState = N.OPEN) -> IncidentState:
    return reduce(advance, steps, start)


def run(*steps: RecommendationTransition, start: RecommendationState = R.PROPOSED) -> RecommendationState:
    return reduce(advance, steps, start)


def test_an_incident_recovers_along_the_whole_way() -> None:
    way = (
        T.DECISION_BEGUN, T.RECOMMENDED, T.ACTION_BEGUN, T.ALLOCATION_RESTARTED, T.PROGRESS_RESUMED, T.RECOVERED
    )  # fmt: skip
    assert live(*way) is N.CLOSED_RECOVERED


def test_what_waits_for_approval_cannot_be_acted_on_before_it_is_given() -> None:
    waiting = live(T.DECISION_BEGUN, T.RECOMMENDED, T.APPROVAL_REQUESTED)
    with pytest.raises(IllegalTransition):
        advance(waiting, T.ACTION_BEGUN)
    assert live(T.APPROVED, T.ACTION_BEGUN, start=waiting) is N.ACTING


def test_a_restarted_allocation_is_not_yet_progress() -> None:
    with pytest.raises(IllegalTransition):
        advance(N.ALLOCATION_RESTARTED, T.RECOVERED)


@pytest.mark.parametrize("state", BEFORE_ACTING)
@pytest.mark.parametrize(
    ("step", "end"),
    [
        (T.SELF_HEALED, N.CLOSED_SELF_HEALED),
        (T.FAILED_OPEN, N.CLOSED_FAIL_OPEN),
        (T.USER_TOOK_OVER, N.CLOSED_USER),
        (T.ALLOCATION_RESTARTED, N.ALLOCATION_RESTARTED),
    ],
)
def test_until_someone_acts_an_incident_may_end_without_us(
    state: IncidentState, step: IncidentTransition, end: IncidentState
) -> None:
    assert advance(state, step) is end


@pytest.mark.parametrize("state", [s for s in N if not s.is_closed])
def test_a_user_may_take_over_at_any_time(state: IncidentState) -> None:
    assert advance(state, T.USER_TOOK_OVER) is N.CLOSED_USER


@pytest.mark.parametrize("state", [N.ALLOCATION_RESTARTED, N.PROGRESS_RESUMED])
def test_a_failure_after_the_restart_recurs(state: IncidentState) -> None:
    assert advance(state, T.RECURRED) is N.CLOSED_RECURRED


@pytest.mark.parametrize("state", [s for s in N if s is not N.ACTING])
def test_only_an_action_stops(state: IncidentState) -> None:
    assert T.STOPPED not in allowed(state)
    assert advance(N.ACTING, T.STOPPED) is N.CLOSED_STOPPED


@pytest.mark.parametrize("state", [s for s in N if s.is_closed])
def test_a_closed_incident_stays_closed(state: IncidentState) -> None:
    assert allowed(state) == ()


def test_a_verdict_may_be_revised_until_it_is_acted_on() -> None:
    assert live(T.DECISION_BEGUN, T.RECOMMENDED, T.RECOMMENDED) is N.RECOMMENDED
    assert advance(N.AWAITING_APPROVAL, T.RECOMMENDED) is N.AWAITING_APPROVAL
    with pytest.raises(IllegalTransition):
        advance(N.ACTING, T.RECOMMENDED)


def test_a_recommendation_is_claimed_acted_on_and_converges() -> None:
    assert run(S.CLAIMED, S.ACTION_BEGUN, S.CONVERGED) is R.CONVERGED
    assert run(S.APPROVED, S.CLAIMED, S.ACTION_BEGUN, S.FAILED) is R.FAILED


def test_a_claim_may_be_renewed_or_taken_over_even_while_acting() -> None:
    assert run(S.CLAIMED, S.CLAIMED) is R.CLAIMED
    assert run(S.CLAIMED, S.ACTION_BEGUN, S.CLAIMED) is R.ACTING


def test_nothing_is_acted_on_unclaimed() -> None:
    for state in (R.PROPOSED, R.APPROVED):
        with pytest.raises(IllegalTransition):
            advance(state, S.ACTION_BEGUN)


@pytest.mark.parametrize("step", [S.EXPIRED, S.SUPERSEDED])
def test_once_acted_on_it_neither_expires_nor_is_superseded(step: RecommendationTransition) -> None:
    for state in (R.PROPOSED, R.APPROVED, R.CLAIMED):
        assert not advance(state, step).is_open
    with pytest.raises(IllegalTransition):
        advance(R.ACTING, step)


def test_an_answer_is_given_once() -> None:
    for step in (S.REJECTED, S.APPROVED):
        with pytest.raises(IllegalTransition):
            advance(R.APPROVED, step)
        with pytest.raises(IllegalTransition):
            advance(R.REJECTED, step)


def test_a_shadow_is_never_acted_on() -> None:
    assert run(S.SHADOWED) is R.SHADOW
    assert allowed(R.SHADOW) == (S.SUPERSEDED,)


@pytest.mark.parametrize("state", list(R))
def test_only_four_states_are_open_and_the_others_lead_to_no_action(state: RecommendationState) -> None:
    assert state.is_open is (state in OPEN_RECOMMENDATIONS)
    if not state.is_open:
        assert {S.CLAIMED, S.ACTION_BEGUN}.isdisjoint(allowed(state))
    assert state.is_terminal is (allowed(state) == ())


def test_an_illegal_step_names_the_state_the_step_and_the_ways_out() -> None:
    with pytest.raises(IllegalTransition) as caught:
        advance(R.ACTING, S.EXPIRED)
    assert (caught.value.state, caught.value.transition) == (R.ACTING, S.EXPIRED)
    assert str(caught.value) == (
        "RecommendationState ACTING does not allow expired, allowed: abandoned, claimed, converged, failed"
    )
    with pytest.raises(IllegalTransition, match="nothing: the state is final"):
        advance(N.CLOSED_USER, T.RECURRED)
