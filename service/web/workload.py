# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One workload over its whole life: its attempts, its incidents, and where its time went."""

from __future__ import annotations

from relight.goodput import waterfall
from relight.jsonform import encode
from relight.types import AttemptId, WorkloadId
from service.api.problems import Problem
from service.web import telling
from service.web.goodput_page import told
from service.web.visits import PER_PAGE, View, Visit


def show_workload(visit: Visit) -> View:
    name = WorkloadId(visit.asked("id"))
    app = visit.app
    with app.journal.view:
        state, now = app.journal.state, visit.now
        attempts = [state.attempts[one] for one in state.workloads.get(name, ())]
        attempts = sorted((one for one in attempts if visit.sees(one.seen.cluster)), key=lambda one: -one.position)
        if not attempts:
            raise Problem("not_found", f"no workload {name!r}")
        ledgers = state.past.ledgers.get(name)
        incidents = [
            telling.incident_row(app, state.incidents[known], now)
            for one in attempts
            for known in reversed(state.incidents_of.get(one.id, []))
        ]
        with_steps = set(visit.steps.attempts())
        data = {
            "workload": name,
            "cluster": attempts[0].seen.cluster,
            "name": attempts[0].detail("name", ""),
            "user": attempts[0].detail("user", ""),
            "mode": telling.mode_of(app, attempts[0]).value,
            "attempts": [
                {"attempt": one.id, "index": one.seen.attempt_index, "state": one.seen.state.value,
                 "job_id": one.seen.scheduler.get("job_id", ""), "nodes": list(one.seen.nodes),
                 "first_seen_at": one.first_seen_at, "ended_at": one.ended_at, "last_step": one.last_step,
                 "last_checkpoint": one.last_checkpoint, "log_lines": one.lines, "reason": one.seen.reason,
                 "exit_code": one.seen.exit_code, "has_steps": AttemptId(one.id) in with_steps}
                for one in attempts[:PER_PAGE]
            ],
            "attempts_in_all": len(attempts),
            "incidents": incidents[:PER_PAGE],
            "ledger": encode(ledgers[-1][1]) if ledgers else None,
        }  # fmt: skip
    data["goodput"] = told(waterfall(visit.time_used.workload(name), now))
    return View("workload.html", f"Workload {name}", data)
