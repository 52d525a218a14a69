# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The shadow scorecard: where Relight only watched, what people did beside what it advised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.agreement import Aftermath, Did, Match, Score, match, matrix, score
from relight.goodput import Run
from relight.incidents import RecommendationState
from relight.types import Action, AttemptId, AttemptState, FailureClass, NodeName
from service.records import AttemptRecord, RecommendationRecord
from service.web import telling
from service.web.visits import PER_PAGE, View, Visit

_WATCHED = frozenset({RecommendationState.SHADOW, RecommendationState.EXPIRED, RecommendationState.REJECTED})


def show_shadow(visit: Visit) -> View:
    cluster, wanted = visit.asked("cluster"), visit.choice("class", FailureClass)
    runs = {run.attempt: run for own in visit.time_used.workloads().values() for run in own}
    with visit.app.journal.view:
        now = visit.now
        watched = [
            one
            for one in visit.app.journal.state.recommendations.values()
            if one.state in _WATCHED
            and one.issued.verdict
            and visit.sees(one.issued.cluster)
            and cluster in ("", one.issued.cluster)
            and wanted in (None, one.issued.failure_class)
        ]
        pairs = [(one, _matched(visit, one, runs, now)) for one in watched]
        clusters = telling.clusters(visit.app, visit.caller)
    matches = [found for _, found in pairs]
    cells = matrix(matches)
    classes = sorted({one.failure_class for one in matches})
    data = {
        "filters": {"cluster": cluster, "class": wanted.value if wanted else ""},
        "clusters": clusters,
        "classes": [one.value for one in FailureClass],
        "did": [one.value for one in Did],
        "matrix": [
            {"action": action.value, "counts": [cells.get((action, did), 0) for did in Did]} for action in Action
        ],
        "total": _told(score(matches)),
        "by_class": [
            {"class": name.value, **_told(score(one for one in matches if one.failure_class is name))}
            for name in classes
        ],
        "disagreements": [
            {"recommendation": known.id, "incident": known.issued.incident, "workload": known.issued.workload,
             "failure": known.issued.failure, "action": found.action.value, "did": found.did.value,
             "at": known.created_at}
            for known, found in sorted(pairs, key=lambda pair: -pair[0].position)
            if found.agrees is False
        ][:PER_PAGE],
    }  # fmt: skip
    return View("shadow.html", "Shadow scorecard", data)


def _matched(visit: Visit, known: RecommendationRecord, runs: Mapping[AttemptId, Run], now: Any) -> Match:
    state, issued = visit.app.journal.state, known.issued
    attempt = state.attempts.get(issued.attempt)
    following = _following(visit, attempt) if attempt is not None else None
    run = runs.get(following.id) if following is not None else None
    accused = {NodeName(one.node) for one in issued.exclusions}
    after = Aftermath(
        is_cancelled=attempt is not None and attempt.seen.state is AttemptState.CANCELLED_BY_USER,
        ended_at=attempt.ended_at if attempt is not None else None,
        restarted_at=following.first_seen_at if following is not None else None,
        is_on_other_nodes=following is not None and bool(accused) and not accused & set(following.seen.nodes),
        made_progress=_progressed(attempt, following),
        gpu_hours=_gpu_hours(run, now),
    )
    return match(known.id, issued.failure_class, issued.action, known.created_at, after, now)


def _following(visit: Visit, attempt: AttemptRecord) -> AttemptRecord | None:
    state = visit.app.journal.state
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


def _gpu_hours(run: Run | None, now: Any) -> float | None:
    if run is None or run.gpus is None or run.started_at is None:
        return None
    return float(((run.ended_at or now) - run.started_at).total_seconds()) / 3600 * run.gpus


def _told(found: Score) -> dict[str, Any]:
    return {
        "decided": found.decided,
        "agreed": found.agreed,
        "ratio": found.agreed / found.decided if found.decided else None,
        "low": found.low,
        "high": found.high,
        "median_lead_s": found.median_lead.total_seconds() if found.median_lead is not None else None,
        "false_stop_gpu_hours": found.false_stop_gpu_hours,
        "missed_stop_gpu_hours": found.missed_stop_gpu_hours,
    }
