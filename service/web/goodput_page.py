# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Where GPU time went, per cluster and per workload: a waterfall from all hours down to productive ones."""

from __future__ import annotations

from typing import Any

from relight.goodput import Part, Waterfall, cluster_waterfall, waterfall
from service.web import telling
from service.web.visits import PER_PAGE, View, Visit

MEANINGS = {
    Part.PRODUCTIVE: "steps that count",
    Part.LOST: "steps done after the last checkpoint, and done again",
    Part.DETECT: "from the onset until it was noticed",
    Part.DECIDE: "until the advice stood",
    Part.ACT: "until somebody acted on it",
    Part.QUEUE: "until the next attempt ran",
    Part.RELOAD: "until the first completed step",
    Part.UNKNOWN: "nobody reported steps or checkpoints: neither productive nor lost",
}


def show_goodput(visit: Visit) -> View:
    cluster, name = visit.asked("cluster"), visit.asked("workload")
    now = visit.now
    known = {
        one: runs
        for one, runs in visit.time_used.workloads().items()
        if visit.sees(runs[0].cluster) and cluster in ("", runs[0].cluster) and name in ("", one)
    }
    rows = [{"workload": one, "cluster": runs[0].cluster, "attempts": len(runs), **told(waterfall(runs, now))}
            for one, runs in known.items()]  # fmt: skip
    rows.sort(key=lambda row: (not row["is_in_gpu_hours"], -row["wasted"]))
    total = cluster_waterfall(known, now)
    data = {
        "filters": {"cluster": cluster, "workload": name},
        "clusters": telling.clusters(visit.app, visit.caller),
        "total": told(total),
        "left_out": list(total.left_out),
        "workloads": rows[:PER_PAGE],
        "found": len(rows),
    }
    return View("goodput.html", "Goodput", data)


def told(found: Waterfall) -> dict[str, Any]:
    """A waterfall as JSON values; the bars of its chart float at `from` of a scale that ends at the total."""
    bars, level = list[dict[str, Any]](), found.total
    for part in (*[one for one in Part if one is not Part.PRODUCTIVE], Part.PRODUCTIVE):
        hours = found.hours.get(part, 0.0)
        level -= hours
        begin = max(level, 0.0) if part is not Part.PRODUCTIVE else 0.0
        bars.append({"part": part.value, "hours": hours, "from": begin, "meaning": MEANINGS[part]})
    return {
        "is_in_gpu_hours": found.is_in_gpu_hours,
        "unit": "GPU-hours" if found.is_in_gpu_hours else "node-hours",
        "total": found.total,
        "goodput_ratio": found.goodput_ratio,
        "wasted": found.total - found.hours.get(Part.PRODUCTIVE, 0.0) - found.hours.get(Part.UNKNOWN, 0.0),
        "bars": bars,
    }
