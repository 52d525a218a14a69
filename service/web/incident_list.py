# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""All incidents, newest first: the way in for whoever comes without a link."""

from __future__ import annotations

from relight.incidents import IncidentState
from service.web import telling
from service.web.visits import PER_PAGE, View, Visit


def show_incidents(visit: Visit) -> View:
    state, cluster = visit.choice("state", IncidentState), visit.asked("cluster")
    workload, is_open = visit.asked("workload"), visit.asked("open") == "1"
    page = max(visit.number("page", 1) or 1, 1)
    with visit.app.journal.view:
        now = visit.now
        found = sorted(
            (
                one
                for one in visit.app.journal.state.incidents.values()
                if visit.sees(one.opened.cluster)
                and cluster in ("", one.opened.cluster)
                and workload in ("", one.opened.workload)
                and state in (None, one.state)
                and (one.is_open or not is_open)
            ),
            key=lambda one: -one.position,
        )
        cut = found[(page - 1) * PER_PAGE : page * PER_PAGE]
        rows = [telling.incident_row(visit.app, one, now) for one in cut]
        clusters = telling.clusters(visit.app, visit.caller)
    return View(
        "incidents.html",
        "Incidents",
        {
            "filters": {
                "cluster": cluster,
                "state": state.value if state else "",
                "workload": workload,
                "open": is_open,
            },
            "clusters": clusters,
            "states": [one.value for one in IncidentState],
            "incidents": rows,
            "found": len(found),
            "page": page,
            "pages": max(-(-len(found) // PER_PAGE), 1),
        },
    )
