# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The heat map of step time by rank, and its table twin."""

from __future__ import annotations

from typing import Any

from relight.types import AnomalyKind
from service.api.access import attempt_of
from service.api.problems import Problem
from service.web.step_grid import Measure, grid, placed
from service.web.visits import View, Visit


def show_steps(visit: Visit) -> View:
    known = attempt_of(visit.caller, visit.app, visit.part("attempt"))
    first, last, measure = visit.number("from", 0) or 0, visit.number("to"), _measure(visit)
    if last is not None and last < first:
        raise Problem("malformed_parameter", f"need from <= to, got from={first} to={last}")
    timings = visit.steps.timings(known.id)
    found = grid(timings, first=first, last=last, measure=measure) if timings is not None else None
    nodes = {str(rank): str(node) for rank, node in (known.detail("rank_to_node") or {}).items()}
    with visit.app.journal.view:
        reported = _reported(visit)
    data = {
        "attempt": known.id,
        "workload": known.seen.workload,
        "state": known.seen.state.value,
        "filters": {"from": visit.asked("from"), "to": visit.asked("to"), "measure": measure or ""},
        "grid": placed(found, nodes) if found is not None else None,
        "reported": reported,
    }
    return View("steps.html", f"Step times of {known.id}", data)


def _measure(visit: Visit) -> Measure | None:
    match visit.asked("measure"):
        case "":
            return None
        case "compute_s":
            return "compute_s"
        case "step_s":
            return "step_s"
        case said:
            raise Problem("malformed_parameter", f"measure={said!r}: choose from compute_s, step_s")


def _reported(visit: Visit) -> list[dict[str, Any]]:
    """What the straggler detector itself claims, which is what incidents rest on."""
    found = visit.app.journal.state.anomalies_of.get(visit.request.path_params["attempt"], [])
    return [
        {"rank": one.event.anomaly.rank, "node": one.event.anomaly.node, "at": one.event.anomaly.detected_at,
         "score": one.event.anomaly.score, "summary": one.event.anomaly.summary}
        for one in found
        if one.event.anomaly.kind is AnomalyKind.STRAGGLER
    ]  # fmt: skip
