# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What people answer from the console: the same commands as in the API, spoken by the session's own client."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import timedelta

from starlette.responses import RedirectResponse, Response

from relight.events import FeedbackVerdict
from relight.types import Action, Exclusion, FailureName, NodeName, Trigger, WorkloadId
from service.advisor import Request as AdviceRequest
from service.api.access import attempt_of, cluster_of, incident_of, recommendation_of
from service.api.approvals import FeedbackAsk
from service.api.problems import Problem
from service.approval import Feedback
from service.records import RecommendationRecord
from service.verdicts import Proposal
from service.web.templating import address
from service.web.visits import Visit

_PROPOSABLE = (Action.RESTART, Action.RESTART_EXCLUDING, Action.STOP)


def approve(visit: Visit) -> Response:
    """Clears the way for a controller, for the generation that was looked at."""
    return _answered(visit, visit.app.approval.approve, "approved")


def reject(visit: Visit) -> Response:
    return _answered(visit, visit.app.approval.reject, "rejected")


def feedback(visit: Visit) -> Response:
    known = recommendation_of(visit.caller, visit.app, visit.part("recommendation"))
    try:
        ask = FeedbackAsk(
            actor=visit.caller.client,
            verdict=FeedbackVerdict(visit.said("verdict")),
            true_failure=visit.said("true_failure") or None,
            note=visit.said("note"),
        )
    except ValueError as why:
        raise Problem("invalid", f"feedback: {why}") from why
    true = FailureName(ask.true_failure) if ask.true_failure else None
    said = Feedback(verdict=ask.verdict, actor=ask.actor, true_failure=true, note=ask.note)
    visit.app.approval.feedback(known.id, said)
    return _back(visit, known, "noted")


def override(visit: Visit) -> Response:
    """A person's own proposal; it passes the same gates as a verdict of policy.

    Sent twice it is one proposal: the key is made of what was said and of what it answers.
    """
    app, attempt = visit.app, attempt_of(visit.caller, visit.app, visit.part("attempt"))
    action = _action(visit.said("action"))
    nodes = [one for one in visit.said("nodes").replace(",", " ").split() if one]
    if bool(nodes) != (action is Action.RESTART_EXCLUDING):
        raise Problem("invalid", "nodes go with the action restart_excluding, and only with that one")
    until = app.journal.now() + timedelta(seconds=app.settings.recommend.exclusion_ttl_s)
    who = visit.caller.client
    proposal = Proposal(
        action=action,
        exclusions=tuple(
            Exclusion(node=NodeName(one), reason=visit.said("note") or "proposed by a person", score=1.0,
                      expires_at=until, source=f"person:{who}")
            for one in nodes[:64]
        ),
        author=who,
    )  # fmt: skip
    question = "/".join((attempt.seen.cluster, attempt.id, action, *nodes, visit.said("generation")))
    digest = hashlib.sha256(question.encode()).hexdigest()
    ask = AdviceRequest(
        attempt=attempt.id, trigger=Trigger.MANUAL, key=f"console:{digest}", body_sha256=digest, actor=who
    )
    made = app.advisor.advise(ask, proposal).recommendation
    incident = visit.said("incident")
    if made.issued.incident is None and incident:  # the incident is over: go back to where the person was
        return _to(address(visit.root, f"/incidents/{incident_of(visit.caller, app, incident).id}", done="proposed"))
    return _back(visit, made, "proposed")


def pardon(visit: Visit) -> Response:
    """Lets a node back in; what was held against it is forgotten too."""
    node, scope, reason = NodeName(visit.part("node")), visit.said("scope"), visit.said("reason")
    cluster = cluster_of(visit.caller, visit.app, visit.said("cluster") or None)
    workload = WorkloadId(visit.said("workload")) if visit.said("workload") else None
    if not reason:
        raise Problem("invalid", "a pardon needs a reason: the next one who looks must know why")
    with visit.app.journal.lock:
        known = visit.app.operation.standing(cluster, scope, workload, node)
        if known is None:
            raise Problem("not_found", f"node {node!r} is not excluded for this {scope or 'scope'}")
        visit.app.operation.pardon(known, visit.caller.client, reason)
    return _to(address(visit.root, f"/nodes/{node}", cluster=cluster, done="pardoned"))


def _answered(visit: Visit, answer: Callable[..., RecommendationRecord], done: str) -> Response:
    known = _looked_at(visit)
    answer(known.id, visit.caller.client, visit.said("note"), known.generation)
    return _back(visit, known, done)


def _looked_at(visit: Visit) -> RecommendationRecord:
    """Errors: Problem stale_generation if it was revised since the page was drawn: nobody approved that."""
    known = recommendation_of(visit.caller, visit.app, visit.part("recommendation"))
    if visit.said("generation") != str(known.generation):
        raise Problem("stale_generation", f"it is generation {known.generation} now: look at the page again")
    return known


def _action(said: str) -> Action:
    if said not in set(_PROPOSABLE):
        raise Problem("invalid", f"no action {said!r} to propose, choose from {', '.join(_PROPOSABLE)}")
    return Action(said)


def _back(visit: Visit, known: RecommendationRecord, done: str) -> Response:
    incident = known.issued.incident
    path = f"/incidents/{incident}" if incident is not None else "/fleet"
    return _to(address(visit.root, path, done=done))


def _to(target: str) -> Response:
    return RedirectResponse(target, 303, headers={"Cache-Control": "no-store"})
