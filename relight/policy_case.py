# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One case before the policy: facts put in their order of precedence, and the questions asked of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from relight.exclusions import short_name, witnesses
from relight.policy_terms import Facts, History, PolicyEntry, PolicyTable
from relight.progress import Ledger, entity_key
from relight.types import (
    CAUSE_NOT_IN_LOG,
    NO_FAILURE,
    Action,
    AttemptState,
    Attribution,
    EvidenceStatus,
    FailureClass,
    FailureName,
    NodeName,
    Progress,
    Suspect,
)
from relight.watching import is_about_slowness


@dataclass(frozen=True, slots=True)
class Wanted:
    """An action with the reason that led to it; `suspects` narrows whom it is about, None is everybody."""

    action: Action
    reason: str
    basis: tuple[str, ...] = ()
    suspects: tuple[Suspect, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An attribution with its entry, progress and ledger: all that the rules look at."""

    claim: Attribution
    entry: PolicyEntry
    action: Action
    progress: Progress
    after: Ledger
    history: History
    facts: Facts
    table: PolicyTable
    at: datetime
    basis: tuple[str, ...]

    @property
    def is_past_deadline(self) -> bool:
        return self.facts.decide_deadline is not None and self.at >= self.facts.decide_deadline

    @property
    def is_unknown(self) -> bool:
        return self.claim.failure == CAUSE_NOT_IN_LOG or (
            self.claim.evidence_status is EvidenceStatus.UNKNOWN and self.claim.failure_class is FailureClass.UNKNOWN
        )

    @property
    def is_slow(self) -> bool:
        """The job goes on, but slower than it did, and nothing else is said of it."""
        return self.facts.slowness is not None and is_about_slowness(self.claim)

    @property
    def retries(self) -> int:
        """The entry's figure; where a signature asks for another action, at least one try of it."""
        return self.entry.retries if self.action is self.entry.action else max(self.entry.retries, 1)

    @property
    def is_breaking(self) -> bool:
        """The same failure by several causes within minutes: something outside of the workloads and their nodes."""
        return self.entry.counts and 0 < self.table.limits.breaker_workloads <= self.causes

    @property
    def causes(self) -> int:
        """How many workloads failed alike, those on one dead node being one: kernel or scheduler name the cause."""
        limit, others = self.history.same_failure_workloads, self.history.same_failure_places
        placed = [nodes for nodes in (self.hard_nodes, *others.values()) if nodes]
        dead = {short_name(node) for nodes in placed for node in nodes}
        return min(limit, max(limit - len(placed), 0) + len(dead))

    @property
    def hard_nodes(self) -> frozenset[NodeName]:
        """Nodes that an established failure names by a source out of the user's reach."""
        if self.claim.evidence_status is not EvidenceStatus.ESTABLISHED:
            return frozenset()
        accused = [s for s in self.claim.suspects if s.node is not None]
        return frozenset(s.node for s in accused if s.node is not None and self._is_witnessed(s))

    def _is_witnessed(self, suspect: Suspect) -> bool:
        earlier = self.history.witnesses.get(suspect.node, ()) if suspect.node is not None else ()
        return suspect.is_independent or any(witness.is_independent for witness in earlier)

    @property
    def has_too_little_time(self) -> bool:
        """The limit that has ended an attempt says nothing of the next one's time."""
        if self.facts.remaining_time_s is None or not self.entry.counts:
            return False
        need = (self.facts.reload_s or 0.0) + (self.facts.checkpoint_interval_s or 0.0)
        return self.facts.remaining_time_s < need

    @property
    def repeated_suspects(self) -> tuple[Suspect, ...]:
        """Suspects struck by this failure before: by this workload, or as a black hole by others too."""
        return tuple(s for s in self.claim.suspects if s.node is not None and self._is_repeated(s))

    @property
    def second_source_suspects(self) -> tuple[Suspect, ...]:
        if not self.entry.exclude_on_second_source:
            return ()
        return tuple(s for s in self.claim.suspects if s.node is not None and self._has_second_source(s.node))

    def claim_of(self, wanted: Wanted) -> Attribution:
        """The attribution with only those suspects that the wanted action is about."""
        if wanted.suspects is None:
            return self.claim
        return replace(self.claim, suspects=wanted.suspects)

    def spent(self, retries: int) -> Wanted | None:
        """A ledger that is used up; only known lack of progress stops, a mere number hands over."""
        if not self.entry.counts:
            return None
        ceilings, opt_in, ledger = self.table.ceilings, self.history.opt_in, self.after
        if self.progress is Progress.NO:
            if ledger.same_root_without_progress > min(retries, ceilings.same_root):
                return Wanted(Action.STOP, "same_root_repeats_without_progress")
            if ledger.attempts_without_progress > _lower(ceilings.no_progress, opt_in.max_no_progress):
                return Wanted(Action.STOP, "no_progress_in_a_row")
        for name, used, limit in (
            ("restarts_per_day_spent", ledger.restarts_within_a_day(self.at), ceilings.restarts_per_day),
            ("restarts_total_spent", ledger.total_restarts, ceilings.restarts_total),
            ("owners_restarts_spent", ledger.total_restarts, opt_in.max_restarts),
        ):
            if limit is not None and used > limit and (limit > 0 or name == "owners_restarts_spent"):
                return Wanted(Action.STOP if self.progress is Progress.NO else Action.NO_DECISION, name)
        return None

    def _is_repeated(self, suspect: Suspect) -> bool:
        if suspect.node is None:
            return False
        settings = self.table.black_hole
        by_node = self.entry.is_black_hole or self.entry.escalate_by == "node"
        entity = replace(suspect, gpu=None) if by_node else suspect
        own = self.after.times_accused(self.claim.failure, entity)
        others = self.history.accused_elsewhere.get(entity_key(self.claim.failure, suspect.node, entity.gpu), 0)
        if self.entry.is_black_hole:
            struck = max(others + 1, self.history.launch_failures.get(suspect.node, 0))
            return own >= settings.tries or struck >= settings.workloads
        return 0 < self.entry.escalate_after <= own + others

    def _has_second_source(self, node: NodeName) -> bool:
        now = any(s.is_independent for s in self.claim.suspects if s.node == node)
        earlier = any(w.is_independent for w in self.history.witnesses.get(node, ()))
        return (now or earlier) and len(witnesses(node, self.claim.suspects, self.history)) >= 2


def open_case(attribution: Attribution, history: History, facts: Facts, table: PolicyTable, *, at: datetime) -> Case:
    """Put the facts in order: people, scheduler, node events, log; then look up the entry."""
    claim, said = _outranked(attribution, facts, table)
    entry = table.entry(claim.failure, claim.failure_class)
    claim = _with_nodes(_respelled(claim, facts), entry, facts)
    progress, known_by = _progress(claim, entry, facts, table)
    # A signature's own action speaks of its own failure only, not of the fact that outranked it.
    action = entry.action if claim.action is None else claim.action
    basis = (
        *said,
        f"failure: {claim.failure} ({claim.failure_class}, {claim.evidence_status})",
        f"default: {entry.action}, retries {entry.retries}",
        *([f"signature says {claim.action}"] if claim.action not in {None, entry.action} else []),
        f"progress: {progress} ({known_by})",
    )
    return Case(
        claim=claim,
        entry=entry,
        action=action,
        progress=progress,
        after=history.ledger.after(claim, progress, at, counts=entry.counts),
        history=history,
        facts=facts,
        table=table,
        at=at,
        basis=basis,
    )


# The scheduler's word on how an attempt ended, as a failure of ours.
_ENDS = {
    AttemptState.CANCELLED_BY_USER: FailureName("user_cancelled"),
    AttemptState.PREEMPTED: FailureName("preempted"),
    AttemptState.TIMED_OUT: FailureName("time_limit"),
    AttemptState.COMPLETED: NO_FAILURE,
}


def _outranked(attribution: Attribution, facts: Facts, table: PolicyTable) -> tuple[Attribution, tuple[str, ...]]:
    """The attribution, or what the scheduler knows better."""
    if facts.state is None:
        return attribution, ()
    entry = table.entry(attribution.failure, attribution.failure_class)
    if facts.state in _ENDS:
        # A dead device found in a job that then hung into its limit is the cause, the limit is the end.
        is_why = facts.state is AttemptState.TIMED_OUT and _names_a_bad_node(attribution, entry)
        if is_why or attribution.failure == _ENDS[facts.state]:
            return attribution, ()
        return _stated(attribution, _ENDS[facts.state]), (f"scheduler says {facts.state}",)
    if facts.state is AttemptState.NODE_FAILED and not _names_a_bad_node(attribution, entry):
        return _stated(attribution, FailureName("node_failure")), ("scheduler says NODE_FAILED",)
    is_blank = attribution.failure == NO_FAILURE or entry.observes_only
    if facts.state is AttemptState.FAILED and is_blank:
        return _unexplained(attribution), ("the job failed, and the log shows nothing that ends a job",)
    return attribution, ()


def _names_a_bad_node(attribution: Attribution, entry: PolicyEntry) -> bool:
    action = attribution.action or entry.action
    return action is Action.RESTART_EXCLUDING and bool(attribution.nodes)


def _stated(attribution: Attribution, failure: FailureName) -> Attribution:
    benign = failure == NO_FAILURE
    is_node = failure == FailureName("node_failure")
    ours = FailureClass.HARDWARE if is_node else FailureClass.USER_OR_SCHEDULER
    return replace(
        attribution,
        failure=failure,
        failure_class=FailureClass.BENIGN if benign else ours,
        evidence_status=EvidenceStatus.ESTABLISHED,
        root=None,
        suspects=(),
        action=None,
    )


def _unexplained(attribution: Attribution) -> Attribution:
    return replace(
        attribution,
        failure=CAUSE_NOT_IN_LOG,
        failure_class=FailureClass.UNKNOWN,
        evidence_status=EvidenceStatus.UNKNOWN,
        root=None,
        suspects=(),
        action=None,
    )


def _respelled(claim: Attribution, facts: Facts) -> Attribution:
    """Node names as the scheduler spells them, so that one node is one node in every ledger."""
    own = {short_name(n): n for n in facts.allocated_nodes}
    suspects = tuple(
        replace(s, node=own.get(short_name(s.node), s.node)) if s.node is not None else s for s in claim.suspects
    )
    return replace(claim, suspects=suspects) if suspects != claim.suspects else claim


def _with_nodes(claim: Attribution, entry: PolicyEntry, facts: Facts) -> Attribution:
    """Add the nodes that the scheduler names, and the only possible one of a failed start."""
    named = set(claim.nodes)
    added = [_reported(n) for n in _distinct(facts.failed_nodes) if n not in named]
    if entry.is_black_hole and not named and not added and len(facts.allocated_nodes) == 1:
        added = [Suspect(node=facts.allocated_nodes[0], reason="the only node of the job")]
    return replace(claim, suspects=(*claim.suspects, *added)) if added else claim


def _reported(node: NodeName) -> Suspect:
    return Suspect(node=node, is_independent=True, reason="the scheduler reports it failed")


def _distinct(nodes: Iterable[NodeName]) -> tuple[NodeName, ...]:
    return tuple(dict.fromkeys(nodes))


def _progress(claim: Attribution, entry: PolicyEntry, facts: Facts, table: PolicyTable) -> tuple[Progress, str]:
    """Ledger of steps first, then the log; a start that failed at once proves no lack of progress."""
    quick = timedelta(seconds=table.black_hole.quick_s).total_seconds()
    if entry.is_black_hole and facts.runtime_s is not None and facts.runtime_s < quick:
        return Progress.UNKNOWN, "the attempt was too short to tell"
    if facts.progress is not Progress.UNKNOWN:
        return facts.progress, "steps"
    return claim.made_progress, "log"


def _lower(limit: int, other: int | None) -> int:
    return limit if other is None else min(limit, other)
