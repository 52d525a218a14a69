# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The page behind a link in a chat: it shows what an answer would do, and only its form answers."""

from __future__ import annotations

from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from relight.incidents import RecommendationState
from service.advisor import is_overdue
from service.answer_links import AnswerLink, NotOurs
from service.api.problems import Problem
from service.application import Application
from service.records import RecommendationRecord
from service.web import telling
from service.web.forms import form_of
from service.web.rendering import Renderer
from service.web.sessions import Sessions
from service.web.templating import words
from service.web.visits import View

ANSWERS = ("approve", "reject")
MAX_NOTE = 2_000


class AnswerPage:
    """Looking changes nothing, however often and by whomever: programs that draw previews look too.

    Errors: Problem forbidden for a link that is not ours, superseded, already_answered, too_late or not_actionable
    for one that is worth nothing any more.
    """

    def __init__(self, app: Application, sessions: Sessions, renderer: Renderer) -> None:
        self._app = app
        self._sessions = sessions
        self._renderer = renderer

    async def show(self, request: Request) -> Response:
        return await run_in_threadpool(self._shown, request)

    async def take(self, request: Request) -> Response:
        form = await form_of(request)
        return await run_in_threadpool(self._taken, request, form)

    def _shown(self, request: Request) -> Response:
        token = str(request.path_params["token"])
        link = self._link(token)
        with self._app.journal.view:
            known = self._standing(link)
            view = View("answer.html", "Approve or reject", self._told(known, link), watch=False)
        return self._renderer.answer(request, view, None, token)

    def _taken(self, request: Request, form: dict[str, str]) -> Response:
        token = str(request.path_params["token"])
        link = self._link(token)
        self._sessions.require_proof(request, token, form.get("proof", ""))
        answer, note = form.get("answer", ""), _note(form)
        if answer not in ANSWERS:
            raise Problem("invalid", f"no answer {answer!r}, choose from {', '.join(ANSWERS)}")
        approval = self._app.approval
        with self._app.journal.lock:  # so that two who press at once are not both told that it was them
            known = self._standing(link)
            done = approval.approve if answer == "approve" else approval.reject
            known = done(known.id, link.actor, note, link.generation)
        data = {"answer": answer, "actor": link.actor, "workload": known.issued.workload,
                "action": telling.action_words(known), "incident": known.issued.incident}  # fmt: skip
        view = View("answered.html", "Answered", data, watch=False)
        return self._renderer.answer(request, view, None, token)

    def _link(self, token: str) -> AnswerLink:
        links = self._app.links
        if links is None:
            raise Problem("not_found", "no channel of this service has links that answer")
        try:
            return links.read(token)
        except NotOurs as why:
            raise Problem("forbidden", str(why)) from why

    def _standing(self, link: AnswerLink) -> RecommendationRecord:
        """The recommendation, if this link may still answer it."""
        known, now = self._app.journal.state.recommendations.get(link.recommendation), self._app.journal.now()
        if known is None:
            raise Problem("not_found", "what this link was for is not on record here")
        _require_current(known, link)
        if now >= link.expires_at or is_overdue(known, now) or known.state is RecommendationState.EXPIRED:
            ended = _clock(min(link.expires_at, known.issued.expires_at))
            raise Problem("too_late", f"the time to answer ended at {ended}; normal scheduling goes on")
        if known.state is not RecommendationState.PROPOSED:
            raise Problem("already_answered", f"it is {words(known.state.value)} already")
        others = [gate for gate in self._app.gates.blocked_by(known, now) if gate != "awaiting_approval"]
        if others:
            raise Problem("not_actionable", f"nobody would act on an answer: {', '.join(map(words, others))}")
        return known

    def _told(self, known: RecommendationRecord, link: AnswerLink) -> dict[str, object]:
        issued, state = known.issued, self._app.journal.state
        incident = state.incidents.get(issued.incident) if issued.incident is not None else None
        said = telling.attribution_of(self._app, incident, known) if incident is not None else None
        return {
            "recommendation": known.id,
            "generation": known.generation,
            "workload": issued.workload,
            "cluster": issued.cluster,
            "attempt": issued.attempt,
            "failure": issued.failure,
            "where": telling.where_words(said, state.attempts.get(issued.attempt)),
            "evidence_status": issued.evidence_status.value,
            "action": telling.action_words(known),
            "reason": issued.reason,
            "exclusions": [{"node": one.node, "reason": one.reason} for one in issued.exclusions],
            "answer_by": issued.expires_at,
            "held_until": issued.decide_deadline,
            "channel": link.channel,
            "actor": link.actor,
        }


def _require_current(known: RecommendationRecord, link: AnswerLink) -> None:
    answered = known.approved or known.rejected
    if known.generation != link.generation or known.state is RecommendationState.SUPERSEDED:
        raise Problem(
            "superseded", "the advice was revised since this link was sent: a newer message has the newer link"
        )
    if answered is not None:
        verb = "approved" if known.approved is not None else "rejected"
        raise Problem("already_answered", f"it was {verb} by {answered.actor} at {_clock(answered.at)}")


def _note(form: dict[str, str]) -> str:
    """Who they say they are goes into the note: all that is known is the channel."""
    name, note = form.get("name", "").strip()[:100], form.get("note", "").strip()
    if len(note) > MAX_NOTE:
        raise Problem("malformed_parameter", f"note is longer than {MAX_NOTE} characters")
    return "; ".join(one for one in (f"says to be {name}" if name else "", note) if one)


def _clock(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
