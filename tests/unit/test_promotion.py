# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The gate of a class: what its record must show to rise, what makes it fall, and how far."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta

import pytest

from relight.agreement import Aftermath, Did, Match, match, wilson
from relight.promotion import BARS, Bar, Judged, Stage, TrackRecord, fall, gate, record_of, worth
from relight.types import Action, FailureClass, Mode, RecommendationId, WorkloadId

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
LATER = NOON + timedelta(minutes=30)


def cases(held: int, failed: int = 0, *, workloads: int = 10, false_stops: int = 0, pending: int = 0) -> list[Judged]:
    verdicts: Iterable[bool | None] = [True] * held + [False] * failed + [None] * pending
    return [
        Judged(
            recommendation=RecommendationId(f"r{number}"),
            workload=WorkloadId(f"w{number % workloads}"),
            failure_class=FailureClass.HARDWARE,
            action=Action.RESTART,
            advised_at=NOON,
            held=verdict,
            is_false_stop=verdict is False and number < held + false_stops,
        )
        for number, verdict in enumerate(verdicts)
    ]


def record(held: int, failed: int = 0, **said: int) -> TrackRecord:
    return record_of(cases(held, failed, **said), NOON)


def matched(action: Action, **said: object) -> Match:
    after = Aftermath(**({"is_cancelled": False, "ended_at": NOON + timedelta(minutes=5)} | said))  # type: ignore[arg-type]
    return match(RecommendationId("r"), FailureClass.HARDWARE, action, NOON, after, LATER)


# ------------------------------------------------------------------ counting


def test_a_record_counts_decided_cases_and_their_interval() -> None:
    told = record(18, 2, pending=3, workloads=4)
    assert (told.decided, told.held, told.pending, told.workloads, told.share) == (20, 18, 3, 4, 0.9)
    assert (told.low, told.high) == wilson(18, 20)
    nothing = record_of([], NOON)
    assert (nothing.share, nothing.low, nothing.high) == (None, None, None)


def test_what_is_older_than_the_window_no_longer_counts() -> None:
    assert record_of(cases(5), NOON + timedelta(seconds=1)).decided == 0
    assert record_of(cases(5), NOON).decided == 5


def test_a_stop_that_a_person_called_right_is_no_false_stop() -> None:
    false, right = (
        Judged(recommendation=RecommendationId("r"), workload=WorkloadId("w"), failure_class=FailureClass.STORAGE,
             action=Action.STOP, advised_at=NOON, held=held, is_false_stop=True)
        for held in (False, True)
    )  # fmt: skip
    assert (record_of([false], NOON).false_stops, record_of([right], NOON).false_stops) == (1, 0)


# ------------------------------------------------------------------ rising


@pytest.mark.parametrize(
    ("stage", "wanted", "held", "failed", "is_open"),
    [
        (Stage.OFF, Stage.RECORD, 0, 0, True),
        (Stage.RECORD, Stage.NOTIFY, 4, 0, False),
        (Stage.RECORD, Stage.NOTIFY, 5, 0, True),
        (Stage.NOTIFY, Stage.APPROVE, 9, 0, False),
        (Stage.NOTIFY, Stage.APPROVE, 9, 1, True),
        (Stage.NOTIFY, Stage.APPROVE, 8, 2, False),
        (Stage.APPROVE, Stage.ACT, 29, 1, True),
        (Stage.APPROVE, Stage.ACT, 28, 2, False),
        (Stage.APPROVE, Stage.ACT, 29, 0, False),
    ],
)
def test_a_class_rises_over_the_bar_of_the_next_stage(
    stage: Stage, wanted: Stage, held: int, failed: int, is_open: bool
) -> None:
    assert gate(record(held, failed), stage, wanted).is_open is is_open


def test_the_bar_is_the_lower_end_of_the_interval_and_not_the_share() -> None:
    """24 of 30 are 80 %, and could as well be 63 %."""
    refused = gate(record(24, 6), Stage.APPROVE, Stage.ACT)
    assert refused.missing == ("the advice held in 80 %, so in 63 % at least; 80 % are needed",)


def test_a_single_false_stop_keeps_a_class_from_acting() -> None:
    refused = gate(record(99, 1, false_stops=1), Stage.APPROVE, Stage.ACT)
    assert refused.missing == ("1 false stops, 0 are allowed",)
    assert gate(record(99, 1, false_stops=1), Stage.NOTIFY, Stage.APPROVE).is_open


def test_one_workload_that_fails_in_circles_is_no_record() -> None:
    refused = gate(record(40, workloads=1), Stage.APPROVE, Stage.ACT)
    assert refused.missing == ("they are of 1 workloads, 5 are needed",)


def test_a_class_rises_one_stage_at_a_time_and_goes_down_at_will() -> None:
    assert "one rung at a time" in gate(record(500), Stage.NOTIFY, Stage.ACT).missing[0]
    for lower in (Stage.OFF, Stage.RECORD, Stage.NOTIFY, Stage.APPROVE, Stage.ACT):
        assert gate(TrackRecord(), Stage.ACT, lower).is_open


def test_a_refusal_names_everything_that_is_missing() -> None:
    assert len(gate(record(1, 1, workloads=1, false_stops=1), Stage.APPROVE, Stage.ACT).missing) == 4


def test_only_the_two_upper_stages_let_anybody_act() -> None:
    assert [one.mode for one in Stage] == [Mode.MONITOR, Mode.MONITOR, Mode.MONITOR, Mode.APPROVE, Mode.ACT]
    assert [one.following for one in Stage] == [Stage.RECORD, Stage.NOTIFY, Stage.APPROVE, Stage.ACT, None]


def test_a_bar_that_makes_no_sense_is_refused() -> None:
    for said in ({"cases": 0, "share": 0.5}, {"cases": 1, "share": 1.0}, {"cases": 1, "share": 0.5, "workloads": 0}):
        with pytest.raises(ValueError, match="need cases"):
            Bar(**said)  # type: ignore[arg-type]


# ------------------------------------------------------------------ falling


@pytest.mark.parametrize(
    ("stage", "held", "failed", "to"),
    [
        (Stage.ACT, 29, 1, None),
        (Stage.ACT, 24, 6, None),  # just at the bar: it could not rise so, and keeps what it has
        (Stage.ACT, 23, 7, Stage.APPROVE),
        (Stage.ACT, 15, 15, Stage.NOTIFY),
        (Stage.APPROVE, 6, 4, None),
        (Stage.APPROVE, 5, 5, Stage.NOTIFY),
        (Stage.NOTIFY, 0, 50, None),
        (Stage.OFF, 0, 50, None),
    ],
)
def test_a_class_falls_to_the_highest_stage_whose_bar_it_still_holds(
    stage: Stage, held: int, failed: int, to: Stage | None
) -> None:
    fallen = fall(record(held, failed), stage)
    assert (fallen.stage if fallen else None) == to


def test_a_false_stop_costs_the_right_to_act_and_leaves_that_to_ask() -> None:
    fallen = fall(record(99, 1, false_stops=1), Stage.ACT)
    assert fallen is not None
    assert (fallen.stage, fallen.reasons) == (Stage.APPROVE, ("1 false stops, 0 are allowed",))


def test_few_cases_condemn_only_where_they_leave_no_doubt() -> None:
    assert fall(record(0, 4), Stage.ACT) is None
    certain = fall(record(0, 5), Stage.ACT)
    assert certain is not None and certain.stage is Stage.NOTIFY
    assert certain.reasons == ("the advice held in 0 of 5 cases, so in 43 % at most; 80 % are needed",)
    assert fall(record(3, 3), Stage.ACT) is None  # up to 81 %


def test_one_workload_alone_condemns_nobody() -> None:
    assert fall(record(0, 30, workloads=1), Stage.ACT) is None
    assert fall(record(0, 30, workloads=2), Stage.ACT) is not None


def test_no_record_is_no_reason_to_fall() -> None:
    for stage in Stage:
        assert fall(TrackRecord(), stage) is None


def test_whoever_may_rise_does_not_fall_at_once() -> None:
    for decided in range(1, 80):
        for held in range(decided + 1):
            told = record(held, decided - held)
            for stage in (Stage.NOTIFY, Stage.APPROVE):
                wanted = stage.following
                assert wanted is not None
                if gate(told, stage, wanted, BARS).is_open:
                    assert fall(told, wanted, BARS) is None, (stage, held, decided)


# ------------------------------------------------------------------ what an advice was worth


@pytest.mark.parametrize(
    ("action", "after", "held"),
    [
        (Action.RESTART, {"restarted_at": LATER, "made_progress": True}, True),
        (Action.RESTART, {"restarted_at": LATER, "made_progress": False, "came_back": True}, True),
        (Action.RESTART, {"is_cancelled": True}, False),
        (Action.RESTART_EXCLUDING, {"restarted_at": LATER, "is_on_other_nodes": True, "came_back": True,
                                    "made_progress": False}, False),
        (Action.RESTART_EXCLUDING, {"restarted_at": LATER, "is_on_other_nodes": True, "made_progress": True}, True),
        (Action.RESTART_EXCLUDING, {"restarted_at": LATER, "made_progress": True}, False),
        (Action.RESTART_EXCLUDING, {"restarted_at": LATER, "made_progress": False, "came_back": True}, True),
        (Action.RESTART_EXCLUDING, {"restarted_at": LATER, "made_progress": False}, False),
        (Action.STOP, {"restarted_at": LATER, "made_progress": True}, False),
        (Action.STOP, {"restarted_at": LATER, "made_progress": False}, True),
        (Action.STOP, {"restarted_at": LATER, "is_resubmitted": True, "made_progress": True}, None),
        (Action.STOP, {"restarted_at": LATER, "is_resubmitted": True, "made_progress": False, "came_back": True}, True),
        (Action.STOP, {}, None),
    ],
)  # fmt: skip
def test_facts_outrank_what_people_did(action: Action, after: dict[str, object], held: bool | None) -> None:
    assert worth(matched(action, **after)) is held


def test_a_persons_later_word_outranks_everything() -> None:
    got_further = matched(Action.STOP, restarted_at=LATER, made_progress=True)
    assert worth(got_further, feedback=True, is_rejected=True) is True
    assert worth(matched(Action.RESTART, restarted_at=LATER, made_progress=True), feedback=False) is False


def test_a_rejection_is_a_no_and_an_approval_a_yes_until_facts_are_in() -> None:
    pending = matched(Action.STOP)
    assert (worth(pending, is_rejected=True), worth(pending, is_approved=True)) == (False, True)
    got_further = matched(Action.STOP, restarted_at=LATER, made_progress=True)
    assert worth(got_further, is_approved=True) is False


def test_a_new_job_after_a_stop_may_hold_a_mended_code() -> None:
    found = matched(Action.STOP, restarted_at=LATER, is_resubmitted=True, made_progress=True, gpu_hours=9.0)
    assert (found.did, found.agrees, found.is_false_stop, found.false_stop_gpu_hours) == (
        Did.RESUBMITTED, None, False, 0.0,
    )  # fmt: skip


def test_what_was_said_after_the_fact_proves_nothing() -> None:
    late = matched(Action.STOP, restarted_at=NOON - timedelta(seconds=1), made_progress=True)
    assert (late.proved, late.is_false_stop, worth(late)) == (None, False, None)


def test_a_drained_node_agrees_with_keeping_it_out_and_says_nothing_of_the_job() -> None:
    drained = {"drained_at": LATER}
    excluding = matched(Action.RESTART_EXCLUDING, **drained)
    assert (excluding.did, excluding.agrees, excluding.lead) == (Did.DRAINED, True, LATER - NOON)
    assert matched(Action.STOP, **drained).agrees is matched(Action.RESTART, **drained).agrees is None
    elsewhere = matched(
        Action.RESTART_EXCLUDING, restarted_at=LATER + timedelta(hours=1), is_on_other_nodes=True, **drained
    )
    assert (elsewhere.did, elsewhere.lead) == (Did.RESTARTED_ELSEWHERE, LATER - NOON)
    kept = matched(Action.RESTART_EXCLUDING, restarted_at=LATER, **drained)
    assert (kept.did, kept.agrees) == (Did.RESTARTED, False)
