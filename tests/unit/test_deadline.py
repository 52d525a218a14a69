# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the watchdog lets go, and what it never touches."""

from __future__ import annotations

from datetime import timedelta

from relight.deadline import HARD_DEADLINE, HOLD_TAG, Hold, HoldPurpose, next_due, overdue
from relight.types import AttemptId
from tests.unit.policy_cases import AT

SECOND = timedelta(seconds=1)


def hold(
    attempt: str = "a",
    *,
    tag: str = HOLD_TAG,
    deadline_s: float | None = 60,
    purpose: HoldPurpose = HoldPurpose.DECIDING,
    placed_s: float = 0,
) -> Hold:
    return Hold(
        attempt=AttemptId(attempt),
        tag=tag,
        placed_at=AT + placed_s * SECOND,
        decide_deadline=None if deadline_s is None else AT + deadline_s * SECOND,
        purpose=purpose,
    )


def test_a_hold_is_let_go_at_its_deadline_and_not_before() -> None:
    assert overdue([hold()], AT + 59.999 * SECOND) == ()
    assert overdue([hold()], AT + 60 * SECOND) == (hold(),)


def test_other_peoples_holds_are_theirs() -> None:
    assert overdue([hold(tag="admin"), hold(tag="")], AT + timedelta(days=9)) == ()


def test_a_stop_is_a_decision_and_stays() -> None:
    assert overdue([hold(purpose=HoldPurpose.STOPPED)], AT + timedelta(days=9)) == ()


def test_without_or_with_a_generous_deadline_the_hard_one_holds() -> None:
    for deadline_s in (None, 99_999):
        placed = hold(deadline_s=deadline_s)
        assert overdue([placed], AT + HARD_DEADLINE - SECOND) == ()
        assert overdue([placed], AT + HARD_DEADLINE) == (placed,)


def test_a_hold_from_a_clock_that_went_back_is_judged_by_its_deadline() -> None:
    placed = hold(placed_s=5000)
    assert overdue([placed], AT + 61 * SECOND) == (placed,)


def test_the_longest_overdue_goes_first() -> None:
    late, later = hold("z", deadline_s=10), hold("a", deadline_s=20)
    assert overdue([later, late], AT + 100 * SECOND) == (late, later)


def test_the_next_look_is_at_the_nearest_deadline_of_ours() -> None:
    assert next_due([]) is None
    assert next_due([hold(tag="admin", deadline_s=1), hold(purpose=HoldPurpose.STOPPED)]) is None
    assert next_due([hold(deadline_s=30), hold(deadline_s=20)]) == AT + 20 * SECOND
