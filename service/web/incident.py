# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One incident: what, where, why and what next, with the lines that say so and the buttons to answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from relight.events import to_json
from relight.incidents import RecommendationState
from relight.jsonform import encode
from relight.ports import AuditFilter, StoredEvent
from relight.types import Action, Attribution, Evidence
from service.api.access import incident_of
from service.api.incidents import explain_incident
from service.api.recommendation_wire import recommendation_told
from service.records import IncidentRecord, RecommendationRecord
from service.tokens import Permission
from service.web import incident_markdown, silences_page, telling
from service.web.incident_timeline import KINDS, stations
from service.web.templating import words
from service.web.visits import View, Visit

_MAX_EVENTS = 1_000
_ANSWERABLE = frozenset({RecommendationState.PROPOSED})
_DONE = ("approved", "rejected", "noted", "proposed", "silenced")


def show_incident(visit: Visit) -> View | Response:
    """The page, its JSON twin, and with `.md` the text to paste into a ticket."""
    known = incident_of(visit.caller, visit.app, visit.part("incident"))
    events = _events(visit, known)
    with visit.app.journal.view:
        data = _data(visit, known, events)
    if visit.request.scope.get("relight_twin") == ".md":
        return Response(incident_markdown.as_markdown(data), media_type="text/markdown; charset=utf-8")
    return View("incident.html", f"Incident {data['headline']}", data)


def _data(visit: Visit, known: IncidentRecord, events: list[StoredEvent]) -> dict[str, Any]:
    app, now, opened = visit.app, visit.now, known.opened
    attempt = app.journal.state.attempts.get(opened.attempt)
    advice = telling.advice_on(app, known)
    said = telling.attribution_of(app, known, advice)
    why = explain_incident(known.id, visit.caller, app)
    told = why.model_dump(mode="python", by_alias=True, exclude={"incident", "anomalies", "recommendation", "root"})
    what = words(said.failure) if said is not None else opened.summary or "not attributed yet"
    where = telling.where_words(said, attempt)
    done = visit.asked("done")
    return {
        "id": known.id,
        "headline": f"{what} on {where}",
        "state": known.state.value,
        "is_open": known.is_open,
        "workload": opened.workload,
        "attempt": opened.attempt,
        "cluster": opened.cluster,
        "onset_at": opened.onset_at,
        "opened_at": opened.at,
        "changed_at": known.changed_at,
        "recurrence_of": opened.recurrence_of,
        "what": what,
        "where": where,
        "because": _because(said, advice),
        "policy_reason": advice.issued.reason if advice is not None else "",
        "advice": telling.action_words(advice),
        "next": telling.next_step(app, known, advice, now),
        "evidence": _evidence(said),
        "anomalies": [one.model_dump(mode="python") for one in why.anomalies],
        "why": told,
        "timeline": [{"name": one.name, "at": one.at, "by": one.by, "after_s": one.after_s}
                     for one in stations(stored.event for stored in events)],
        "recommendation": recommendation_told(app, advice, now).model_dump(mode="python", by_alias=True)
        if advice is not None else None,
        "stage": telling.stage_of(app, known, advice).value if advice is not None else None,
        "answers": _answers(visit, advice),
        "silenced_by": silences_page.standing_on(app, known),
        "silence_choices": silences_page.choices(app, known) if visit.may(Permission.OPERATE) else [],
        "spans": list(silences_page.SPANS),
        "feedback": [{"verdict": one.verdict.value, "actor": one.actor, "true_failure": one.true_failure,
                      "note": one.note, "at": one.at} for one in (advice.feedback if advice is not None else ())],
        "answered": _answered(advice),
        "done": done if done in _DONE else "",
        "events": [{"position": one.position, "at": one.event.at, "kind": one.event.kind,
                    "event": to_json(one.event)} for one in events[-200:]],
    }  # fmt: skip


def _events(visit: Visit, known: IncidentRecord) -> list[StoredEvent]:
    """What bears on this incident: its own events, and the attributions of its attempt."""
    audit = visit.app.journal.audit
    own = audit.read(0, _MAX_EVENTS, AuditFilter(incident=known.id, kinds=KINDS))
    made = audit.read(0, _MAX_EVENTS, AuditFilter(attempt=known.opened.attempt, kinds=("attribution.made",)))
    by_position = {one.position: one for one in (*own, *made)}
    return [by_position[position] for position in sorted(by_position)]


def _because(said: Attribution | None, advice: RecommendationRecord | None) -> str:
    """The line that decides, else what was measured, else the policy's own reason."""
    if said is not None and said.root is not None:
        return f"{said.root.title} ({said.root.where.file}:{said.root.where.line})"
    if said is not None and said.summary:
        return said.summary
    return words(advice.issued.reason) if advice is not None else ""


def _evidence(said: Attribution | None) -> list[dict[str, Any]]:
    """The root with its text and what matched in it; of confirmations only the place is kept."""
    if said is None:
        return []
    found = [_line(said.root, "root")] if said.root is not None else []
    found += [
        {"role": "confirmation", "file": one.file, "line": one.line, "text": "", "span": (0, 0), "title": "",
         "signature": None}
        for one in said.confirmations
    ]  # fmt: skip
    return found


def _line(one: Evidence, role: str) -> dict[str, Any]:
    return {
        "role": role,
        "file": one.where.file,
        "line": one.where.line,
        "text": one.text,
        "span": one.span,
        "title": one.title,
        "signature": one.signature,
        "stream": one.stream.value,
        "at": one.at,
        "node": one.node,
        "rank": one.rank,
        "count": one.count,
        "captures": encode(one.captures),
        "does_not_prove": one.does_not_prove,
    }


def _answers(visit: Visit, advice: RecommendationRecord | None) -> Mapping[str, bool]:
    """Which buttons there are for this caller now."""
    is_open = advice is not None and advice.state in _ANSWERABLE and visit.now < advice.issued.expires_at
    acts = advice is not None and advice.issued.action not in {Action.CONTINUE, Action.NO_DECISION}
    return {
        "approve": is_open and acts and visit.may(Permission.OPERATE),
        "reject": is_open and visit.may(Permission.OPERATE),
        "override": visit.may(Permission.ADVISE)
        and advice is not None
        and not (advice.state.is_open or advice.is_acted_on),
        "feedback": advice is not None and visit.may(Permission.FEEDBACK),
    }


def _answered(advice: RecommendationRecord | None) -> dict[str, Any] | None:
    said = (advice.approved or advice.rejected) if advice is not None else None
    if advice is None or said is None:
        return None
    verb = "approved" if advice.approved is not None else "rejected"
    return {"verb": verb, "actor": said.actor, "note": said.note, "at": said.at}
