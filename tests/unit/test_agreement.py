# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Shadow mode: what people did beside what was advised."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from relight.agreement import Aftermath, Did, Match, match, matrix, score, wilson
from relight.types import Action, FailureClass, RecommendationId

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
LATER = NOON + timedelta(minutes=30)


def matched(action: Action, after: Aftermath, now: datetime = LATER) -> Match:
    return match(RecommendationId("r"), FailureClass.HARDWARE, action, NOON, after, now)


def after(**said: object) -> Aftermath:
    return Aftermath(**({"is_cancelled": False, "ended_at": NOON + timedelta(minutes=5)} | said))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("action", "said", "did", "agrees"),
    [
        (Action.RESTART, {"restarted_at": LATER}, Did.RESTARTED, True),
        (Action.RESTART, {"is_cancelled": True}, Did.STOPPED, False),
        (Action.RESTART_EXCLUDING, {"restarted_at": LATER}, Did.RESTARTED, False),
        (Action.RESTART_EXCLUDING, {"restarted_at": LATER, "is_on_other_nodes": True}, Did.RESTARTED_ELSEWHERE, True),
        (Action.STOP, {"restarted_at": LATER}, Did.RESTARTED, False),
        (Action.STOP, {"is_cancelled": True}, Did.STOPPED, True),
        (Action.STOP, {}, Did.PENDING, None),
        (Action.NO_DECISION, {"restarted_at": LATER}, Did.RESTARTED, None),
    ],
)
def test_an_advice_agrees_with_what_was_done(
    action: Action, said: dict[str, object], did: Did, agrees: bool | None
) -> None:
    found = matched(action, after(**said))
    assert (found.did, found.agrees) == (did, agrees)


def test_an_advice_after_the_fact_agrees_with_nothing() -> None:
    assert matched(Action.STOP, after(is_cancelled=True, ended_at=NOON - timedelta(seconds=1))).agrees is None


def test_a_day_without_another_attempt_is_a_stop() -> None:
    assert matched(Action.STOP, after(), NOON + timedelta(hours=25)).agrees is True


def test_the_lead_is_how_long_the_advice_stood_before_people_decided() -> None:
    assert matched(Action.RESTART, after(restarted_at=LATER)).lead == timedelta(minutes=30)


def test_a_stop_is_false_only_if_the_restart_got_further() -> None:
    said = {"restarted_at": LATER, "gpu_hours": 8.0}
    assert matched(Action.STOP, after(**said, made_progress=True)).false_stop_gpu_hours == 8
    assert matched(Action.STOP, after(**said, made_progress=None)).false_stop_gpu_hours == 0
    assert matched(Action.RESTART, after(**said, made_progress=False)).missed_stop_gpu_hours == 8
    assert matched(Action.RESTART, after(**said, made_progress=True)).missed_stop_gpu_hours == 0


def test_a_score_counts_only_what_people_decided() -> None:
    matches = [
        matched(Action.RESTART, after(restarted_at=LATER)),
        matched(Action.STOP, after(restarted_at=LATER)),
        matched(Action.STOP, after()),
    ]
    told = score(matches)
    assert (told.decided, told.agreed) == (2, 1)
    assert told.low is not None and told.high is not None and told.low < 0.5 < told.high
    assert matrix(matches) == {(Action.RESTART, Did.RESTARTED): 1, (Action.STOP, Did.RESTARTED): 1,
                               (Action.STOP, Did.PENDING): 1}  # fmt: skip
    assert score([]).low is None


def test_the_interval_is_wilsons() -> None:
    low, high = wilson(9, 10)
    assert (round(low, 4), round(high, 4)) == (0.5958, 0.9821)
    assert wilson(10, 10)[1] == 1.0
    assert wilson(0, 10)[0] == 0.0
    with pytest.raises(ValueError, match="decided=0"):
        wilson(0, 0)
