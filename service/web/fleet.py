# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The fleet: every workload with its newest attempt, and what needs a person now."""

from __future__ import annotations

from collections.abc import Container
from datetime import datetime
from typing import Any

from relight.incidents import RecommendationState
from relight.types import Action, AttemptState, WorkloadId
from service.application import Application
from service.history import BREAKER
from service.records import AttemptRecord, RecommendationRecord
from service.silencing import silences_on
from service.web import telling
from service.web.templating import words
from service.web.visits import PER_PAGE, View, Visit


def show_fleet(visit: Visit) -> View:
    cluster, wanted, state = visit.asked("cluster"), visit.asked("q").lower(), visit.choice("state", AttemptState)
    page = max(visit.number("page", 1) or 1, 1)
    with visit.app.journal.view:
        now, timed = visit.now, frozenset(visit.steps.attempts())
        rows = [
            row
            for name, attempts in visit.app.journal.state.workloads.items()
            if (row := _row(visit, name, [visit.app.journal.state.attempts[one] for one in attempts], now, timed))
            and cluster in ("", row["cluster"])
            and (state is None or row["state"] == state.value)
            and (not wanted or wanted in f"{row['workload']} {row['user']} {row['name']} {row['job_id']}".lower())
        ]
        rows.sort(
            key=lambda row: (not row["awaits_approval"], row["incident"] is None, row["is_over"], -row["position"])
        )
        attention = _attention(visit, now)
        modes = _modes(visit)
        clusters = telling.clusters(visit.app, visit.caller)
    return View(
        "fleet.html",
        "Fleet",
        {
            "filters": {"cluster": cluster, "q": visit.asked("q"), "state": state.value if state else ""},
            "clusters": clusters,
            "states": [one.value for one in AttemptState],
            "attention": attention,
            "totals": {
                "workloads": len(rows),
                "running": sum(row["state"] == "RUNNING" for row in rows),
                "incidents": sum(row["incident"] is not None for row in rows),
                "approvals": sum(one["kind"] == "approval" for one in attention),
            },
            "default_mode": visit.app.settings.recommend.mode.value,
            "modes": modes,
            "workloads": rows[(page - 1) * PER_PAGE : page * PER_PAGE],
            "page": page,
            "pages": max(-(-len(rows) // PER_PAGE), 1),
        },
    )


def _row(
    visit: Visit, name: WorkloadId, attempts: list[AttemptRecord], now: datetime, timed: Container[str]
) -> dict[str, Any] | None:
    newest = max(attempts, key=lambda one: (one.seen.attempt_index, one.position))
    if not visit.sees(newest.seen.cluster):
        return None
    app = visit.app
    found = [app.journal.state.open_incident(one.id) for one in attempts]
    incident = next((one for one in reversed(found) if one is not None), None)
    advice = telling.advice_on(app, incident) if incident is not None else None
    return {
        "workload": name,
        "cluster": newest.seen.cluster,
        "name": newest.detail("name", ""),
        "user": newest.detail("user", ""),
        "attempt": newest.id,
        "attempts": len(attempts),
        "job_id": newest.seen.scheduler.get("job_id", ""),
        "state": newest.seen.state.value,
        "is_over": newest.seen.state.is_terminal,
        "nodes": len(newest.seen.nodes),
        "last_step": newest.last_step,
        "last_checkpoint": newest.last_checkpoint,
        "observed_at": newest.observed_at,
        "mode": telling.mode_of(app, newest).value,
        "incident": incident.id if incident is not None else None,
        "incident_state": incident.state.value if incident is not None else None,
        "action": telling.action_words(advice) if incident is not None else None,
        "awaits_approval": advice is not None and telling.awaits_approval(app, advice, now),
        "has_steps": newest.id in timed,
        "position": newest.position,
    }


def _attention(visit: Visit, now: datetime) -> list[dict[str, Any]]:
    """What waits for a person, the most urgent first."""
    app = visit.app
    found = [
        *_decisions(visit, now),
        *_switches(app, visit),
        *({"kind": "detector", "what": f"Detector {name} failed: its silence says nothing of health.",
           "incident": None, "until": None} for name in app.loop.failing),
    ]  # fmt: skip
    if app.journal.refused_at is not None:
        found.append({"kind": "audit", "what": "The audit log can't be written: nothing is advised.", "incident": None,
                      "until": None})  # fmt: skip
    urgency = {"audit": 0, "approval": 1, "failed": 2, "breaker": 3, "detector": 4, "owner": 5}
    far = datetime.max.replace(tzinfo=now.tzinfo)
    return sorted(found, key=lambda one: (urgency[str(one["kind"])], one["until"] or far))[:50]


def _decisions(visit: Visit, now: datetime) -> list[dict[str, Any]]:
    app, found = visit.app, list[dict[str, Any]]()
    for known in app.journal.state.incidents.values():
        advice = telling.advice_on(app, known) if known.is_open and visit.sees(known.opened.cluster) else None
        if advice is None:
            continue
        kind, what = _asked_of_people(app, advice, now)
        if kind:
            about = f"{known.opened.workload}: {words(advice.issued.failure)}"
            if silences_on(app.journal.state, known, now):
                what += " It is silenced: nobody was sent a message."
            until = advice.issued.expires_at if kind == "approval" else None
            found.append({"kind": kind, "what": f"{about}. {what}", "incident": known.id, "until": until})
    return found


def _asked_of_people(app: Application, advice: RecommendationRecord, now: datetime) -> tuple[str, str]:
    what = telling.action_words(advice)
    if telling.awaits_approval(app, advice, now):
        return "approval", f"Approve or reject: {what}."
    if advice.state in {RecommendationState.FAILED, RecommendationState.ABANDONED}:
        return "failed", f"The controller could not {what}."
    if advice.issued.action is Action.STOP:
        return "owner", "Another attempt would fail again: its owner has to change it."
    return "", ""


def _switches(app: Application, visit: Visit) -> list[dict[str, Any]]:
    return [
        {"kind": "breaker", "what": f"The circuit of cluster {entry.target} is open: {entry.reason}", "incident": None,
         "until": None}
        for entry in app.journal.state.modes.values()
        if entry.actor == BREAKER and visit.sees(entry.cluster)
    ]  # fmt: skip


def _modes(visit: Visit) -> list[dict[str, Any]]:
    entries = sorted(visit.app.journal.state.modes.items())
    return [
        {
            "cluster": one.cluster,
            "scope": one.scope,
            "target": one.target,
            "mode": one.mode.value,
            "actor": one.actor,
            "reason": one.reason,
            "changed_at": one.changed_at,
        }
        for _, one in entries
        if one.cluster is None or visit.sees(one.cluster)
    ]
