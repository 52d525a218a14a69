# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What holds of every verdict, whatever the attribution, the history, the facts and the table."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TypeVar

from hypothesis import given, settings
from hypothesis import strategies as st

from relight.exclusions import partition_size
from relight.policy import (
    Ceilings,
    Facts,
    History,
    Limits,
    OptIn,
    PolicyEntry,
    PolicyTable,
    Terms,
    Verdict,
    Witness,
    decide,
)
from relight.progress import Ledger
from relight.suspects import Suspicion
from relight.types import (
    Action,
    AttemptId,
    AttemptState,
    Attribution,
    EvidenceStatus,
    Exclusion,
    FailureClass,
    FailureName,
    Mode,
    NodeName,
    Progress,
    Suspect,
    WorkloadId,
)
from tests.unit.policy_cases import TABLE, TAXONOMY, line

T = TypeVar("T")
AT = datetime(2026, 3, 1, tzinfo=UTC)
WEEK = timedelta(days=7)
LEDGER_REASONS = {
    "same_root_repeats_without_progress", "no_progress_in_a_row", "restarts_per_day_spent",
    "restarts_total_spent", "owners_restarts_spent", "ended_without_any_progress",
}  # fmt: skip

hard = sorted(n for n, f in TAXONOMY.items() if f.action is Action.RESTART_EXCLUDING)
names = st.sampled_from(hard) | st.sampled_from([*sorted(TAXONOMY), FailureName("site_invention")])
node_names = st.sampled_from([NodeName(f"n{i}") for i in range(6)]) | st.text(max_size=4).map(NodeName)
times = st.integers(-100_000, 100_000).map(lambda s: AT + timedelta(seconds=s))
few_nodes = st.lists(node_names, max_size=5).map(tuple)


def rarely(value: st.SearchStrategy[T]) -> st.SearchStrategy[T | None]:
    """Mostly unknown: else one gate or another is always closed and hides the rest."""
    return st.none() | st.none() | st.none() | value


counts = st.integers(-2, 12)
maybe_counts = rarely(st.integers(0, 200))
seconds = rarely(st.floats(allow_nan=True, allow_infinity=True))
suspects = st.builds(
    Suspect,
    node=st.sampled_from([*(NodeName(f"n{i}") for i in range(6)), None]) | node_names,
    gpu=st.none() | st.sampled_from(["g0", "g1"]),
    score=st.floats(),
    is_independent=st.booleans(),
    reason=st.text(max_size=5),
)


@st.composite
def attributions(draw: st.DrawFn) -> Attribution:
    failure = draw(names)
    return Attribution(
        failure=failure,
        failure_class=draw(st.sampled_from(FailureClass)),
        evidence_status=draw(st.sampled_from(EvidenceStatus)),
        root=draw(st.none() | st.text(max_size=30).map(lambda text: line(failure, text))),
        suspects=tuple(draw(st.lists(suspects, max_size=6))),
        action=draw(rarely(st.sampled_from(Action))),
        made_progress=draw(st.sampled_from(Progress)),
    )


@st.composite
def ledgers(draw: st.DrawFn) -> Ledger:
    """Only ledgers that can come about."""
    ledger = Ledger()
    for cause, progress, at in draw(st.lists(st.tuples(attributions(), st.sampled_from(Progress), times), max_size=5)):
        ledger = ledger.after(cause, progress, at)
    return ledger


facts_of = st.builds(
    Facts,
    state=rarely(st.sampled_from(AttemptState)),
    requeueable=rarely(st.just(False)).map(lambda no: no is None),
    scheduler_requeued=rarely(st.booleans()),
    requested_nodes=st.integers(0, 8),
    allocated_nodes=st.just(()) | few_nodes,
    failed_nodes=st.just(()) | few_nodes,
    user_exclusions=st.lists(node_names, max_size=2).map(tuple),
    domains=st.dictionaries(node_names, st.sampled_from(["d1", "d2"]), max_size=4),
    racks=st.dictionaries(node_names, st.sampled_from(["r1", "r2"]), max_size=4),
    progress=st.sampled_from(Progress),
    runtime_s=seconds,
    remaining_time_s=seconds,
    reload_s=seconds,
    checkpoint_interval_s=seconds,
    decide_deadline=rarely(times),
    modes=st.just({"cluster": Mode.ACT})
    | st.dictionaries(st.sampled_from(["cluster", "class"]), st.sampled_from(Mode)),
)


@st.composite
def histories(draw: st.DrawFn) -> History:
    suspicion = Suspicion().accused(
        draw(st.lists(suspects, max_size=3)),
        attempt=AttemptId("t"),
        workload=WorkloadId("w"),
        failure_class=draw(st.sampled_from(FailureClass)),
        at=draw(times),
    )
    standing = st.builds(Exclusion, node=node_names, reason=st.just(""), score=st.just(1.0), expires_at=times)
    witness = st.builds(Witness, source=st.sampled_from("abc"), is_independent=st.booleans())
    return History(
        ledger=draw(ledgers()),
        suspicion=suspicion,
        exclusions=tuple(draw(st.lists(standing, max_size=3))),
        witnesses=draw(st.dictionaries(node_names, st.lists(witness, max_size=2).map(tuple), max_size=3)),
        relapses=draw(st.dictionaries(node_names, st.integers(-5, 10**6), max_size=3)),
        excluded_last_hour=draw(st.just(0) | st.integers(0, 4)),
        cluster_restarts_last_hour=draw(counts),
        same_failure_workloads=draw(st.just(1) | st.integers(0, 4)),
        is_breaker_open=draw(rarely(st.just(True))) is True,
        cluster_nodes=draw(maybe_counts),
        partition_nodes=draw(maybe_counts),
        eligible_nodes=draw(maybe_counts),
        opt_in=OptIn(
            mode=draw(rarely(st.sampled_from(Mode))),
            max_restarts=draw(rarely(counts)),
            max_no_progress=draw(rarely(counts)),
        ),
    )


entries = st.builds(
    PolicyEntry,
    action=st.sampled_from(Action),
    retries=st.integers(0, 5),
    counts=st.booleans(),
    restart_after_progress=st.booleans(),
    restart_if_worked_before=st.booleans(),
    stop_without_progress=st.booleans(),
    observes_only=st.booleans(),
    escalate_after=st.integers(0, 2),
    is_black_hole=st.booleans(),
    is_domain_wide=st.booleans(),
)
spans = st.timedeltas(min_value=timedelta(days=-1), max_value=timedelta(days=4000))
tables = st.just(TABLE) | st.builds(
    PolicyTable,
    failures=st.dictionaries(names, entries, max_size=4),
    ceilings=st.builds(Ceilings, same_root=st.integers(0, 3), restarts_total=st.just(0) | st.integers(0, 3)),
    limits=st.builds(
        Limits,
        nodes_per_decision=st.integers(0, 3),
        hourly_ratio=st.floats(0, 0.2),
        standing_ratio=st.floats(0, 0.2),
        cluster_witnesses=st.integers(1, 3),
    ),
    terms=st.builds(Terms, ttl=spans, ttl_max=spans),
)
cases = st.tuples(attributions(), histories(), facts_of, tables)


@st.composite
def excluding_cases(draw: st.DrawFn) -> tuple[Attribution, History, Facts, PolicyTable]:
    """Cases in which nothing but the limits stands between an accused node and its exclusion."""
    attribution, history, facts, table = draw(cases)
    return (
        replace(attribution, failure=FailureName("nvlink_error"), action=Action.RESTART_EXCLUDING),
        replace(history, ledger=Ledger(), same_failure_workloads=1, opt_in=OptIn()),
        replace(facts, state=None, remaining_time_s=None, decide_deadline=None, user_exclusions=()),
        table,
    )


Case = tuple[Attribution, History, Facts, PolicyTable]


def verdict_of(case: Case) -> Verdict:
    attribution, history, facts, table = case
    return decide(attribution, history, facts, table, at=AT)


@given(cases)
@settings(max_examples=120, deadline=None)
def test_a_verdict_is_always_reached_and_always_explained(case: Case) -> None:
    verdict = verdict_of(case)
    assert verdict.reason and verdict.counterfactual
    assert verdict.decision_basis[-1] == f"{verdict.action}: {verdict.reason}"
    assert 0 <= verdict.delay_s <= case[3].back_off.max_s


@given(cases)
@settings(max_examples=40, deadline=None)
def test_the_same_case_has_the_same_verdict(case: Case) -> None:
    assert repr(verdict_of(case)) == repr(verdict_of(case))


@given(excluding_cases())
@settings(max_examples=100, deadline=None)
def test_no_limit_on_exclusions_is_ever_passed(case: Case) -> None:
    _, history, facts, table = case
    made = {e.node for e in verdict_of(case).exclusions}
    standing = {e.node for e in history.exclusions if e.expires_at > AT}
    size = partition_size(history, facts)
    is_known = bool(history.partition_nodes or history.cluster_nodes)
    if made - standing:
        assert history.excluded_last_hour + len(made - standing) <= table.limits.per_hour(size)
        assert len(made | standing) <= table.limits.standing(size, is_known=is_known)
    units = {facts.domains.get(n, n) for n in made}
    assert len(units) <= table.limits.nodes_per_decision
    if history.eligible_nodes is not None and made:
        alive = made - set(facts.failed_nodes)
        assert history.eligible_nodes - len(alive) >= facts.requested_nodes


@given(excluding_cases())
@settings(max_examples=100, deadline=None)
def test_every_exclusion_expires_within_a_week_and_is_never_over_already(case: Case) -> None:
    assert all(AT < e.expires_at <= AT + WEEK for e in verdict_of(case).exclusions)


@given(cases)
@settings(max_examples=80, deadline=None)
def test_only_an_excluding_restart_excludes_and_it_always_does(case: Case) -> None:
    verdict = verdict_of(case)
    assert bool(verdict.exclusions) is (verdict.action is Action.RESTART_EXCLUDING)


@given(excluding_cases())
@settings(max_examples=100, deadline=None)
def test_cluster_scope_has_a_witness_out_of_the_users_reach(case: Case) -> None:
    attribution, history, facts, _ = case
    has_witness = (
        any(s.is_independent for s in attribution.suspects)
        or any(w.is_independent for seen in history.witnesses.values() for w in seen)
        or bool(facts.failed_nodes)
    )
    scopes = {e.scope for e in verdict_of(case).exclusions}
    assert "cluster" not in scopes or has_witness


@given(excluding_cases())
@settings(max_examples=100, deadline=None)
def test_a_job_never_excludes_what_it_does_not_run_on(case: Case) -> None:
    own = set(case[2].allocated_nodes)
    if own:
        assert {e.node for e in verdict_of(case).exclusions} <= own


@given(cases)
@settings(max_examples=80, deadline=None)
def test_monitor_is_never_acted_on_and_what_is_acted_on_is_not_blocked(case: Case) -> None:
    verdict = verdict_of(case)
    if verdict.actionable:
        assert verdict.mode is Mode.ACT
        assert not verdict.blocked_by
        assert verdict.action not in {Action.CONTINUE, Action.NO_DECISION}


@given(cases)
@settings(max_examples=80, deadline=None)
def test_unknown_progress_never_stops_a_workload_by_a_ledger(case: Case) -> None:
    attribution, history, facts, table = case
    verdict = decide(
        replace(attribution, made_progress=Progress.UNKNOWN),
        history,
        replace(facts, progress=Progress.UNKNOWN),
        table,
        at=AT,
    )
    assert verdict.action is not Action.STOP or verdict.reason not in LEDGER_REASONS


@given(cases)
@settings(max_examples=80, deadline=None)
def test_a_stop_needs_a_person_an_established_failure_or_a_spent_ledger(case: Case) -> None:
    verdict = verdict_of(case)
    if verdict.action is not Action.STOP:
        return
    is_known = case[0].evidence_status is EvidenceStatus.ESTABLISHED or case[2].state is not None
    assert verdict.reason in LEDGER_REASONS | {"user_ended_it"} or is_known


@given(cases, st.floats())
@settings(max_examples=40, deadline=None)
def test_scores_change_neither_the_action_nor_whether_it_may_be_taken(case: Case, score: float) -> None:
    attribution, history, facts, table = case
    one = replace(attribution, suspects=attribution.suspects[:1])
    other = replace(one, suspects=tuple(replace(s, score=score) for s in one.suspects))
    first, second = (decide(a, history, facts, table, at=AT) for a in (one, other))
    assert (first.action, first.reason, first.actionable) == (
        second.action,
        second.reason,
        second.actionable,
    )
