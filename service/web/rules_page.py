# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rules as they proved themselves: every loaded signature, what fired, what people said of it, what changed when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

from relight.events import FeedbackVerdict, PackLoaded, PackRefused
from relight.ports import AuditFilter
from rules.schema import Signature
from service.rule_origins import state_of
from service.rules_store import ActiveRules
from service.web.visits import PER_PAGE, View, Visit


class Kind(StrEnum):
    SIGNATURE = "signature"
    PROGRESS = "progress"


class Fired(StrEnum):
    YES = "yes"
    NO = "no"


class State(StrEnum):
    """Changed: by an overlay. Off: by an overlay, or deprecated. Unknown: it fired and is no longer loaded."""

    IN_FORCE = "in_force"
    CHANGED = "changed"
    SILENCED = "silenced"
    TRIAL = "trial"
    OFF = "off"
    UNKNOWN = "unknown"


def show_rules(visit: Visit) -> View:
    filters = {
        "q": visit.asked("q"), "pack": visit.asked("pack"), "kind": visit.choice("kind", Kind) or "",
        "fired": visit.choice("fired", Fired) or "", "state": visit.choice("state", State) or "",
    }  # fmt: skip
    number = visit.number("page", 1) or 1
    with visit.app.journal.view:
        fired = _fired(visit)
    rules = visit.app.rules.current
    every = [*_loaded(visit, rules, fired), *_forgotten(rules, fired)]
    rows = [one for one in every if _is_asked(one, filters)]
    rows.sort(key=lambda one: (-one["roots"], -one["lost"], one["signature"]))
    cut = (number - 1) * PER_PAGE
    data = {
        "filters": filters,
        "packs": sorted({one["pack"] for one in every}),
        "kinds": list(Kind),
        "states": list(State),
        "digest": rules.digest,
        "policy_version": visit.app.policies.current().version,
        "last_reload": _reload(visit),
        "changes": _changes(visit),
        "totals": _totals(every),
        "found": len(rows),
        "page": number,
        "next_page": number + 1 if cut + PER_PAGE < len(rows) else None,
        "signatures": rows[cut : cut + PER_PAGE],
    }
    return View("rules.html", "Rules", data)


def _totals(every: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    return {
        "loaded": sum(one["state"] not in (State.OFF, State.UNKNOWN) for one in every),
        "fired": sum(one["has_fired"] for one in every),
        "changed": sum(bool(one["overlays"]) for one in every),
        "silenced": sum(one["state"] == State.SILENCED for one in every),
        "off": sum(one["state"] == State.OFF for one in every),
    }


def _is_asked(one: Mapping[str, Any], filters: Mapping[str, str]) -> bool:
    text = f"{one['signature']} {one['failure']} {one['title']}".lower()
    return (
        filters["q"].lower() in text
        and filters["pack"] in ("", one["pack"])
        and filters["kind"] in ("", one["kind"])
        and filters["state"] in ("", one["state"])
        and filters["fired"] in ("", Fired.YES if one["has_fired"] else Fired.NO)
    )


def _loaded(visit: Visit, rules: ActiveRules, fired: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    checked = rules.checked
    for signature in checked.signatures:
        touches = [one for one in checked.touches if one.signature == signature.id]
        silences = [one for target, one in rules.quiet.items() if target.partition("#")[0] == signature.id]
        known = fired.get(signature.id) or _row(signature.id)
        yield {
            **known,
            "kind": signature.kind,
            "title": signature.title,
            "failure": signature.failure if signature.table is None else known["failure"],
            "role": signature.role,
            "severity": signature.severity,
            "state": _state(signature, rules, bool(touches)),
            "state_told": state_of(signature, touches, silences, visit.now),
            "overlays": [
                {"target": t.target, "field": t.field, "value": t.value, "before": t.before, "file": t.file,
                 "line": t.line, "reason": t.reason, "is_in_force": t.is_in_force}
                for t in touches
            ],
            "silences": [
                {"target": q.target, "until": q.until, "reason": q.reason, "author": q.author, "file": q.file,
                 "line": q.line}
                for q in silences
            ],
            "changed_at": rules.changed.get(signature.id),
            "file": checked.homes.get(signature.id, ""),
        }  # fmt: skip


def _forgotten(rules: ActiveRules, fired: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """What fired by an earlier rule set or an attributor of the site's own."""
    names = {one.id for one in rules.checked.signatures}
    for name, row in fired.items():
        if name not in names:
            yield {**row, "state": State.UNKNOWN, "state_told": "not loaded (any more)",
                   "changed_at": rules.changed.get(name)}  # fmt: skip


def _state(signature: Signature, rules: ActiveRules, is_touched: bool) -> State:
    if signature.id in rules.checked.disabled or signature.maturity == "deprecated":
        return State.OFF
    if signature.id in rules.quiet:
        return State.SILENCED
    if signature.maturity != "stable":
        return State.TRIAL
    return State.CHANGED if is_touched else State.IN_FORCE


def _fired(visit: Visit) -> dict[str, dict[str, Any]]:
    """By signature: how often it was the root, how often it lost, and what people said afterwards."""
    state, found = visit.app.journal.state, dict[str, dict[str, Any]]()
    for made in state.attributions.values():
        newest = made[-1].event
        if not visit.sees(newest.cluster):
            continue
        root = newest.attribution.get("root")
        if root:
            row = _found(found, root)
            row["roots"] += 1
            row["last_at"] = max(row["last_at"] or newest.at, newest.at)
        for loser in {str(one.get("signature", "")): one for one in newest.attribution.get("losers", ())}.values():
            _found(found, loser)["lost"] += 1
    for known in state.recommendations.values():
        if known.issued.signature is None or not visit.sees(known.issued.cluster):
            continue
        row = _found(found, {"signature": known.issued.signature, "failure": known.issued.failure})
        latest = {one.actor: one.verdict for one in known.feedback}
        row["right"] += sum(one is FeedbackVerdict.RIGHT for one in latest.values())
        row["wrong"] += sum(one is FeedbackVerdict.WRONG for one in latest.values())
    for row in found.values():
        labelled = row["right"] + row["wrong"]
        row["precision"] = round(row["right"] / labelled, 3) if labelled else None
    return found


def _found(found: dict[str, dict[str, Any]], said: Mapping[str, Any]) -> dict[str, Any]:
    """The row of a signature; what one code of a table did is counted with it, and the codes are named."""
    name, _, code = str(said.get("signature", "")).partition("#")
    row = found.setdefault(name, _row(name))
    row["has_fired"] = True
    row["failure"] = row["failure"] or str(said.get("failure", ""))
    row["title"] = row["title"] or str(said.get("title", ""))
    if code and code not in row["codes"]:
        row["codes"] = sorted([*row["codes"], code])
    return row


def _row(name: str) -> dict[str, Any]:
    return {
        "signature": name, "pack": name.partition(".")[0], "kind": Kind.SIGNATURE, "failure": "", "title": "",
        "role": "", "severity": "", "codes": [], "has_fired": False, "roots": 0, "lost": 0, "right": 0, "wrong": 0,
        "precision": None, "last_at": None, "state": State.IN_FORCE, "state_told": "", "overlays": [], "silences": [],
        "changed_at": None, "file": "",
    }  # fmt: skip


def _reload(visit: Visit) -> dict[str, Any]:
    """Whether the newest files are in force; what their faults are, for who may see the audit log anyway."""
    last = visit.app.rules.last_reload
    return {"is_good": last.is_good, "problems": [str(one) for one in last.problems[:20]]}


def _changes(visit: Visit) -> list[dict[str, Any]]:
    """Rule sets that came into force, and changes that were refused, the newest first."""
    kinds = (PackLoaded.kind, PackRefused.kind)
    stored = visit.app.journal.audit.read(0, 5_000, AuditFilter(kinds=kinds))
    found, before = list[dict[str, Any]](), ""
    for one in stored:
        event = one.event
        if isinstance(event, PackRefused):
            found.append({"at": event.at, "pack": event.pack, "digest": event.digest, "signatures": None,
                          "source": event.source, "actor": event.actor, "refused": list(event.first)})  # fmt: skip
        elif isinstance(event, PackLoaded) and event.digest != before:
            before = event.digest
            found.append({"at": event.at, "pack": event.pack, "digest": event.digest, "signatures": event.signatures,
                          "source": event.source, "actor": event.actor, "refused": []})  # fmt: skip
    return list(reversed(found))[:50]
