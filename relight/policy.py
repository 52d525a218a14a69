# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From an attribution, the history and the operator's table to one verdict: pure and total."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import assert_never

from relight.exclusions import Narrowed, narrow
from relight.policy_case import Case, Wanted, open_case
from relight.policy_terms import (
    BackOff,
    BlackHole,
    Ceilings,
    ClassRule,
    Deadlines,
    Facts,
    History,
    Limits,
    OptIn,
    PolicyEntry,
    PolicyTable,
    RetryOutlook,
    Terms,
    Verdict,
    Witness,
)
from relight.policy_words import counterfactual, outlook
from relight.types import Action, AttemptState, Attribution, EvidenceStatus, Mode, Progress
from relight.watching import Slowness, weigh_restart

__all__ = [
    "BackOff", "BlackHole", "Ceilings", "ClassRule", "Deadlines", "Facts", "History", "Limits", "OptIn",
    "PolicyEntry", "PolicyTable", "RetryOutlook", "Terms", "Verdict", "Witness", "decide", "lowest_mode",
]  # fmt: skip

BOLDNESS = (Mode.MONITOR, Mode.APPROVE, Mode.ACT)


def lowest_mode(modes: Iterable[Mode]) -> Mode:
    """The least bold of the modes; without any, monitor."""
    return min(modes, key=BOLDNESS.index, default=Mode.MONITOR)


def decide(attribution: Attribution, history: History, facts: Facts, table: PolicyTable, *, at: datetime) -> Verdict:
    """What to do about a failed attempt.

    The same arguments always give the same verdict. A restart is the answer wherever nothing forbids it;
    a stop needs an established hopeless failure or a spent ledger; a model's confidence is never asked.
    Errors: none, for any combination of values.
    """
    case = open_case(attribution, history, facts, table, at=at)
    wanted = _wanted(case)
    wanted, narrowed = _with_exclusions(case, wanted)
    mode, blocked_by = _gates(case, wanted, narrowed)
    is_restart = wanted.action in {Action.RESTART, Action.RESTART_EXCLUDING}
    return Verdict(
        action=wanted.action,
        reason=wanted.reason,
        failure=case.claim.failure,
        failure_class=case.claim.failure_class,
        exclusions=narrowed.exclusions,
        decision_basis=(
            *case.basis,
            *_one_cause(case),
            *wanted.basis,
            *narrowed.basis,
            f"{wanted.action}: {wanted.reason}",
        ),
        retry_outlook=outlook(case, wanted),
        ledgers_before=history.ledger,
        ledgers_after=history.ledger if _goes_on(case, wanted) else case.after,
        actionable=wanted.action not in {Action.CONTINUE, Action.NO_DECISION} and not blocked_by,
        blocked_by=blocked_by,
        mode=mode,
        delay_s=table.back_off.after(case.after.repeats) if is_restart and case.entry.counts else 0,
        counterfactual=counterfactual(case, wanted, narrowed),
        stop_grace_s=table.deadlines.stop_grace_s if wanted.action is Action.STOP else 0,
        policy_version=table.version,
    )


def _one_cause(case: Case) -> tuple[str, ...]:
    """Why the breaker stays shut though as many workloads failed alike as would open it."""
    alike = case.history.same_failure_workloads
    if not case.entry.counts or not case.causes < case.table.limits.breaker_workloads <= alike:
        return ()
    return (f"{alike} workloads failed alike by {case.causes} cause(s): kernel or scheduler blame nodes they share",)


def _goes_on(case: Case, wanted: Wanted) -> bool:
    """An attempt that is merely watched has not been used up."""
    return wanted.action is Action.CONTINUE and case.entry.counts


# ------------------------------------------------------------------ which action


def _wanted(case: Case) -> Wanted:
    """The action before any limit: people and scheduler first, then ledgers, then the table."""
    if case.facts.is_off:
        return Wanted(Action.NO_DECISION, "class_is_off")
    if case.entry.respects_user:
        return _respectful(case)
    if case.facts.slowness is not None and case.is_slow:
        return _weighed(case, case.facts.slowness)
    if case.is_past_deadline and case.is_unknown:
        return Wanted(Action.NO_DECISION, "deadline_passed_without_a_cause")
    match case.action:
        case Action.CONTINUE:
            return _observing(case)
        case Action.NO_DECISION:
            return Wanted(Action.NO_DECISION, "table_leaves_it_to_the_scheduler")
        case Action.STOP:
            return _stopping(case)
        case Action.RESTART | Action.RESTART_EXCLUDING:
            return _restarting(case, case.action, "table_default", case.retries)
        case _ as unhandled:
            assert_never(unhandled)


def _respectful(case: Case) -> Wanted:
    """A person ended the job: never restart on one's own, and leave alone what is not even shown."""
    if case.claim.evidence_status is EvidenceStatus.UNKNOWN:
        return Wanted(Action.NO_DECISION, "user_end_suspected")
    return Wanted(Action.STOP, "user_ended_it")


def _observing(case: Case) -> Wanted:
    if case.entry.restart_unless_requeued and case.facts.scheduler_requeued is False:
        return Wanted(Action.RESTART, "scheduler_does_not_requeue")
    return Wanted(Action.CONTINUE, "nothing_to_recover")


def _weighed(case: Case, slow: Slowness) -> Wanted:
    """A job that is merely slow is watched; a slow node is left out only where the site says so and it pays."""
    terms = case.table.slowness
    weighing = weigh_restart(slow, terms, case.at)
    gain = "unknown" if weighing.gain_s is None else f"{weighing.gain_s:.0f} s"
    basis = (f"slower by {slow.ratio:.2f}: a restart would gain {gain} and cost {weighing.cost_s:.0f} s",)
    if not terms.may_exclude:
        return Wanted(Action.CONTINUE, "slowness_is_observed", basis)
    if not any(s.node is not None for s in case.claim.suspects):
        return Wanted(Action.CONTINUE, "no_slow_node_is_known", basis)
    action = Action.RESTART_EXCLUDING if weighing.is_worth_it else Action.CONTINUE
    return Wanted(action, weighing.reason, basis)


def _stopping(case: Case) -> Wanted:
    """Only what is established as hopeless is stopped; else there is one restart to find out."""
    status = case.claim.evidence_status
    if status is not EvidenceStatus.ESTABLISHED:
        return _restarting(case, Action.RESTART, f"stop_not_established_but_{status}", 1)
    if case.facts.failed_nodes:
        return _restarting(case, Action.RESTART, "a_node_failed_meanwhile", 1)
    if case.is_breaking:
        return _restarting(case, Action.RESTART, "many_workloads_at_once_share_a_cause", 1)
    if case.entry.restart_after_progress and case.progress is Progress.YES:
        return _restarting(case, Action.RESTART, "progress_came_first", 1)
    before = case.history.ledger
    worked_before = before.ever_progressed or case.progress is Progress.YES
    if case.entry.restart_if_worked_before and worked_before and case.after.same_root_seen <= 1:
        return _restarting(case, Action.RESTART, "it_worked_before", 1)
    return Wanted(Action.STOP, "cannot_recover_without_change")


def _restarting(case: Case, action: Action, reason: str, retries: int) -> Wanted:
    spent = case.spent(retries)
    if spent is not None:
        return spent
    if case.entry.stop_without_progress and case.progress is Progress.NO:
        return Wanted(Action.STOP, "ended_without_any_progress")
    if case.has_too_little_time:
        return Wanted(Action.NO_DECISION, "too_little_time_left_to_be_useful")
    if action is Action.RESTART:
        return _escalated(case, reason)
    return Wanted(action, reason)


def _escalated(case: Case, reason: str) -> Wanted:
    """A restart becomes an excluding one when the scheduler or a repetition points to a node."""
    if case.facts.failed_nodes and case.entry.counts:
        return Wanted(Action.RESTART_EXCLUDING, "scheduler_reports_failed_nodes")
    if case.repeated_suspects:
        return Wanted(Action.RESTART_EXCLUDING, "same_place_again", suspects=case.repeated_suspects)
    if case.second_source_suspects:
        return Wanted(Action.RESTART_EXCLUDING, "second_source", suspects=case.second_source_suspects)
    return Wanted(Action.RESTART, reason)


# ------------------------------------------------------------------ which nodes


def _with_exclusions(case: Case, wanted: Wanted) -> tuple[Wanted, Narrowed]:
    """Nodes for an excluding restart; one that can name none is a plain restart."""
    if wanted.action is not Action.RESTART_EXCLUDING:
        return wanted, Narrowed()
    if case.is_breaking:
        note = "no exclusion: many workloads at once share a cause"
        if case.is_slow:
            return Wanted(Action.CONTINUE, "breaker", wanted.basis), Narrowed(basis=(note,))
        return Wanted(Action.RESTART, "breaker", wanted.basis), Narrowed(basis=(note,))
    narrowed = narrow(case.claim_of(wanted), case.entry, case.history, case.facts, case.table, at=case.at)
    if narrowed.exclusions:
        return wanted, narrowed
    basis = (*wanted.basis, f"wanted restart_excluding: {wanted.reason}")
    reason = "no_capacity_to_exclude" if narrowed.is_out_of_capacity else "no_node_to_exclude"
    if case.is_slow:  # where the slow node must stay, a restart would only bring it back
        return Wanted(Action.CONTINUE, reason, basis), narrowed
    return Wanted(Action.RESTART, reason, basis), narrowed


# ------------------------------------------------------------------ whether anyone may act


def _gates(case: Case, wanted: Wanted, narrowed: Narrowed) -> tuple[Mode, tuple[str, ...]]:
    """The mode in force, and everything that keeps a controller from acting on the verdict."""
    facts, history, limits = case.facts, case.history, case.table.limits
    modes = [*facts.modes.values()]
    modes += [m for m in (history.opt_in.mode, case.table.mode_caps.get(wanted.action)) if m is not None]
    modes += [Mode.APPROVE] if case.is_slow else []  # nobody ends a job that runs without a person's word
    # Without any word from the operator it is monitor: a user's opt-in alone cannot raise it.
    mode = lowest_mode(modes) if facts.modes else Mode.MONITOR
    is_broken = history.is_breaker_open or case.is_breaking
    mode = Mode.MONITOR if is_broken else mode
    if wanted.action in {Action.CONTINUE, Action.NO_DECISION}:
        return mode, ()
    is_restart = wanted.action is not Action.STOP
    gates = (
        ("breaker_open", is_broken),
        ("mode_monitor", mode is Mode.MONITOR),
        ("awaiting_approval", mode is Mode.APPROVE),
        ("not_requeueable", not facts.requeueable),
        ("scheduler_blind", facts.state is AttemptState.LOST),
        ("expired", case.is_past_deadline),
        ("already_satisfied", is_restart and bool(facts.scheduler_requeued) and not narrowed.exclusions),
        ("cluster_restart_limit", is_restart and _is_spent(
            history.cluster_restarts_last_hour, limits.cluster_restarts_per_hour)),
        ("user_restart_limit", is_restart and _is_spent(
            history.user_restarts_last_hour, limits.user_restarts_per_hour)),
    )  # fmt: skip
    return mode, tuple(name for name, is_closed in gates if is_closed)


def _is_spent(used: int, limit: int) -> bool:
    return 0 < limit <= used
