# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a verdict says to people: the outlook of a restart, and what would have changed the verdict."""

from __future__ import annotations

from relight.exclusions import Narrowed
from relight.policy_case import Case, Wanted
from relight.policy_terms import RetryOutlook
from relight.types import Action, Progress


def outlook(case: Case, wanted: Wanted) -> RetryOutlook:
    """What a restart without any change is likely to bring."""
    if wanted.action is Action.CONTINUE:
        return RetryOutlook.NOT_NEEDED
    if case.entry.respects_user:
        return RetryOutlook.NOT_NEEDED
    if wanted.action is Action.STOP:
        return RetryOutlook.NEEDS_CHANGE
    if case.is_unknown or wanted.action is Action.NO_DECISION:
        return RetryOutlook.UNKNOWN
    if case.action is Action.STOP and case.progress is not Progress.YES:
        return RetryOutlook.UNKNOWN
    if Action.RESTART_EXCLUDING in {case.action, wanted.action}:
        return RetryOutlook.RECOVERS_ELSEWHERE
    return RetryOutlook.RECOVERS


def counterfactual(case: Case, wanted: Wanted, narrowed: Narrowed) -> str:
    """One sentence: the smallest other fact that would have led to another verdict."""
    match wanted.action:
        case Action.STOP:
            return _instead_of_stop(case, wanted)
        case Action.CONTINUE:
            return _instead_of_continue(case, wanted)
        case Action.NO_DECISION:
            return _INSTEAD_OF_SILENCE.get(wanted.reason, "would follow an action in the policy table")
        case Action.RESTART_EXCLUDING:
            names = ", ".join(e.node for e in narrowed.exclusions)
            return f"would restart without exclusions if nothing accused {names}"
        case Action.RESTART:
            return _instead_of_restart(case, wanted)


_INSTEAD_OF_SILENCE = {
    "class_is_off": "would be advised on if a person set its class to record at least",
    "user_end_suspected": "would stop if the scheduler confirmed that a person ended the job",
    "deadline_passed_without_a_cause": "would restart if asked before the deadline",
    "too_little_time_left_to_be_useful": "would restart if the time left covered a reload and a checkpoint",
    "restarts_per_day_spent": "would restart if there had been fewer restarts within a day",
    "restarts_total_spent": "would restart if the policy allowed more restarts in all",
    "owners_restarts_spent": "would restart if the owner allowed more restarts",
}


def _instead_of_stop(case: Case, wanted: Wanted) -> str:
    match wanted.reason:
        case "user_ended_it":
            return "would restart if its user submitted it again"
        case "cannot_recover_without_change" if case.entry.restart_after_progress:
            return "would restart if the attempt had made progress first"
        case "cannot_recover_without_change" if case.entry.restart_if_worked_before:
            return "would restart if an earlier attempt of the workload had made progress"
        case "cannot_recover_without_change":
            return "would restart if the evidence were less than established"
        case _:
            return "would restart if the attempt had completed a step beyond the last one"


_INSTEAD_OF_WATCHING = {
    "slowness_is_observed": "would be weighed against a restart if the policy said slowness: {may_exclude: true}",
    "no_slow_node_is_known": "would restart without a node if its own work were known to be slow",
    "remaining_time_unknown": "would be weighed if it were known how long the job still runs",
    "gain_below_the_restarts_cost": "would restart without the slow node if more of the job were left",
    "may_pass_by_itself": "would restart without the slow node if it stayed slow for longer",
    "waits_for_the_next_checkpoint": "would restart without the slow node once a checkpoint is completed",
}


def _instead_of_continue(case: Case, wanted: Wanted) -> str:
    if case.is_slow:
        return _INSTEAD_OF_WATCHING.get(wanted.reason, "would restart without the slow node if it paid")
    if case.entry.restart_unless_requeued:
        return "would restart if the scheduler did not requeue the job"
    return "would restart if the job failed"


def _instead_of_restart(case: Case, wanted: Wanted) -> str:
    if wanted.reason == "breaker":
        return "would exclude the accused nodes if fewer workloads failed alike at once"
    if wanted.reason == "no_capacity_to_exclude":
        return "would exclude the accused nodes if more spare nodes were left"
    if wanted.reason == "no_node_to_exclude":
        return "would exclude a node if one could be named and the limits left room for it"
    if wanted.reason.startswith("stop_not_established"):
        return "would stop if the log established the failure"
    if wanted.reason == "progress_came_first":
        return "would stop if the attempt had made no progress"
    if wanted.reason == "it_worked_before":
        return "would stop if the same failure came again"
    if wanted.reason == "many_workloads_at_once_share_a_cause":
        return "would stop if no other workload failed alike at once"
    if not case.entry.counts:
        return "would stop if it were a failure of the job"
    return _strikes_left(case)


def _strikes_left(case: Case) -> str:
    ceilings, opt_in = case.table.ceilings, case.history.opt_in
    caps = [ceilings.no_progress, *([opt_in.max_no_progress] if opt_in.max_no_progress is not None else [])]
    left = min(
        min(case.retries, ceilings.same_root) - case.after.same_root_without_progress,
        min(caps) - case.after.attempts_without_progress,
    )
    more = max(left, 0) + 1
    attempts = "attempt" if more == 1 else "attempts"
    return f"would stop if {more} more {attempts} failed like this without progress"


# Every reason that a verdict can carry, for people; a test holds it against the code that gives them.
REASONS = {
    "already_satisfied": "the scheduler has already done it",
    "awaiting_approval": "a person has to approve it first",
    "breaker_open": "too much fails at once: nothing is done until a person looks",
    "cannot_recover_without_change": "the log establishes a failure that returns until code, data or settings change",
    "class_is_off": "a person switched advice on this class off; the scheduler's own rule applies",
    "deadline_passed_without_a_cause": "the deadline passed and no cause was found; the scheduler's own rule applies",
    "ended_without_any_progress": "it ended before it made any progress, and would again",
    "gain_below_the_restarts_cost": "it is slower than it was, but a restart would cost more than it gains",
    "it_worked_before": "the same thing worked in an earlier attempt, so one more is worth it",
    "many_workloads_at_once_share_a_cause": "many workloads fail alike at once: a common cause, not this one's nodes",
    "may_pass_by_itself": "it is slower than it was, which often passes before a restart would have paid",
    "no_capacity_to_exclude": "without the accused node too few would be left to run on",
    "no_node_to_exclude": "the failure calls for leaving its node, but the evidence names none that may be excluded",
    "no_progress_in_a_row": "several attempts in a row saved no checkpoint and completed no new step",
    "no_slow_node_is_known": "it is slower than it was, and no node is known to be slow by its own work",
    "not_requeueable": "the job does not allow to be requeued",
    "nothing_to_recover": "nothing failed that a restart would mend",
    "owners_restarts_spent": "the owner's number of restarts is used up",
    "progress_came_first": "it made good progress before it failed, so one restart is worth it",
    "remaining_time_unknown": "it is slower than it was, and how long it still runs is unknown",
    "restart_gains_more_than_it_costs": "without its slow node the rest would be done sooner, the restart included",
    "restarts_per_day_spent": "the restarts of one day are used up",
    "restarts_total_spent": "the restarts that policy allows are used up",
    "same_place_again": "it failed at the same place before",
    "same_root_repeats_without_progress": "the same failure repeats and nothing is gained in between",
    "slowness_is_observed": "it is slower than it was, and the site does not restart for slowness",
    "stop_not_established": "the failure would call for a stop, but the evidence does not establish it",
    "table_default": "the policy's default for this failure",
    "table_leaves_it_to_the_scheduler": "policy leaves this failure to the scheduler's own rule",
    "too_little_time_left_to_be_useful": "the time left covers no reload and checkpoint",
    "user_end_suspected": "a person may have ended it, and the scheduler has not said so",
    "user_ended_it": "its user ended it, which is respected",
    "waits_for_the_next_checkpoint": "a restart would pay, and waits for the next completed checkpoint",
}


def reason_in_words(reason: str) -> str:
    """A reason code as a sentence; a code without one is spelt out."""
    head, _, tail = reason.partition("_but_")
    words = REASONS.get(reason) or REASONS.get(head)
    if words is None:
        return reason.replace("_", " ")
    return f"{words} ({tail.replace('_', ' ')})" if tail else words
