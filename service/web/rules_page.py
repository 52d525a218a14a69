# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rules as they proved themselves: what fired, what people said of it, and when the rules last changed."""

from __future__ import annotations

from typing import Any

from relight.events import FeedbackVerdict, PackLoaded
from relight.ports import AuditFilter
from service.web.visits import View, Visit


def show_rules(visit: Visit) -> View:
    wanted = visit.asked("q").lower()
    with visit.app.journal.view:
        fired = _fired(visit)
    rows = [one for one in fired.values() if wanted in f"{one['signature']} {one['failure']} {one['title']}".lower()]
    rows.sort(key=lambda one: (-one["roots"], -one["lost"], one["signature"]))
    data = {
        "filters": {"q": visit.asked("q")},
        "digest": visit.app.rules_digest(),
        "policy_version": visit.app.policies.current().version,
        "changes": _changes(visit),
        "signatures": rows,
    }
    return View("rules.html", "Rules", data)


def _fired(visit: Visit) -> dict[str, dict[str, Any]]:
    """By signature: how often it was the root, how often it lost, and what people said afterwards."""
    state, found = visit.app.journal.state, dict[str, dict[str, Any]]()
    for made in state.attributions.values():
        newest = made[-1].event
        if not visit.sees(newest.cluster):
            continue
        root = newest.attribution.get("root")
        if root:
            row = _row(found, str(root.get("signature", "")), str(root.get("failure", "")), str(root.get("title", "")))
            row["roots"] += 1
            row["last_at"] = max(row["last_at"] or newest.at, newest.at)
        for loser in {str(one.get("signature", "")): one for one in newest.attribution.get("losers", ())}.values():
            _row(found, str(loser.get("signature", "")), str(loser.get("failure", "")), "")["lost"] += 1
    for known in state.recommendations.values():
        if known.issued.signature is None or not visit.sees(known.issued.cluster):
            continue
        row = _row(found, known.issued.signature, known.issued.failure, "")
        latest = {one.actor: one.verdict for one in known.feedback}
        row["right"] += sum(one is FeedbackVerdict.RIGHT for one in latest.values())
        row["wrong"] += sum(one is FeedbackVerdict.WRONG for one in latest.values())
    for row in found.values():
        labelled = row["right"] + row["wrong"]
        row["precision"] = round(row["right"] / labelled, 3) if labelled else None
    return found


def _row(found: dict[str, dict[str, Any]], signature: str, failure: str, title: str) -> dict[str, Any]:
    row = found.setdefault(
        signature,
        {"signature": signature, "failure": failure, "title": "", "roots": 0, "lost": 0, "right": 0, "wrong": 0,
         "precision": None, "last_at": None},
    )  # fmt: skip
    row["title"] = row["title"] or title
    return row


def _changes(visit: Visit) -> list[dict[str, Any]]:
    """Starts that brought other rules than the one before, the newest first."""
    stored = visit.app.journal.audit.read(0, 5_000, AuditFilter(kinds=(PackLoaded.kind,)))
    found, before = list[dict[str, Any]](), ""
    for one in stored:
        event = one.event
        if isinstance(event, PackLoaded) and event.digest != before:
            before = event.digest
            found.append({"at": event.at, "pack": event.pack, "digest": event.digest, "signatures": event.signatures,
                          "source": event.source, "actor": event.actor})  # fmt: skip
    return list(reversed(found))[:50]
