# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Silences: which messages are muted, by whom, why and until when; set from here or from an incident."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from starlette.responses import RedirectResponse, Response

from relight.types import ClusterId
from service.api.access import cluster_of, incident_of
from service.api.problems import Problem
from service.api.silences import SilenceAsk, matchers_of, silence_of, silence_told
from service.application import Application
from service.records import IncidentRecord
from service.silencing import silences_on, topic_of
from service.tokens import Permission
from service.web import telling
from service.web.templating import address
from service.web.visits import PER_PAGE, View, Visit

SPANS = {"1h": timedelta(hours=1), "4h": timedelta(hours=4), "1d": timedelta(days=1), "7d": timedelta(days=7),
         "30d": timedelta(days=30)}  # fmt: skip
_FIELDS = {"workload": "workload_id", "node": "node", "failure": "failure", "signature": "signature_id"}


def show_silences(visit: Visit) -> View:
    cluster, with_over = visit.asked("cluster"), visit.asked("over") == "1"
    with visit.app.journal.view:
        now = visit.now
        found = [
            one
            for one in reversed(visit.app.journal.state.silences.values())
            if visit.sees(one.silence.cluster)
            and cluster in ("", one.silence.cluster)
            and (with_over or one.stands(now))
        ]
        data = {
            "filters": {"cluster": cluster, "over": with_over},
            "clusters": telling.clusters(visit.app, visit.caller),
            "silences": [silence_told(visit.app, one).model_dump(mode="python") for one in found[:PER_PAGE]],
            "found": len(found),
            "spans": list(SPANS),
            "may_set": visit.may(Permission.OPERATE),
            "done": visit.asked("done") if visit.asked("done") in {"silenced", "ended"} else "",
        }
    return View("silences.html", "Silences", data)


def silence(visit: Visit) -> Response:
    """A silence by what was typed in; at least one matcher."""
    cluster = cluster_of(visit.caller, visit.app, visit.said("cluster") or None)
    _add(visit, cluster, {name: visit.said(name) for name in _FIELDS if visit.said(name)})
    return _to(address(visit.root, "/silences", done="silenced"))


def silence_incident(visit: Visit) -> Response:
    """A silence by one thing that the incident is about."""
    known = incident_of(visit.caller, visit.app, visit.part("incident"))
    name, _, value = visit.said("about").partition(":")
    with visit.app.journal.view:
        offered = choices(visit.app, known)
    if (name, value) not in {(one["by"], one["value"]) for one in offered}:
        raise Problem("invalid", f"the incident is not about {name} {value!r}: look at the page again")
    _add(visit, cluster_of(visit.caller, visit.app, known.opened.cluster), {name: value})
    return _to(address(visit.root, f"/incidents/{known.id}", done="silenced"))


def end(visit: Visit) -> Response:
    known = silence_of(visit.caller, visit.app, visit.part("silence"))
    visit.app.silences.end(known.id, visit.caller.client, visit.said("reason"))
    return _to(address(visit.root, "/silences", done="ended"))


def choices(app: Application, known: IncidentRecord) -> list[dict[str, str]]:
    """What this incident could be silenced by."""
    topic = topic_of(app.journal.state, known)
    named = [("workload", topic.workload), ("failure", topic.failure), ("signature", topic.signature),
             *(("node", one) for one in sorted(topic.nodes)[:8])]  # fmt: skip
    return [{"by": by, "value": str(value)} for by, value in named if value is not None]


def standing_on(app: Application, known: IncidentRecord) -> list[dict[str, Any]]:
    found = silences_on(app.journal.state, known, app.journal.now())
    return [{"id": one.id, "about": str(one.silence.matchers), "actor": one.silence.actor, "reason": one.silence.reason,
             "ends_at": one.silence.ends_at} for one in found]  # fmt: skip


def _add(visit: Visit, cluster: str, said: dict[str, str]) -> None:
    span = SPANS.get(visit.said("for"))
    if span is None:
        raise Problem("invalid", f"no time {visit.said('for')!r}, choose from {', '.join(SPANS)}")
    try:
        ask = SilenceAsk.model_validate(
            {_FIELDS[name]: value for name, value in said.items()}
            | {"ends_at": visit.now + span, "actor": visit.caller.client, "reason": visit.said("reason")}
        )
    except ValueError as why:
        raise Problem("invalid", f"silence: {why}") from why
    visit.app.silences.add(ClusterId(cluster), matchers_of(ask), ask.ends_at, ask.actor, ask.reason)


def _to(target: str) -> Response:
    return RedirectResponse(target, 303, headers={"Cache-Control": "no-store"})
