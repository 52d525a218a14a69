# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Nodes under suspicion, and the dossier of one: who accused it, what keeps it out, what ran there."""

from __future__ import annotations

from typing import Any

from relight.ports import AuditFilter
from relight.suspects import PRIOR, Suspicion
from relight.types import NodeName
from service.records import ExclusionRecord
from service.tokens import Permission
from service.web.visits import PER_PAGE, View, Visit

_RECENT = 50


def show_all(visit: Visit) -> View:
    wanted, cluster = visit.asked("q").lower(), visit.asked("cluster")
    with visit.app.journal.view:
        state, now = visit.app.journal.state, visit.now
        seen = [one for one in state.past.suspicion if visit.sees(one) and cluster in ("", one)]
        suspected = {(owner, node): score for owner in seen for node, score in state.past.suspicion[owner].ranked(now)}
        standing = [
            one for one in state.exclusions.values()
            if one.stands(now) and visit.sees(one.cluster) and cluster in ("", one.cluster)
        ]  # fmt: skip
        for one in standing:
            suspected.setdefault((one.cluster, one.exclusion.node), PRIOR)
        excluded = {(one.cluster, one.exclusion.node): one.exclusion.expires_at for one in standing}
        rows = [
            {
                "node": node,
                "cluster": owner,
                "suspicion": round(score, 4),
                "accused": _times(state.past.suspicion.get(owner), node),
                "excluded_until": excluded.get((owner, node)),
            }
            for (owner, node), score in suspected.items()
            if wanted in node.lower()
        ]
    rows.sort(key=lambda row: (row["excluded_until"] is None, -float(str(row["suspicion"])), str(row["node"])))
    data = {
        "filters": {"q": visit.asked("q"), "cluster": cluster},
        "prior": PRIOR,
        "found": len(rows),
        "nodes": rows[:PER_PAGE],
    }
    return View("nodes.html", "Nodes", data)


def show_nodes(visit: Visit) -> View:
    node, cluster = NodeName(visit.part("node")), visit.asked("cluster")
    app = visit.app
    with app.journal.view:
        state, now = app.journal.state, visit.now
        owners = sorted(
            {one.seen.cluster for one in state.attempts.values() if node in one.seen.nodes}
            | {one.cluster for one in state.exclusions.values() if one.exclusion.node == node}
            | {owner for owner, known in state.past.suspicion.items() if node in known.records}
        )
        owners = [one for one in owners if visit.sees(one) and cluster in ("", one)]
        accusations: list[dict[str, Any]] = [
            {"at": one.at, "cluster": one.cluster, "source": one.source, "failure": one.failure,
             "is_independent": one.is_independent, "workload": one.workload, "attempt": one.attempt}
            for one in state.past.accusations if one.node == node and one.cluster in owners
        ]  # fmt: skip
        standing = [
            _exclusion(one) for one in state.exclusions.values()
            if one.exclusion.node == node and one.stands(now) and one.cluster in owners
        ]  # fmt: skip
        ran = sorted(
            (one for one in state.attempts.values() if node in one.seen.nodes and one.seen.cluster in owners),
            key=lambda one: -one.position,
        )
        attempts = [
            {"attempt": one.id, "workload": one.seen.workload, "state": one.seen.state.value,
             "since": one.first_seen_at, "ended_at": one.ended_at, "was_named": node in one.seen.failed_nodes}
            for one in ran[:_RECENT]
        ]  # fmt: skip
        suspicion = [{"cluster": one, **_suspicion(state.past.suspicion.get(one), node, now)} for one in owners]
    data = {
        "node": node,
        "filters": {"cluster": cluster},
        "done": visit.asked("done") if visit.asked("done") == "pardoned" else "",
        "prior": PRIOR,
        "suspicion": suspicion,
        "accusations": sorted(accusations, key=lambda one: one["at"], reverse=True)[:PER_PAGE],
        "exclusions": standing,
        "attempts": attempts,
        "attempts_in_all": len(ran),
        "may_pardon": visit.may(Permission.OPERATE),
        "history": _history(visit, node, cluster),
    }
    return View("node.html", f"Node {node}", data)


def _times(known: Suspicion | None, node: NodeName) -> int:
    record = known.records.get(node) if known is not None else None
    return record.times if record is not None else 0


def _suspicion(known: Suspicion | None, node: NodeName, at: Any) -> dict[str, Any]:
    if known is None:
        return {"probability": PRIOR, "accused": 0, "workloads": []}
    return {
        "probability": round(known.probability(node, at), 4),
        "accused": _times(known, node),
        "workloads": list(known.workloads(node)),
    }


def _exclusion(one: ExclusionRecord) -> dict[str, Any]:
    return {
        "cluster": one.cluster,
        "scope": one.exclusion.scope,
        "workload": one.workload,
        "reason": one.exclusion.reason,
        "score": one.exclusion.score,
        "source": one.exclusion.source,
        "actor": one.actor,
        "evidence": list(one.evidence),
        "added_at": one.added_at,
        "expires_at": one.exclusion.expires_at,
    }


def _history(visit: Visit, node: NodeName, cluster: str) -> list[dict[str, Any]]:
    """What the record says of its exclusions, the newest first."""
    kinds = ("exclusion.added", "exclusion.pardoned", "exclusion.expired")
    found = visit.app.journal.audit.read(0, 500, AuditFilter(node=node, kinds=kinds))
    return [
        {"at": one.event.at, "kind": one.event.kind, "position": one.position,
         "actor": getattr(one.event, "actor", ""), "scope": _scope(one.event)}
        for one in reversed(found)
        if visit.sees(owner := getattr(one.event, "cluster", None)) and cluster in ("", owner)
    ][:_RECENT]  # fmt: skip


def _scope(event: Any) -> str:
    exclusion = getattr(event, "exclusion", None)
    return str(exclusion.scope if exclusion is not None else getattr(event, "scope", ""))
