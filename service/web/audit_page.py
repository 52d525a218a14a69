# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The audit log as it was written, with filters, and a badge that says whether its chain holds."""

from __future__ import annotations

from typing import Any

from relight.events import EVENT_TYPES, to_json
from relight.ports import AuditFilter
from relight.types import AttemptId, ClusterId, IncidentId, NodeName, RecommendationId, WorkloadId
from service.api.audit import VerifyAsk, verify_audit
from service.api.problems import Problem
from service.api.wire import cursor_of, position_of
from service.web.visits import PER_PAGE, View, Visit

_FIELDS = ("kind", "cluster", "workload", "attempt", "incident", "recommendation", "node", "actor", "since", "until")


def show_audit(visit: Visit) -> View:
    audit = visit.app.journal.audit
    where, head = _where(visit), audit.head()
    after = position_of(visit.asked("cursor")) if visit.asked("cursor") else visit.number("after", 0) or 0
    if visit.asked("newest") == "1":
        after = max(head.position - PER_PAGE, 0)
    stored = audit.read(after, PER_PAGE + 1, where)
    cut = stored[:PER_PAGE]
    data = {
        "filters": {name: visit.asked(name) for name in _FIELDS},
        "kinds": sorted(EVENT_TYPES),
        "head": {"position": head.position, "hash": head.hash},
        "verification": _verification(visit),
        "entries": [
            {"position": one.position, "at": one.event.at, "kind": one.event.kind, "hash": one.hash,
             "about": _about(one.event), "event": to_json(one.event)}
            for one in cut
        ],
        "next_cursor": cursor_of(cut[-1].position) if len(stored) > PER_PAGE else None,
        "after": after,
    }  # fmt: skip
    return View("audit.html", "Audit log", data, watch=False)


def _where(visit: Visit) -> AuditFilter:
    kind, cluster = visit.asked("kind"), visit.asked("cluster") or visit.caller.cluster or ""
    if kind and kind not in EVENT_TYPES:
        raise Problem("malformed_parameter", f"kind={kind!r}: choose from {', '.join(EVENT_TYPES)}")
    if cluster and not visit.sees(cluster):
        raise Problem("forbidden", f"the token is for cluster {visit.caller.cluster!r}, not {cluster!r}")
    return AuditFilter(
        kinds=(kind,) if kind else (),
        since=visit.moment("since"),
        until=visit.moment("until"),
        cluster=ClusterId(cluster) if cluster else None,
        workload=WorkloadId(visit.asked("workload")) if visit.asked("workload") else None,
        attempt=AttemptId(visit.asked("attempt")) if visit.asked("attempt") else None,
        incident=IncidentId(visit.asked("incident")) if visit.asked("incident") else None,
        recommendation=RecommendationId(visit.asked("recommendation")) if visit.asked("recommendation") else None,
        node=NodeName(visit.asked("node")) if visit.asked("node") else None,
        actor=visit.asked("actor") or None,
    )


def _verification(visit: Visit) -> dict[str, Any] | None:
    """Walks the whole chain, and so only when asked to."""
    if visit.asked("verify") != "1":
        return None
    return verify_audit(VerifyAsk(), visit.app).model_dump(mode="json")


def _about(event: Any) -> str:
    """The most telling name in an event."""
    for name in ("workload", "node", "pack", "target", "detector", "model", "attempt", "version"):
        if (said := getattr(event, name, None)) is not None:
            return str(said)
    return ""
