# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Advice beside what came of it: for the shadow scorecard, and for the record that a class is trusted by."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta

from relight.agreement import PATIENCE, Aftermath, Match, match
from relight.events import FeedbackVerdict
from relight.exclusions import short_name
from relight.goodput import Run
from relight.incidents import RecommendationState
from relight.promotion import Judged, worth
from relight.types import Action, AttemptId, AttemptState, ClusterId, FailureClass, NodeName, WorkloadId
from service.projection import Projection
from service.records import AttemptRecord, RecommendationRecord

WATCHED = frozenset({RecommendationState.SHADOW, RecommendationState.EXPIRED, RecommendationState.REJECTED})
_SETTLED = WATCHED | {RecommendationState.CONVERGED, RecommendationState.FAILED, RecommendationState.ABANDONED}
_ADVICE = frozenset({Action.RESTART, Action.RESTART_EXCLUDING, Action.STOP})
_FEEDBACK = {FeedbackVerdict.RIGHT: True, FeedbackVerdict.WRONG: False}
# A node may be taken out while its job still dies; a drain from before that was about something else.
DRAIN_BEFORE = timedelta(minutes=15)
NO_RUNS: Mapping[AttemptId, Run] = {}


def matched(
    state: Projection, known: RecommendationRecord, now: datetime, runs: Mapping[AttemptId, Run] = NO_RUNS
) -> Match:
    """One advice with its aftermath; GPU-hours only where `runs` tells them."""
    issued = known.issued
    attempt = state.attempts.get(issued.attempt)
    following = _following(state, attempt) if attempt is not None else None
    accused = {NodeName(one.node) for one in issued.exclusions}
    progressed = _progressed(attempt, following)
    after = Aftermath(
        is_cancelled=attempt is not None and attempt.seen.state is AttemptState.CANCELLED_BY_USER,
        ended_at=attempt.ended_at if attempt is not None else None,
        restarted_at=following.first_seen_at if following is not None else None,
        is_on_other_nodes=following is not None and bool(accused) and not accused & set(following.seen.nodes),
        is_resubmitted=_is_another_job(attempt, following),
        came_back=progressed is False and following is not None and _failed_alike(state, known, following),
        made_progress=progressed,
        drained_at=_drained_at(state, known, accused),
        gpu_hours=_gpu_hours(runs.get(following.id), now) if following is not None else None,
    )
    return match(known.id, issued.failure_class, issued.action, known.created_at, after, now)


def cases(
    state: Projection, now: datetime, *, counts: Callable[[RecommendationRecord], bool] = lambda _: True
) -> Iterator[tuple[ClusterId, Judged]]:
    """Every advice of our own that is over, with what it was worth, by cluster.

    A person's proposal is not our advice, and a failure of class none is no failure.
    """
    for known in state.recommendations.values():
        issued = known.issued
        is_ours = bool(issued.verdict) and issued.action in _ADVICE and issued.failure_class is not FailureClass.BENIGN
        if not (is_ours and known.state in _SETTLED and counts(known)):
            continue
        found = matched(state, known, now)
        said = next((_FEEDBACK[one.verdict] for one in reversed(known.feedback) if one.verdict in _FEEDBACK), None)
        held = worth(
            found, feedback=said, is_rejected=known.rejected is not None, is_approved=known.approved is not None
        )
        yield (
            issued.cluster or ClusterId(""),
            Judged(
                recommendation=known.id,
                workload=issued.workload or WorkloadId(issued.attempt),
                failure_class=issued.failure_class,
                action=issued.action,
                advised_at=known.created_at,
                held=held,
                is_false_stop=found.is_false_stop,
            ),
        )


def _drained_at(state: Projection, known: RecommendationRecord, accused: set[NodeName]) -> datetime | None:
    """When somebody took an accused node out, if that was within a day of the advice and not long before it."""
    names, cluster = {short_name(one) for one in accused}, known.issued.cluster or ClusterId("")
    window = (known.created_at - DRAIN_BEFORE, known.created_at + PATIENCE)
    return min(
        (
            one.at
            for one in state.past.drained
            if one.cluster == cluster and short_name(one.node) in names and window[0] <= one.at <= window[1]
        ),
        default=None,
    )


def _following(state: Projection, attempt: AttemptRecord) -> AttemptRecord | None:
    later = [state.attempts[one] for one in state.workloads.get(attempt.seen.workload, ())]
    later = [one for one in later if one.seen.attempt_index > attempt.seen.attempt_index]
    return min(later, key=lambda one: one.seen.attempt_index, default=None)


def _progressed(before: AttemptRecord | None, after: AttemptRecord | None) -> bool | None:
    """Got the next attempt further? None while it runs, or where nobody reports steps."""
    if before is None or after is None:
        return None
    if after.last_step is not None and (before.last_step is None or after.last_step > before.last_step):
        return True
    if after.seen.state is AttemptState.COMPLETED:
        return True
    return False if after.seen.state.is_terminal and before.last_step is not None else None


def _is_another_job(before: AttemptRecord | None, after: AttemptRecord | None) -> bool:
    if before is None or after is None:
        return False
    jobs = [one.seen.scheduler.get("job_id") for one in (before, after)]
    return None not in jobs and str(jobs[0]) != str(jobs[1])


def _failed_alike(state: Projection, known: RecommendationRecord, following: AttemptRecord) -> bool:
    said = state.attribution(following.id)
    return said is not None and said.event.failure == known.issued.failure


def _gpu_hours(run: Run | None, now: datetime) -> float | None:
    if run is None or run.gpus is None or run.started_at is None:
        return None
    return float(((run.ended_at or now) - run.started_at).total_seconds()) / 3600 * run.gpus
