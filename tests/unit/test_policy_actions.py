# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which action a failure leads to: the table, the ledgers and the order of precedence."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from relight.policy import Facts, History, OptIn, PolicyEntry, PolicyTable, RetryOutlook
from relight.progress import Ledger
from relight.types import (
    Action,
    AttemptState,
    Attribution,
    EvidenceStatus,
    FailureClass,
    FailureName,
    Progress,
)
from tests.unit.policy_cases import (
    ACT,
    AT,
    HOUR,
    TABLE,
    TAXONOMY,
    blame,
    excluded,
    failed_before,
    judge,
    nodes,
    suspect,
)


@pytest.mark.parametrize("name", sorted(TAXONOMY))
def test_an_established_first_failure_with_a_named_node_gets_the_default_of_the_taxonomy(name: str) -> None:
    verdict = judge(blame(name, suspect("n1")))
    assert verdict.action is TAXONOMY[FailureName(name)].action


@pytest.mark.parametrize("name", sorted(n for n, f in TAXONOMY.items() if f.action is Action.STOP))
@pytest.mark.parametrize("status", [EvidenceStatus.SUPPORTED, EvidenceStatus.HYPOTHESIS])
def test_nothing_but_a_user_end_is_stopped_on_less_than_established_evidence(name: str, status: EvidenceStatus) -> None:
    verdict = judge(blame(name, evidence_status=status))
    assert verdict.action is (Action.STOP if name == "user_cancelled" else Action.RESTART)


def test_an_unestablished_hopeless_failure_is_stopped_when_it_comes_again_without_progress() -> None:
    cause = blame("python_exception", evidence_status=EvidenceStatus.SUPPORTED)
    again = judge(cause, history=History(ledger=failed_before(cause, 1)), facts=_progress(Progress.NO))
    assert (again.action, again.reason) == (Action.STOP, "same_root_repeats_without_progress")


@pytest.mark.parametrize(
    "name",
    ["python_exception", "cuda_oom", "collective_mismatch", "driver_symbol_missing", "toolchain_error"],
)
def test_a_deterministic_failure_after_progress_is_restarted_and_without_it_stopped(name: str) -> None:
    assert judge(blame(name), facts=_progress(Progress.YES)).action is Action.RESTART
    assert judge(blame(name), facts=_progress(Progress.NO)).action is Action.STOP
    assert judge(blame(name), facts=_progress(Progress.UNKNOWN)).action is Action.STOP


def test_the_restart_after_progress_is_the_last_one_unless_there_is_progress_again() -> None:
    cause = blame("cuda_oom")
    first = judge(cause, facts=_progress(Progress.YES))
    again = judge(cause, history=History(ledger=first.ledgers_after), facts=_progress(Progress.NO))
    assert again.action is Action.STOP
    further = judge(cause, history=History(ledger=first.ledgers_after), facts=_progress(Progress.YES))
    assert further.action is Action.RESTART


@pytest.mark.parametrize("name", ["device_side_assert", "host_oom_killed", "checkpoint_shape_mismatch"])
def test_progress_saves_only_what_the_table_says_it_saves(name: str) -> None:
    assert judge(blame(name), facts=_progress(Progress.YES)).action is Action.STOP


@pytest.mark.parametrize("name", ["input_missing", "permission_denied"])
def test_a_missing_file_is_retried_once_if_the_workload_had_run_before(name: str) -> None:
    ran = History(ledger=Ledger(ever_progressed=True))
    first = judge(blame(name), history=ran, facts=_progress(Progress.NO))
    assert (first.action, first.reason) == (Action.RESTART, "it_worked_before")
    second = judge(blame(name), history=History(ledger=first.ledgers_after), facts=_progress(Progress.UNKNOWN))
    assert second.action is Action.STOP
    assert judge(blame(name)).action is Action.STOP


@pytest.mark.parametrize(
    ("name", "retries"), [("nan_gradient", 2), ("segfault", 1), ("gpu_fell_off_bus", 3), ("disk_full", 1)]
)
def test_retries_count_restarts_for_the_same_root_without_progress(name: str, retries: int) -> None:
    cause = blame(name, suspect("n1"))
    last = judge(cause, history=History(ledger=failed_before(cause, retries - 1)), facts=_progress(Progress.NO))
    assert last.action is not Action.STOP
    spent = judge(cause, history=History(ledger=failed_before(cause, retries)), facts=_progress(Progress.NO))
    assert (spent.action, spent.reason) == (Action.STOP, "same_root_repeats_without_progress")


def test_other_roots_start_anew_but_three_restarts_without_any_progress_are_the_end() -> None:
    ledger = Ledger()
    for n, text in enumerate(("first thing", "second thing", "third thing")):
        cause = blame("nccl_collective_timeout", text=text)
        verdict = judge(cause, history=History(ledger=ledger), facts=_progress(Progress.NO), at=AT + n * HOUR)
        assert verdict.action is Action.RESTART
        ledger = verdict.ledgers_after
    fourth = judge(
        blame("data_read_io_error", text="fourth"),
        history=History(ledger=ledger),
        facts=_progress(Progress.NO),
        at=AT + 3 * HOUR,
    )
    assert (fourth.action, fourth.reason) == (Action.STOP, "no_progress_in_a_row")


def test_unknown_progress_is_never_a_strike_however_often_it_fails() -> None:
    cause = blame("nccl_collective_timeout")
    ledger = failed_before(cause, 12, Progress.UNKNOWN)
    assert judge(cause, history=History(ledger=ledger)).action is Action.RESTART
    assert ledger.same_root_without_progress == ledger.attempts_without_progress == 0


def test_strikes_of_the_past_stop_nothing_while_the_present_progress_is_unknown() -> None:
    cause = blame("nccl_collective_timeout")
    struck = History(ledger=failed_before(cause, 5))
    assert judge(cause, history=struck).action is Action.RESTART
    assert judge(cause, history=struck, facts=_progress(Progress.NO)).action is Action.STOP


def test_the_general_ceiling_holds_above_a_generous_entry() -> None:
    generous = replace(TABLE, failures={FailureName("segfault"): PolicyEntry(retries=9)})
    cause = blame("segfault")
    spent = judge(
        cause,
        history=History(ledger=failed_before(cause, 3)),
        facts=_progress(Progress.NO),
        table=generous,
    )
    assert spent.action is Action.STOP


def test_a_spent_daily_budget_hands_over_unless_there_is_known_to_be_no_progress() -> None:
    cause = blame("nccl_collective_timeout")
    busy = Ledger(restarted_at=tuple(AT - timedelta(minutes=n) for n in range(20)), total_restarts=20)
    for progress, action in (
        (Progress.YES, Action.NO_DECISION),
        (Progress.UNKNOWN, Action.NO_DECISION),
        (Progress.NO, Action.STOP),
    ):
        verdict = judge(cause, history=History(ledger=busy), facts=_progress(progress))
        assert (verdict.action, verdict.reason) == (action, "restarts_per_day_spent")


def test_yesterdays_restarts_do_not_count_against_the_daily_budget() -> None:
    old = Ledger(restarted_at=tuple(AT - timedelta(hours=25) for _ in range(20)))
    assert judge(blame("segfault"), history=History(ledger=old)).action is Action.RESTART


def test_the_owner_may_allow_fewer_restarts_than_the_operator_but_not_more_without_progress() -> None:
    cause = blame("nccl_collective_timeout")
    strict = History(ledger=failed_before(cause, 1), opt_in=OptIn(max_no_progress=1))
    assert judge(cause, history=strict, facts=_progress(Progress.NO)).reason == "no_progress_in_a_row"
    lavish = History(ledger=failed_before(cause, 3), opt_in=OptIn(max_no_progress=50))
    assert judge(cause, history=lavish, facts=_progress(Progress.NO)).action is Action.STOP
    none = History(opt_in=OptIn(max_restarts=0))
    assert judge(cause, history=none).reason == "owners_restarts_spent"


def test_a_signature_of_a_sharper_spelling_replaces_the_default_action() -> None:
    assert judge(blame("python_exception", action=Action.RESTART)).action is Action.RESTART
    assert judge(blame("segfault", action=Action.STOP)).action is Action.STOP
    weak = blame("segfault", action=Action.STOP, evidence_status=EvidenceStatus.HYPOTHESIS)
    assert judge(weak).action is Action.RESTART


def test_a_signature_that_asks_for_a_restart_gets_one_although_the_entry_has_no_retries() -> None:
    cause = blame("host_oom_killed", action=Action.RESTART)
    first = judge(cause, facts=_progress(Progress.NO))
    assert first.action is Action.RESTART
    second = judge(cause, history=History(ledger=first.ledgers_after), facts=_progress(Progress.NO))
    assert second.action is Action.STOP


def test_a_models_confidence_changes_nothing() -> None:
    low, high = (judge(blame("gpu_fell_off_bus", suspect("n1", score=s))) for s in (0.01, 0.99))
    assert (low.action, low.reason, low.actionable) == (high.action, high.reason, high.actionable)


@pytest.mark.parametrize("progress", list(Progress))
def test_a_user_end_is_respected_whatever_the_progress(progress: Progress) -> None:
    verdict = judge(blame("user_cancelled"), facts=_progress(progress))
    assert (verdict.action, verdict.reason) == (Action.STOP, "user_ended_it")
    assert verdict.ledgers_after.total_restarts == 0


def test_a_user_end_that_is_only_suspected_is_left_to_the_scheduler() -> None:
    verdict = judge(blame("user_cancelled", evidence_status=EvidenceStatus.UNKNOWN))
    assert verdict.action is Action.NO_DECISION


def test_the_schedulers_word_outranks_the_log() -> None:
    for state, failure, action in (
        (AttemptState.CANCELLED_BY_USER, "user_cancelled", Action.STOP),
        (AttemptState.PREEMPTED, "preempted", Action.CONTINUE),
        (AttemptState.TIMED_OUT, "time_limit", Action.RESTART),
        (AttemptState.COMPLETED, "none", Action.CONTINUE),
    ):
        verdict = judge(blame("nccl_collective_timeout"), facts=Facts(modes=ACT, state=state))
        assert (verdict.failure, verdict.action) == (failure, action)
        assert f"scheduler says {state}" in verdict.decision_basis


def test_a_node_that_the_scheduler_lost_is_excluded_although_the_log_blames_a_collective() -> None:
    facts = Facts(modes=ACT, state=AttemptState.NODE_FAILED, failed_nodes=nodes("n7"))
    verdict = judge(blame("nccl_collective_timeout"), facts=facts)
    assert (verdict.failure, verdict.action, excluded(verdict)) == (
        "node_failure",
        Action.RESTART_EXCLUDING,
        ("n7",),
    )


def test_a_named_device_stays_the_cause_when_the_node_or_the_time_then_ran_out() -> None:
    for state in (AttemptState.NODE_FAILED, AttemptState.TIMED_OUT):
        verdict = judge(blame("gpu_fell_off_bus", suspect("n1")), facts=Facts(modes=ACT, state=state))
        assert (verdict.failure, excluded(verdict)) == ("gpu_fell_off_bus", ("n1",))


def test_a_node_reported_down_turns_a_restart_and_even_a_stop_into_an_excluding_one() -> None:
    facts = Facts(modes=ACT, state=AttemptState.FAILED, failed_nodes=nodes("n7"))
    for name in ("remote_peer_exited", "python_exception"):
        verdict = judge(blame(name), facts=facts)
        assert (verdict.action, excluded(verdict)) == (Action.RESTART_EXCLUDING, ("n7",))


@pytest.mark.parametrize("name", ["none", "gpu_thermal_throttle", "ib_fallback_to_tcp"])
def test_a_failed_job_whose_log_shows_only_conditions_is_restarted_for_an_unknown_cause(name: str) -> None:
    verdict = judge(blame(name), facts=Facts(modes=ACT, state=AttemptState.FAILED))
    assert (verdict.failure, verdict.action) == ("cause_not_in_log", Action.RESTART)
    running = judge(blame(name), facts=Facts(modes=ACT, state=AttemptState.RUNNING))
    assert running.action is Action.CONTINUE


def test_a_finished_run_whose_exit_path_failed_is_not_run_again() -> None:
    verdict = judge(blame("crash_after_completion"), facts=Facts(modes=ACT, state=AttemptState.FAILED))
    assert verdict.action is Action.CONTINUE


@pytest.mark.parametrize("name", ["preempted", "pod_evicted_by_taint"])
def test_a_preempted_job_is_restarted_only_if_the_scheduler_will_not(name: str) -> None:
    for requeued, action in ((None, Action.CONTINUE), (True, Action.CONTINUE), (False, Action.RESTART)):
        verdict = judge(blame(name), facts=Facts(modes=ACT, scheduler_requeued=requeued))
        assert verdict.action is action
        assert verdict.ledgers_after.total_restarts == 0


def test_the_next_link_of_a_chain_costs_nothing_and_needs_progress_or_doubt() -> None:
    for progress, action in (
        (Progress.YES, Action.RESTART),
        (Progress.UNKNOWN, Action.RESTART),
        (Progress.NO, Action.STOP),
    ):
        verdict = judge(blame("time_limit"), facts=_progress(progress))
        assert verdict.action is action
        assert (verdict.ledgers_after.total_restarts, verdict.delay_s) == (0, 0)


def test_too_little_time_left_for_a_reload_and_a_checkpoint_is_said() -> None:
    facts = Facts(modes=ACT, remaining_time_s=900, reload_s=300, checkpoint_interval_s=1200)
    verdict = judge(blame("segfault"), facts=facts)
    assert (verdict.action, verdict.reason) == (Action.NO_DECISION, "too_little_time_left_to_be_useful")
    enough = judge(blame("segfault"), facts=replace(facts, remaining_time_s=1500))
    assert enough.action is Action.RESTART
    unknown = judge(blame("segfault"), facts=replace(facts, remaining_time_s=None))
    assert unknown.action is Action.RESTART
    next_link = judge(blame("time_limit"), facts=replace(facts, remaining_time_s=0))
    assert next_link.action is Action.RESTART


def test_past_the_deadline_an_unknown_cause_is_left_to_the_scheduler() -> None:
    late = Facts(modes=ACT, decide_deadline=AT)
    assert judge(blame("cause_not_in_log"), facts=late).action is Action.NO_DECISION
    known = judge(blame("segfault"), facts=late)
    assert (known.action, known.actionable, known.blocked_by) == (Action.RESTART, False, ("expired",))
    early = judge(blame("cause_not_in_log"), facts=late, at=AT - timedelta(seconds=1))
    assert early.action is Action.RESTART


def test_many_workloads_at_once_are_not_stopped_for_what_they_share() -> None:
    verdict = judge(blame("input_missing"), history=History(same_failure_workloads=3))
    assert (verdict.action, verdict.reason) == (
        Action.RESTART,
        "many_workloads_at_once_share_a_cause",
    )


@pytest.mark.parametrize(
    ("failure_class", "action"),
    [(c, Action.CONTINUE if c is FailureClass.BENIGN else Action.RESTART) for c in FailureClass],
)
def test_a_failure_unknown_to_the_table_is_restarted(failure_class: FailureClass, action: Action) -> None:
    strange = Attribution(
        failure=FailureName("site_invention"),
        failure_class=failure_class,
        evidence_status=EvidenceStatus.ESTABLISHED,
    )
    assert judge(strange).action is action
    assert judge(strange, table=PolicyTable()).action is action


def test_a_table_may_leave_a_failure_to_the_scheduler() -> None:
    table = replace(TABLE, failures={FailureName("segfault"): PolicyEntry(action=Action.NO_DECISION)})
    verdict = judge(blame("segfault"), table=table)
    assert (verdict.action, verdict.actionable) == (Action.NO_DECISION, False)


def test_restarts_are_spaced_out_while_there_is_no_known_progress() -> None:
    cause = blame("nccl_collective_timeout")
    delays = []
    ledger = Ledger()
    for n in range(8):
        verdict = judge(cause, history=History(ledger=ledger), at=AT + n * HOUR)
        delays.append(verdict.delay_s)
        ledger = verdict.ledgers_after
    assert delays == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert judge(cause, history=History(ledger=ledger), facts=_progress(Progress.YES)).delay_s == 0


def test_a_stop_is_a_hold_with_a_time_of_grace() -> None:
    verdict = judge(blame("python_exception"))
    assert (verdict.stop_grace_s, verdict.delay_s) == (1800, 0)
    assert judge(blame("segfault")).stop_grace_s == 0


@pytest.mark.parametrize(
    ("attribution", "outlook"),
    [
        (blame("nccl_collective_timeout"), RetryOutlook.RECOVERS),
        (blame("gpu_fell_off_bus", suspect("n1")), RetryOutlook.RECOVERS_ELSEWHERE),
        (blame("gpu_fell_off_bus"), RetryOutlook.RECOVERS_ELSEWHERE),
        (blame("python_exception"), RetryOutlook.NEEDS_CHANGE),
        (blame("python_exception", evidence_status=EvidenceStatus.SUPPORTED), RetryOutlook.UNKNOWN),
        (blame("cause_not_in_log"), RetryOutlook.UNKNOWN),
        (blame("none"), RetryOutlook.NOT_NEEDED),
        (blame("user_cancelled"), RetryOutlook.NOT_NEEDED),
    ],
)
def test_the_outlook_says_what_a_restart_alone_would_bring(attribution: Attribution, outlook: RetryOutlook) -> None:
    assert judge(attribution).retry_outlook is outlook


def test_the_basis_tells_the_rules_in_their_order_and_ends_with_the_action() -> None:
    basis = judge(blame("segfault")).decision_basis
    assert basis[0].startswith("failure: segfault")
    assert basis[-1] == "restart: table_default"


def _progress(progress: Progress) -> Facts:
    return Facts(modes=ACT, progress=progress)
