# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The nouns of a policy decision: the operator's table, what is known, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum

from relight.progress import Ledger
from relight.suspects import Suspicion
from relight.types import (
    Action,
    AttemptState,
    Exclusion,
    FailureClass,
    FailureName,
    Mode,
    NodeName,
    Progress,
    WorkloadId,
)
from relight.watching import HangPolicy, Slowness, SlowTerms

LONGEST_EXCLUSION = timedelta(days=7)


class RetryOutlook(StrEnum):
    """What a restart without any change is likely to bring."""

    RECOVERS = "recovers"
    RECOVERS_ELSEWHERE = "recovers_elsewhere"
    NEEDS_CHANGE = "needs_change"
    NOT_NEEDED = "not_needed"
    UNKNOWN = "unknown"


# ------------------------------------------------------------------ the operator's table


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyEntry:
    """What to do about one failure.

    `retries` are restarts for the same root without progress. `escalate_after` accusations of one
    entity (`escalate_by` "gpu" or "node") within a day turn restart into restart_excluding; 0 is never.
    """

    action: Action = Action.RESTART
    retries: int = 3
    counts: bool = True
    respects_user: bool = False
    restart_after_progress: bool = False
    restart_if_worked_before: bool = False
    restart_unless_requeued: bool = False
    stop_without_progress: bool = False
    observes_only: bool = False
    escalate_after: int = 0
    escalate_by: str = "gpu"
    exclude_on_second_source: bool = False
    is_black_hole: bool = False
    is_domain_wide: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassRule:
    """What a site says of a whole class of failures; None leaves the taxonomy's word."""

    action: Action | None = None
    retries: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceilings:
    """Restarts without progress that no entry may exceed, and budgets whatever the progress; 0 is none."""

    same_root: int = 3
    no_progress: int = 3
    restarts_per_day: int = 20
    restarts_total: int = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one decision, an hour and the whole may take from a partition."""

    nodes_per_decision: int = 2
    hourly_ratio: float = 0.05
    hourly_nodes: int = 2
    standing_ratio: float = 0.10
    standing_nodes: int = 1
    correlated_nodes: int = 3
    scarce_spares: int = 1
    cluster_witnesses: int = 2
    breaker_workloads: int = 3
    breaker_window_s: int = 300
    cluster_restarts_per_hour: int = 60
    user_restarts_per_hour: int = 20

    def per_hour(self, nodes: int) -> int:
        """Newly excluded nodes an hour for a partition of `nodes`."""
        return max(int(self.hourly_ratio * nodes), self.hourly_nodes)

    def standing(self, nodes: int, *, is_known: bool = True) -> int:
        """Nodes excluded at the same time in a partition of `nodes`.

        Where only a lower bound of its size is known, one decision's worth is allowed at least.
        """
        floor = self.standing_nodes if is_known else max(self.standing_nodes, self.nodes_per_decision)
        return max(int(self.standing_ratio * nodes), floor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How long an exclusion lasts; each relapse doubles it."""

    ttl: timedelta = timedelta(hours=24)
    ttl_max: timedelta = timedelta(days=7)

    def of(self, relapses: int) -> timedelta:
        # Bounded before it is multiplied: a relapse count comes from stored data.
        first = min(max(self.ttl, timedelta(seconds=1)), LONGEST_EXCLUSION)
        longest = min(max(self.ttl_max, timedelta(seconds=1)), LONGEST_EXCLUSION)
        return min(first * (1 << min(max(relapses, 0), 16)), longest)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlackHole:
    """A node that ends every job at once: attempts shorter than `quick_s` are no strike."""

    quick_s: int = 60
    tries: int = 2
    workloads: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Deadlines:
    decide_s: int = 60
    hard_s: int = 240
    stop_grace_s: int = 1800


@dataclass(frozen=True, slots=True, kw_only=True)
class BackOff:
    first_s: int = 60
    max_s: int = 3600

    def after(self, repeats: int) -> int:
        """Seconds to wait before the restart after `repeats` attempts without known progress."""
        if repeats <= 0:
            return 0
        return min(self.first_s << min(repeats - 1, 32), self.max_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyTable:
    """The operator's policy, whole: an entry for each failure, and the limits over all of them."""

    failures: Mapping[FailureName, PolicyEntry] = field(default_factory=dict)
    classes: Mapping[FailureClass, ClassRule] = field(default_factory=dict)
    ceilings: Ceilings = Ceilings()
    limits: Limits = Limits()
    terms: Terms = Terms()
    black_hole: BlackHole = BlackHole()
    deadlines: Deadlines = Deadlines()
    back_off: BackOff = BackOff()
    mode_caps: Mapping[Action, Mode] = field(default_factory=dict)
    slowness: SlowTerms = field(default_factory=SlowTerms)
    hangs: HangPolicy = field(default_factory=HangPolicy)
    version: str = "builtin"

    def entry(self, failure: FailureName, failure_class: FailureClass) -> PolicyEntry:
        """The entry of a failure; a name unknown here is treated as its class says, else restarted."""
        known = self.failures.get(failure)
        if known is not None:
            return known
        if failure_class is FailureClass.BENIGN:
            return PolicyEntry(action=Action.CONTINUE, retries=0, counts=False)
        rule = self.classes.get(failure_class, ClassRule())
        # A failure that the table does not name cannot be known to be hopeless.
        action = Action.RESTART if rule.action in {None, Action.STOP} else rule.action
        return PolicyEntry(
            action=action or Action.RESTART,
            retries=self.ceilings.same_root if rule.retries is None else rule.retries,
        )


# ------------------------------------------------------------------ what is known


@dataclass(frozen=True, slots=True, kw_only=True)
class Witness:
    """Someone who accused a node earlier; two with different `source` are two witnesses."""

    source: str
    is_independent: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OptIn:
    """What the workload's owner allows; None leaves the operator's figure, and the lower of both holds."""

    mode: Mode | None = None
    max_restarts: int | None = None
    max_no_progress: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """What happened before, to the workload and to the cluster.

    `same_failure_workloads` counts distinct workloads, this one among them, that met this failure within
    the breaker's window; `same_failure_places` says of the others among them which nodes sources out of their users'
    reach blame for it, where any do. `eligible_nodes` are those the workload could be placed on now, the accused ones
    among them, whatever is excluded already left out; None means unknown. `launch_failures`
    counts distinct workloads, this one among them, that failed to start on a node within a day;
    `accused_elsewhere` counts, by `progress.entity_key`, the other workloads struck there within a day,
    as sources out of their users' reach tell it. `relapses` are the earlier exclusions of a node.
    """

    ledger: Ledger = field(default_factory=Ledger)
    suspicion: Suspicion = field(default_factory=Suspicion)
    exclusions: tuple[Exclusion, ...] = ()
    witnesses: Mapping[NodeName, tuple[Witness, ...]] = field(default_factory=dict)
    relapses: Mapping[NodeName, int] = field(default_factory=dict)
    launch_failures: Mapping[NodeName, int] = field(default_factory=dict)
    accused_elsewhere: Mapping[str, int] = field(default_factory=dict)
    excluded_last_hour: int = 0
    cluster_restarts_last_hour: int = 0
    user_restarts_last_hour: int = 0
    same_failure_workloads: int = 1
    same_failure_places: Mapping[WorkloadId, frozenset[NodeName]] = field(default_factory=dict)
    is_breaker_open: bool = False
    cluster_nodes: int | None = None
    partition_nodes: int | None = None
    eligible_nodes: int | None = None
    opt_in: OptIn = OptIn()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of the attempt itself; None and empty mean unknown, never zero.

    `modes` maps whoever set a mode (cluster, partition, class, workload) to it; the lowest wins, none at
    all is monitor. `domains` and `racks` map a node to its NVLink domain and its rack. `is_off`: no advice is
    given on this class of failures.
    """

    state: AttemptState | None = None
    requeueable: bool = True
    scheduler_requeued: bool | None = None
    requested_nodes: int = 0
    allocated_nodes: tuple[NodeName, ...] = ()
    failed_nodes: tuple[NodeName, ...] = ()
    user_exclusions: tuple[NodeName, ...] = ()
    domains: Mapping[NodeName, str] = field(default_factory=dict)
    racks: Mapping[NodeName, str] = field(default_factory=dict)
    progress: Progress = Progress.UNKNOWN
    runtime_s: float | None = None
    remaining_time_s: float | None = None
    reload_s: float | None = None
    checkpoint_interval_s: float | None = None
    decide_deadline: datetime | None = None
    slowness: Slowness | None = None
    modes: Mapping[str, Mode] = field(default_factory=dict)
    is_off: bool = False


# ------------------------------------------------------------------ the verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is recommended and why.

    `decision_basis` is the trace of the rules that fired, in order; its last word on the action is
    `reason`. `exclusions` are the ones this decision adds: those that stand already are in the history.
    `delay_s` is to pass before a restart, `stop_grace_s` before a stopped attempt is ended for good.
    """

    action: Action
    reason: str
    failure: FailureName
    failure_class: FailureClass
    exclusions: tuple[Exclusion, ...]
    decision_basis: tuple[str, ...]
    retry_outlook: RetryOutlook
    ledgers_before: Ledger
    ledgers_after: Ledger
    actionable: bool
    blocked_by: tuple[str, ...]
    mode: Mode
    delay_s: int
    counterfactual: str
    stop_grace_s: int = 0
    policy_version: str = "builtin"
