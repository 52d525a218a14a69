# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From evidence to one named failure: the built-in attributor, structure first and without any model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta

from relight.culprits import VICTIMS_REPORT, culprit_ranks, suspects_of
from relight.places import is_elsewhere, is_of_one_node, named_nodes, nodes_of, with_peer_names, with_ranks
from relight.refine import refined
from relight.types import (
    CAUSE_NOT_IN_LOG,
    NO_FAILURE,
    Attribution,
    Evidence,
    EvidenceStatus,
    FailureClass,
    FailureName,
    Loser,
    NodeName,
    Progress,
    Rank,
    Role,
    SchedulerState,
    Severity,
    SignatureId,
    Stream,
    Taxonomy,
)

# Orders to end: what a program says after one of these is how it died, not why.
STOP_ORDERS = frozenset(
    map(
        FailureName,
        (
            "time_limit",
            "preempted",
            "user_cancelled",
            "external_sigterm",
            "terminal_hangup",
            "node_removed",
            "pod_evicted_by_taint",
        ),
    )
)
# Orders that a person may give *because* of a failure: earlier claims explain them.
_ANSWERS = frozenset(map(FailureName, ("user_cancelled", "external_sigterm", "terminal_hangup")))
# Lines after which Slurm itself kills what is left of a step; a step's cancel alone is no person's decision.
_ENDING = SignatureId("slurm.job_ending")
_STEP_ENDED = SignatureId("slurm.step_cancelled")
_KILLS = frozenset(map(FailureName, ("killed_unconfirmed", "user_cancelled", "external_sigterm", "segfault")))
# What the node itself says outranks what the job's text says of it.
_DEVICE_STREAMS = frozenset({Stream.KERNEL, Stream.DCGM, Stream.FABRIC})
_OOM_KILLED = FailureName("host_oom_killed")
_EXIT_CRASH = FailureName("crash_after_completion")
_SIGTERM = FailureName("external_sigterm")
_KILLED = FailureName("killed_unconfirmed")
# What the others print once a worker is gone; also the natural echo of a launcher that was told to end.
_ECHOES = frozenset(map(FailureName, ("remote_peer_exited", "rendezvous_lost")))
# What ends a job by its own program or size, whatever its nodes do.
_OF_THE_PROGRAM = frozenset({FailureClass.APPLICATION, FailureClass.RESOURCE})
_BOOTED = SignatureId("host.kernel_booted")
_REPORTED_WITHIN = timedelta(minutes=2)
_SYMPTOM_PENALTY = 8
_LAST_RESORT_DEPTH = 90
_CONSEQUENCE_DEPTH = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """What is known of an attempt beside its evidence.

    `rank_to_node` may be partial; `own_places` are those of it that a scheduler or a log of the rank's own tells;
    `reported_places` come from a launcher's report on workers that failed: they say where an accused rank ran, and
    accuse nobody by themselves; `process_ranks` and `device_ranks` tell global ranks by host and process or GPU (see
    `bus_address`); `nodes` are all that the attempt was given, empty if not known; `logged_ranks` are the ranks that
    have a log of their own; `last_step` is the highest completed step seen; None means that no progress line was
    understood.
    """

    rank_to_node: Mapping[Rank, NodeName] = field(default_factory=dict)
    own_places: Mapping[Rank, NodeName] = field(default_factory=dict)
    reported_places: Mapping[Rank, NodeName] = field(default_factory=dict)
    process_ranks: Mapping[tuple[NodeName, int], Rank] = field(default_factory=dict)
    device_ranks: Mapping[tuple[NodeName, int], Rank] = field(default_factory=dict)
    nodes: frozenset[NodeName] = frozenset()
    logged_ranks: frozenset[Rank] = frozenset()
    node_count: int | None = None
    last_step: int | None = None
    is_completed: bool = False
    scheduler: SchedulerState | None = None


class BuiltinAttributor:
    """The attributor that needs no model and no network; a site may plug in another beside it."""

    name = "builtin"

    def __init__(self, taxonomy: Taxonomy) -> None:
        self._taxonomy = taxonomy

    def attribute(self, evidence: Sequence[Evidence], facts: AttemptFacts) -> Attribution:
        return attribute(evidence, self._taxonomy, facts)


def attribute(evidence: Sequence[Evidence], taxonomy: Taxonomy, facts: AttemptFacts) -> Attribution:
    """Name the failure that explains the others.

    Shapes: evidence of one attempt, any order; the verdict has its root line and every loser with the reason.
    Errors: KeyError if a signature names a failure that the taxonomy lacks (lint refuses such sets).
    Source: policy.md, precedence; depth is causal (hardware under driver under library under report).
    """
    every = with_ranks(
        with_peer_names(sorted(evidence, key=lambda e: e.order)), facts.process_ranks, facts.device_ranks
    )
    losers = [
        _lost(e, f"signature is {e.maturity}: recorded, never decides")
        for e in every
        if e.maturity != "stable" and e.role in {Role.ROOT, Role.SYMPTOM} and e.failure != NO_FAILURE
    ]
    ordered = [e for e in every if e.maturity == "stable"]
    claims = _standing(ordered, taxonomy, losers, facts)
    if not claims:
        return _without_claim(ordered, taxonomy, losers, facts)
    depths = {id(e): _depth(e, claims, taxonomy) for e in claims}
    winner = min(claims, key=lambda e: (depths[id(e)], e.role is not Role.ROOT, *_moment(e, claims)))
    verdict = refined(winner, claims, ordered, facts.last_step)
    failure = taxonomy[verdict.failure]
    backing = tuple(e.where for e in ordered if e.failure == winner.failure and e.role is Role.CONFIRMATION)
    losers += [
        _lost(e, f"explained by {winner.failure} at {winner.where.file}:{winner.where.line}")
        for e in claims
        if e is not winner and e.failure != winner.failure
    ]
    winner = verdict.root or winner
    places = {**facts.reported_places, **facts.rank_to_node}
    suspects = suspects_of(winner, claims, places)
    ranks = culprit_ranks(verdict.failure, winner, claims, ordered, facts.rank_to_node, facts.logged_ranks, taxonomy)
    status = _status(winner, claims, bool(backing))
    if failure.may_be_local and is_of_one_node(ranks, places, ordered):
        status = EvidenceStatus.HYPOTHESIS
    return Attribution(
        failure=verdict.failure,
        failure_class=failure.failure_class,
        evidence_status=status,
        root=winner,
        ranks=ranks,
        # A program's own fault lies nowhere: what NCCL printed of its rank is no reason to look at a node.
        rank_nodes=nodes_of(
            ranks, facts.own_places if failure.failure_class is FailureClass.APPLICATION else facts.rank_to_node
        ),
        suspects=suspects,
        losers=tuple(losers),
        confirmations=backing,
        summary=verdict.reason or winner.title,
        action=verdict.action if verdict.action is not None else winner.action,
        last_step=facts.last_step,
        made_progress=_progress(winner, facts),
    )


def _standing(
    ordered: Sequence[Evidence], taxonomy: Taxonomy, losers: list[Loser], facts: AttemptFacts
) -> list[Evidence]:
    """The claims that may still be the cause; the others join `losers` with the reason."""
    excuses = [e for e in ordered if e.role is Role.BENIGN and e.excuses]
    order = next(
        (
            e
            for e in ordered
            if e.failure in STOP_ORDERS
            and e.role in {Role.ROOT, Role.SYMPTOM}
            and e.signature != _STEP_ENDED
            and not (e.failure == _SIGTERM and any(o.signature in {_ENDING, _STEP_ENDED} for o in ordered))
        ),
        None,
    )
    killed = min(
        (e for e in ordered if e.failure == _KILLED and e.at is not None and e.captures.get("exit_code") is not None),
        key=lambda e: (e.at, e.order),
        default=None,
    )
    is_step_ending = any(e.signature in {_ENDING, _STEP_ENDED} for e in ordered)
    out: list[Evidence] = []
    for e in ordered:
        if e.role not in {Role.ROOT, Role.SYMPTOM} or e.failure == NO_FAILURE:
            continue
        excuse = _excuse(e, excuses)
        if excuse is not None:
            losers.append(_lost(e, f"harmless here: {excuse.title}"))
        elif (e.is_survived or _is_weathered(e, ordered)) and e.failure not in STOP_ORDERS:
            losers.append(_lost(e, "training went on after it"))
        elif is_elsewhere(e, facts.nodes):
            losers.append(_lost(e, f"{e.captures.get('nodes') or e.captures.get('node') or e.node} is not of this job"))
        elif _is_of_an_earlier_boot(e, ordered, taxonomy):
            losers.append(_lost(e, "the host has booted since, and the job says itself what ended it"))
        elif e.failure == _EXIT_CRASH and not facts.is_completed:
            losers.append(_lost(e, "an abort on the way out, and no line says that the run was done"))
        elif e.failure == _SIGTERM and is_step_ending:
            losers.append(_lost(e, "the scheduler sent it while it ended the step"))
        elif killed is not None and _is_echo(e, taxonomy) and _precedes(killed, e):
            losers.append(_lost(e, f"came after a worker was killed ({killed.where.file}:{killed.where.line})"))
        elif order is not None and _is_after(e, order, taxonomy):
            losers.append(_lost(e, f"came after the order to end: {order.title}"))
        elif e.failure in _KILLS and e.signature != _STEP_ENDED and _ended_before(e, ordered):
            losers.append(_lost(e, "came after the scheduler began to end the step"))
        else:
            out.append(e)
    return out


def _excuse(e: Evidence, benign: Sequence[Evidence]) -> Evidence | None:
    """The line that makes a claim harmless; of nodes that both name, every one must be spoken for."""
    fitting = [b for b in benign if e.failure in b.excuses and _excuses(b, e)]
    spoken_for = {node for b in fitting for node in named_nodes(b)}
    if not spoken_for or not named_nodes(e) or named_nodes(e) <= spoken_for:
        return next(iter(fitting), None)
    return next((b for b in fitting if not named_nodes(b)), None)


def _excuses(benign: Evidence, e: Evidence) -> bool:
    if benign.where.file != e.where.file:
        return False
    return not benign.excuses_earlier_only or max(benign.order, benign.last_order) > max(e.order, e.last_order)


def _is_weathered(e: Evidence, ordered: Sequence[Evidence]) -> bool:
    """A node's hint of what the job itself reports and trained on after.

    Every event must have its report: a later one, or one more, that the job does not speak of may have killed it.
    """
    if e.role is not Role.SYMPTOM or e.stream not in _DEVICE_STREAMS or e.at is None:
        return False
    told = [o for o in ordered if o.failure == e.failure and o.stream is Stream.APPLICATION]
    if not told or not all(o.is_survived for o in told) or e.count > sum(o.count for o in told):
        return False
    return any(o.at is not None and abs(o.at - e.at) <= _REPORTED_WITHIN for o in told)


def _is_of_an_earlier_boot(e: Evidence, ordered: Sequence[Evidence], taxonomy: Taxonomy) -> bool:
    """A node's event before its last boot, while the job ended by something that no node does to it.

    Where the job's own line has a time, it must be later than the boot: a job that died before may have died of it.
    """
    if e.stream not in _DEVICE_STREAMS:
        return False
    boots = [
        o
        for o in ordered
        if o.signature == _BOOTED and o.where.file == e.where.file and max(o.order, o.last_order) > e.order
    ]
    return bool(boots) and any(
        o.role is Role.ROOT
        and o.stream is Stream.APPLICATION
        and taxonomy[o.failure].failure_class in _OF_THE_PROGRAM
        and (o.at is None or all(b.at is None or o.at > b.at for b in boots))
        for o in ordered
    )


def _is_echo(e: Evidence, taxonomy: Taxonomy) -> bool:
    """A failure of talking to others: what a killed worker makes its peers say."""
    failure = taxonomy[e.failure]
    return failure.depth >= _CONSEQUENCE_DEPTH and (
        failure.failure_class is FailureClass.NETWORK or e.failure in VICTIMS_REPORT
    )


def _ended_before(e: Evidence, ordered: Sequence[Evidence]) -> bool:
    """The scheduler was already ending the step, and an earlier claim says why: this one is a consequence."""
    endings = [o for o in ordered if o.signature in {_ENDING, _STEP_ENDED} and _precedes(o, e)]
    if not endings:
        return False
    first = endings[0]
    return any(
        o is not e
        and o.role in {Role.ROOT, Role.SYMPTOM}
        and o.failure != NO_FAILURE
        and o.signature != _STEP_ENDED
        and not (o.failure in _KILLS and any(_precedes(end, o) for end in endings))
        and not _precedes(first, o)
        for o in ordered
    )


def _is_after(e: Evidence, order: Evidence, taxonomy: Taxonomy) -> bool:
    if e.failure in STOP_ORDERS or taxonomy[e.failure].depth < _CONSEQUENCE_DEPTH:
        return False
    if e.where.file == order.where.file:
        return e.order > order.order
    return e.at is not None and order.at is not None and e.at > order.at


def _depth(e: Evidence, claims: Iterable[Evidence], taxonomy: Taxonomy) -> float:
    depth = taxonomy[e.failure].depth
    if e.signature == _STEP_ENDED and any(c.failure not in STOP_ORDERS for c in claims):
        return _LAST_RESORT_DEPTH
    if e.failure in _ANSWERS and _answers_a_claim(e, claims):
        return _LAST_RESORT_DEPTH
    if taxonomy[e.failure].waits_for_place and any(taxonomy[c.failure].takes_place for c in claims):
        return _LAST_RESORT_DEPTH  # the node that the pod ran on has gone
    if e.role is Role.SYMPTOM and e.failure not in STOP_ORDERS and e.stream not in _DEVICE_STREAMS:
        return depth + _SYMPTOM_PENALTY
    return depth


def _answers_a_claim(e: Evidence, claims: Iterable[Evidence]) -> bool:
    """The order to end came after something that explains it; several lines may report the one order."""
    claims = tuple(claims)
    orders = [o for o in claims if o.failure == e.failure]
    return any(
        c.failure not in STOP_ORDERS
        and (
            (any(_precedes(c, o) for o in orders) and not any(_precedes(o, c) for o in orders))
            or (e.failure == _SIGTERM and c.failure not in _ECHOES and not any(_precedes(o, c) for o in orders))
        )
        for c in claims
    )


def _precedes(c: Evidence, e: Evidence) -> bool:
    if c.where.file == e.where.file:
        return c.order < e.order
    return c.at is not None and e.at is not None and c.at < e.at


def _moment(e: Evidence, claims: Sequence[Evidence]) -> tuple[float, int]:
    """Time where every claim has one, else the order of arrival."""
    if e.at is not None and all(c.at is not None for c in claims if c.failure == e.failure):
        return (e.at.timestamp(), e.order)
    return (0.0, e.order)


def _lost(e: Evidence, reason: str) -> Loser:
    return Loser(signature=e.signature, failure=e.failure, where=e.where, reason=reason)


def _status(winner: Evidence, claims: Sequence[Evidence], is_backed: bool) -> EvidenceStatus:
    if winner.role is Role.ROOT or winner.failure in STOP_ORDERS:
        return EvidenceStatus.ESTABLISHED
    if winner.failure == _OOM_KILLED and winner.stream.is_independent and any(c.failure == _KILLED for c in claims):
        return EvidenceStatus.ESTABLISHED  # the limit was reached, and a process got SIGKILL: two witnesses
    others = {c.signature for c in claims if c.failure == winner.failure}
    if is_backed or len(others) > 1:
        return EvidenceStatus.SUPPORTED
    return EvidenceStatus.HYPOTHESIS


def _progress(winner: Evidence, facts: AttemptFacts) -> Progress:
    """Whether the log shows completed steps; that no line was understood is not the lack of them."""
    if winner.steps_before > 0 or (facts.last_step or 0) > 0:
        return Progress.YES
    return Progress.UNKNOWN


def _without_claim(
    ordered: Sequence[Evidence], taxonomy: Taxonomy, losers: list[Loser], facts: AttemptFacts
) -> Attribution:
    """No cause stands: healthy, or ended without saying why."""
    backing = [e for e in ordered if e.role is Role.CONFIRMATION and e.failure != NO_FAILURE and not e.is_survived]
    if backing:
        root = min(backing, key=lambda e: (taxonomy[e.failure].depth, e.order))
        return Attribution(
            failure=root.failure,
            failure_class=taxonomy[root.failure].failure_class,
            evidence_status=EvidenceStatus.HYPOTHESIS,
            root=root,
            ranks=culprit_ranks(root.failure, root, backing, ordered, facts.rank_to_node, facts.logged_ranks, taxonomy),
            suspects=suspects_of(root, backing, facts.rank_to_node),
            losers=tuple(losers),
            summary=root.title,
            action=root.action,
            last_step=facts.last_step,
        )
    ended = [e for e in ordered if e.role is Role.TEARDOWN and not e.is_survived]
    teardown = [e for e in ended if e.severity in {Severity.ERROR, Severity.CRITICAL}] or ended
    if teardown and not facts.is_completed:
        return Attribution(
            failure=CAUSE_NOT_IN_LOG,
            failure_class=FailureClass.UNKNOWN,
            evidence_status=EvidenceStatus.UNKNOWN,
            root=teardown[0],
            losers=tuple(losers),
            summary=f"the job ended and no line says why: {teardown[0].title}",
            last_step=facts.last_step,
        )
    return Attribution(
        failure=NO_FAILURE,
        failure_class=FailureClass.BENIGN,
        evidence_status=EvidenceStatus.UNKNOWN,
        losers=tuple(losers),
        summary="nothing in the log claims a failure",
        last_step=facts.last_step,
    )
