# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whether anyone may act on a verdict, and what it says would have changed it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

from relight.policy import Facts, History, OptIn, lowest_mode
from relight.types import (
    Action,
    AttemptState,
    Attribution,
    EvidenceStatus,
    Mode,
    Progress,
)
from tests.unit.policy_cases import ACT, AT, TABLE, blame, failed_before, judge, nodes, suspect


@pytest.mark.parametrize(("one", "other"), tuple(product(Mode, Mode)))
def test_the_lowest_mode_wins(one: Mode, other: Mode) -> None:
    order = [Mode.MONITOR, Mode.APPROVE, Mode.ACT]
    assert lowest_mode([one, other]) is order[min(order.index(one), order.index(other))]


def test_without_any_mode_it_is_monitor() -> None:
    assert lowest_mode([]) is Mode.MONITOR
    verdict = judge(blame("segfault"), facts=Facts())
    assert (verdict.mode, verdict.actionable, verdict.blocked_by) == (
        Mode.MONITOR,
        False,
        ("mode_monitor",),
    )


def test_an_owners_word_lowers_the_mode_and_cannot_raise_it() -> None:
    careful = judge(blame("segfault"), history=History(opt_in=OptIn(mode=Mode.APPROVE)))
    assert (careful.mode, careful.blocked_by) == (Mode.APPROVE, ("awaiting_approval",))
    eager = judge(blame("segfault"), history=History(opt_in=OptIn(mode=Mode.ACT)), facts=Facts())
    assert eager.mode is Mode.MONITOR


def test_a_table_may_keep_stops_for_people() -> None:
    table = replace(TABLE, mode_caps={Action.STOP: Mode.APPROVE})
    assert judge(blame("python_exception"), table=table).mode is Mode.APPROVE
    assert judge(blame("segfault"), table=table).actionable


@pytest.mark.parametrize(
    ("facts", "history", "reason"),
    [
        (Facts(modes=ACT, requeueable=False), History(), "not_requeueable"),
        (Facts(modes=ACT, state=AttemptState.LOST), History(), "scheduler_blind"),
        (Facts(modes=ACT, decide_deadline=AT), History(), "expired"),
        (Facts(modes=ACT, scheduler_requeued=True), History(), "already_satisfied"),
        (Facts(modes=ACT), History(cluster_restarts_last_hour=60), "cluster_restart_limit"),
        (Facts(modes=ACT), History(user_restarts_last_hour=20), "user_restart_limit"),
    ],
)
def test_a_verdict_that_cannot_be_acted_on_is_still_shown_with_what_blocks_it(
    facts: Facts, history: History, reason: str
) -> None:
    verdict = judge(blame("segfault"), history=history, facts=facts)
    assert (verdict.action, verdict.actionable, verdict.blocked_by) == (
        Action.RESTART,
        False,
        (reason,),
    )
    assert judge(blame("segfault")).actionable


def test_an_exclusion_is_still_worth_adding_to_a_job_that_the_scheduler_requeued() -> None:
    facts = Facts(modes=ACT, scheduler_requeued=True)
    assert judge(blame("gpu_fell_off_bus", suspect("n1")), facts=facts).actionable


def test_a_limit_of_nought_is_no_limit() -> None:
    table = replace(TABLE, limits=replace(TABLE.limits, cluster_restarts_per_hour=0))
    assert judge(blame("segfault"), history=History(cluster_restarts_last_hour=999), table=table).actionable


@pytest.mark.parametrize("history", [History(same_failure_workloads=3), History(is_breaker_open=True)])
def test_the_breaker_puts_everything_into_monitor(history: History) -> None:
    verdict = judge(blame("segfault"), history=history)
    assert (verdict.mode, verdict.actionable) == (Mode.MONITOR, False)
    assert verdict.blocked_by == ("breaker_open", "mode_monitor")


def test_many_preemptions_at_once_are_no_reason_to_break() -> None:
    verdict = judge(blame("time_limit"), history=History(same_failure_workloads=50))
    assert verdict.actionable


def test_two_workloads_at_once_do_not_break() -> None:
    assert judge(blame("segfault"), history=History(same_failure_workloads=2)).actionable


@pytest.mark.parametrize("name", ["none", "gpu_thermal_throttle"])
def test_there_is_nothing_to_act_on_where_nothing_is_to_be_done(name: str) -> None:
    verdict = judge(blame(name))
    assert (verdict.action, verdict.actionable, verdict.blocked_by) == (Action.CONTINUE, False, ())


def test_watching_a_condition_uses_no_attempt_up() -> None:
    verdict = judge(blame("gpu_thermal_throttle"))
    assert verdict.ledgers_after == verdict.ledgers_before


# Each row: the attribution and facts, the sentence, and the change that it names.
NO = Facts(modes=ACT, progress=Progress.NO)
COUNTERFACTUALS: tuple[
    tuple[Attribution, Facts, History, str, Attribution, Facts, History, Action], ...
] = (
    (
        blame("python_exception"), NO, History(),
        "would restart if the attempt had made progress first",
        blame("python_exception"), replace(NO, progress=Progress.YES), History(), Action.RESTART,
    ),
    (
        blame("host_oom_killed"), NO, History(),
        "would restart if the evidence were less than established",
        blame("host_oom_killed", evidence_status=EvidenceStatus.SUPPORTED), NO, History(), Action.RESTART,
    ),
    (
        blame("host_oom_killed", evidence_status=EvidenceStatus.SUPPORTED), NO, History(),
        "would stop if the log established the failure",
        blame("host_oom_killed"), NO, History(), Action.STOP,
    ),
    (
        blame("segfault"), NO, History(ledger=failed_before(blame("segfault"), 1)),
        "would restart if the attempt had completed a step beyond the last one",
        blame("segfault"), replace(NO, progress=Progress.YES),
        History(ledger=failed_before(blame("segfault"), 1)), Action.RESTART,
    ),
    (
        blame("segfault"), NO, History(),
        "would stop if 1 more attempt failed like this without progress",
        blame("segfault"), NO, History(ledger=failed_before(blame("segfault"), 1)), Action.STOP,
    ),
    (
        blame("nan_gradient"), NO, History(),
        "would stop if 2 more attempts failed like this without progress",
        blame("nan_gradient"), NO, History(ledger=failed_before(blame("nan_gradient"), 2)), Action.STOP,
    ),
    (
        blame("gpu_fell_off_bus", suspect("n1")), NO, History(),
        "would restart without exclusions if nothing accused n1",
        blame("gpu_fell_off_bus"), NO, History(), Action.RESTART,
    ),
    (
        blame("gpu_fell_off_bus"), NO, History(),
        "would exclude a node if one could be named and the limits left room for it",
        blame("gpu_fell_off_bus", suspect("n1")), NO, History(), Action.RESTART_EXCLUDING,
    ),
    (
        blame("preempted"), NO, History(),
        "would restart if the scheduler did not requeue the job",
        blame("preempted"), replace(NO, scheduler_requeued=False), History(), Action.RESTART,
    ),
    (
        blame("none"), NO, History(),
        "would restart if the job failed",
        blame("none"), replace(NO, state=AttemptState.FAILED), History(), Action.RESTART,
    ),
    (
        blame("cause_not_in_log"), replace(NO, decide_deadline=AT), History(),
        "would restart if asked before the deadline",
        blame("cause_not_in_log"), NO, History(), Action.RESTART,
    ),
    (
        blame("input_missing"), NO, History(same_failure_workloads=3),
        "would stop if no other workload failed alike at once",
        blame("input_missing"), NO, History(), Action.STOP,
    ),
    (
        blame("segfault"), replace(NO, failed_nodes=nodes("n1")), History(same_failure_workloads=3),
        "would exclude the accused nodes if fewer workloads failed alike at once",
        blame("segfault"), replace(NO, failed_nodes=nodes("n1")), History(), Action.RESTART_EXCLUDING,
    ),
)  # fmt: skip


@pytest.mark.parametrize("row", COUNTERFACTUALS, ids=lambda row: row[3])
def test_the_counterfactual_names_a_change_that_does_change_the_verdict(
    row: tuple[Attribution, Facts, History, str, Attribution, Facts, History, Action],
) -> None:
    cause, facts, history, sentence, other_cause, other_facts, other_history, action = row
    verdict = judge(cause, facts=facts, history=history)
    assert verdict.counterfactual == sentence
    changed = judge(other_cause, facts=other_facts, history=other_history)
    assert changed.action is action
    assert verdict.action is not action
