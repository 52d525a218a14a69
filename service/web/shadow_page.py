# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The shadow scorecard: where Relight only watched, what people did beside what it advised."""

from __future__ import annotations

from typing import Any

from relight.agreement import Did, Score, matrix, score
from relight.types import Action, FailureClass
from service.scorecard import WATCHED, matched
from service.web import telling
from service.web.visits import PER_PAGE, View, Visit


def show_shadow(visit: Visit) -> View:
    cluster, wanted = visit.asked("cluster"), visit.choice("class", FailureClass)
    runs = {run.attempt: run for own in visit.time_used.workloads().values() for run in own}
    with visit.app.journal.view:
        now = visit.now
        watched = [
            one
            for one in visit.app.journal.state.recommendations.values()
            if one.state in WATCHED
            and one.issued.verdict
            and visit.sees(one.issued.cluster)
            and cluster in ("", one.issued.cluster)
            and wanted in (None, one.issued.failure_class)
        ]
        pairs = [(one, matched(visit.app.journal.state, one, now, runs)) for one in watched]
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
