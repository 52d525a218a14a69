# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Both state machines walked at random: legal steps lead somewhere, illegal ones change nothing."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relight.incidents import (
    IllegalTransition,
    IncidentState,
    IncidentTransition,
    RecommendationState,
    RecommendationTransition,
    advance,
    allowed,
)


class IncidentLife(RuleBasedStateMachine):
    """Remembers the way and checks what the way must hold."""

    def __init__(self) -> None:
        super().__init__()
        self.state = IncidentState.OPEN
        self.way: list[IncidentTransition] = []

    @precondition(lambda self: bool(allowed(self.state)))
    @rule(data=st.data())
    def legal_step(self, data: st.DataObject) -> None:
        step = IncidentTransition(data.draw(st.sampled_from(allowed(self.state))))
        self.state = advance(self.state, step)
        self.way.append(step)

    @rule(step=st.sampled_from(IncidentTransition))
    def any_step(self, step: IncidentTransition) -> None:
        if step in allowed(self.state):
            return
        with pytest.raises(IllegalTransition) as caught:
            advance(self.state, step)
        assert caught.value.allowed == allowed(self.state)

    @invariant()
    def recovery_was_seen_in_completed_steps(self) -> None:
        if self.state is IncidentState.CLOSED_RECOVERED:
            assert self.way[-2:] == [IncidentTransition.PROGRESS_RESUMED, IncidentTransition.RECOVERED]
            assert IncidentTransition.ALLOCATION_RESTARTED in self.way

    @invariant()
    def nothing_is_done_before_it_was_recommended(self) -> None:
        if IncidentTransition.ACTION_BEGUN in self.way:
            before = self.way[: self.way.index(IncidentTransition.ACTION_BEGUN)]
            assert IncidentTransition.RECOMMENDED in before
            asked = before.count(IncidentTransition.APPROVAL_REQUESTED)
            assert before.count(IncidentTransition.APPROVED) == asked

    @invariant()
    def only_an_action_can_have_stopped_it(self) -> None:
        if self.state is IncidentState.CLOSED_STOPPED:
            assert IncidentTransition.ACTION_BEGUN in self.way

    @invariant()
    def closed_is_final(self) -> None:
        assert self.state.is_closed is (allowed(self.state) == ())


class RecommendationLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state = RecommendationState.PROPOSED
        self.way: list[RecommendationTransition] = []

    @precondition(lambda self: bool(allowed(self.state)))
    @rule(data=st.data())
    def legal_step(self, data: st.DataObject) -> None:
        step = RecommendationTransition(data.draw(st.sampled_from(allowed(self.state))))
        was_open = self.state.is_open
        self.state = advance(self.state, step)
        assert was_open or not self.state.is_open
        self.way.append(step)

    @rule(step=st.sampled_from(RecommendationTransition))
    def any_step(self, step: RecommendationTransition) -> None:
        if step in allowed(self.state):
            return
        with pytest.raises(IllegalTransition):
            advance(self.state, step)

    @invariant()
    def no_action_without_a_claim(self) -> None:
        if RecommendationTransition.ACTION_BEGUN in self.way:
            began = self.way.index(RecommendationTransition.ACTION_BEGUN)
            assert RecommendationTransition.CLAIMED in self.way[:began]
            assert {RecommendationTransition.EXPIRED, RecommendationTransition.SUPERSEDED}.isdisjoint(self.way[began:])

    @invariant()
    def a_shadow_was_never_touched(self) -> None:
        if RecommendationTransition.SHADOWED in self.way:
            assert RecommendationTransition.ACTION_BEGUN not in self.way

    @invariant()
    def an_answer_was_given_once(self) -> None:
        answers = {RecommendationTransition.APPROVED, RecommendationTransition.REJECTED}
        assert sum(step in answers for step in self.way) <= 1


IncidentLife.TestCase.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
RecommendationLife.TestCase.settings = settings(max_examples=100, stateful_step_count=15, deadline=None)
TestIncidentLife = IncidentLife.TestCase
TestRecommendationLife = RecommendationLife.TestCase
