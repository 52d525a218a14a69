# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Incidents, workloads and modes in the words that several pages share."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from relight.incidents import IncidentState, RecommendationState
from relight.jsonform import decode
from relight.policy import lowest_mode
from relight.promotion import Stage
from relight.types import Action, Attribution, ClusterId, Mode
from service.application import Application
from service.records import AttemptRecord, IncidentRecord, RecommendationRecord
from service.silencing import silences_on
from service.tokens import Principal
from service.web.templating import words


def mode_of(app: Application, attempt: AttemptRecord) -> Mode:
    """The mode in which a failure of this attempt would be decided, before its class is known."""
    seen, state = attempt.seen, app.journal.state
    partition = attempt.detail("partition") or attempt.detail("namespace") or ""
    has_own = any(key[1:] == ("cluster", seen.cluster) for key in state.modes)
    modes = state.mode_for(seen.cluster, str(partition), "", seen.workload)
    return lowest_mode([*modes, *([] if has_own else [app.settings.recommend.mode])])


def attribution_of(app: Application, known: IncidentRecord, advice: RecommendationRecord | None) -> Attribution | None:
    """The attribution that the advice rests on: the newest of its failure, else the newest of all."""
    made = app.journal.state.attributions.get(known.opened.attempt, [])
    wanted = [one for one in made if advice is not None and one.event.failure == advice.issued.failure]
    chosen = (wanted or made)[-1:]
    return decode(Attribution, chosen[0].event.attribution) if chosen else None


def advice_on(app: Application, known: IncidentRecord) -> RecommendationRecord | None:
    name = known.recommendation
    return app.journal.state.recommendations.get(name) if name is not None else None


def awaits_approval(app: Application, known: RecommendationRecord, at: datetime) -> bool:
    is_open = known.state is RecommendationState.PROPOSED
    return is_open and app.gates.blocked_by(known, at) == ("awaiting_approval",)


def stage_of(app: Application, known: IncidentRecord, advice: RecommendationRecord) -> Stage:
    """How far the class of an incident is trusted now."""
    return app.stages.stage(known.opened.cluster or ClusterId(""), advice.issued.failure_class)


def next_step(app: Application, known: IncidentRecord, advice: RecommendationRecord | None, at: datetime) -> str:
    """What happens next, and who has to do it."""
    if advice is None:
        return "Relight has not decided yet; until it has, the scheduler's own rule applies."
    if known.state.is_closed:
        return _ENDED[known.state]
    match advice.state:
        case RecommendationState.PROPOSED if awaits_approval(app, advice, at):
            return "It waits for a person's approval; without one the scheduler's own rule applies."
        case RecommendationState.PROPOSED | RecommendationState.APPROVED:
            gates = app.gates.blocked_by(advice, at)
            return (
                f"Nobody acts: {', '.join(words(one) for one in gates)}." if gates else "A controller may claim it now."
            )
        case RecommendationState.SHADOW:
            stage = stage_of(app, known, advice)
            why = f"Its class is at {stage}" if stage.mode is Mode.MONITOR else "Monitor mode"
            return f"{why}: nobody acts on it; it is scored against what happens."
        case RecommendationState.CLAIMED | RecommendationState.ACTING:
            who = advice.claim.controller if advice.claim is not None else "a controller"
            return f"{who} is acting on it."
        case RecommendationState.CONVERGED:
            return _AFTER_THE_ACT.get(known.state, "Done; waiting for the scheduler to place the next attempt.")
        case RecommendationState.EXPIRED:
            return "Nobody acted in time: the scheduler's own rule applies."
        case RecommendationState.REJECTED:
            return "A person rejected it: the scheduler's own rule applies."
        case RecommendationState.FAILED | RecommendationState.ABANDONED:
            return "The controller could not do it: a person has to look."
        case RecommendationState.SUPERSEDED:
            return "A newer attempt or fact has overtaken it."


_AFTER_THE_ACT = {
    IncidentState.ALLOCATION_RESTARTED: "It runs again; recovered means a completed step beyond the last one.",
    IncidentState.PROGRESS_RESUMED: "Training got further; the next checkpoint, or an hour, closes the incident.",
}
_ENDED = {
    IncidentState.CLOSED_RECOVERED: "Recovered: training got further than before.",
    IncidentState.CLOSED_STOPPED: "Stopped: another attempt would only have failed again.",
    IncidentState.CLOSED_SELF_HEALED: "It healed itself.",
    IncidentState.CLOSED_FAIL_OPEN: "Left to the scheduler's own rule.",
    IncidentState.CLOSED_USER: "A person took over.",
    IncidentState.CLOSED_RECURRED: "It failed again: a later incident goes on.",
}


def where_words(said: Attribution | None, attempt: AttemptRecord | None) -> str:
    """The accused nodes, else where the culprit ranks ran, else how little is known."""
    if said is not None and said.nodes:
        return _listed(said.nodes)
    if said is not None and said.ranks:
        ranks = "rank " + _listed([str(one) for one in said.ranks])
        return ranks + (f" on {_listed(said.rank_nodes)}" if said.rank_nodes else "")
    count = len(attempt.seen.nodes) if attempt is not None else 0
    return f"one of {count} nodes, none accused" if count else "a place nobody named"


def action_words(advice: RecommendationRecord | None) -> str:
    if advice is None:
        return "no advice yet"
    match advice.issued.action:
        case Action.RESTART_EXCLUDING:
            return f"restart without {_listed([one.node for one in advice.issued.exclusions])}"
        case Action.NO_DECISION:
            return "no decision"
        case action:
            return action.value


def incident_row(app: Application, known: IncidentRecord, at: datetime) -> dict[str, Any]:
    """One line of a list of incidents."""
    advice, opened = advice_on(app, known), known.opened
    said = attribution_of(app, known, advice)
    return {
        "id": known.id,
        "state": known.state.value,
        "is_open": known.is_open,
        "workload": opened.workload,
        "attempt": opened.attempt,
        "cluster": opened.cluster,
        "onset_at": opened.onset_at,
        "changed_at": known.changed_at,
        "failure": said.failure if said is not None else None,
        "class": said.failure_class.value if said is not None else None,
        "where": where_words(said, app.journal.state.attempts.get(opened.attempt)),
        "action": action_words(advice),
        "recommendation": known.recommendation,
        "next": next_step(app, known, advice, at),
        "awaits_approval": advice is not None and awaits_approval(app, advice, at),
        "is_silenced": bool(silences_on(app.journal.state, known, at)),
        "expires_at": advice.issued.expires_at if advice is not None else None,
    }


def clusters(app: Application, caller: Principal) -> list[str]:
    """Those that the caller may see, as choices of a filter."""
    known = {one.seen.cluster for one in app.journal.state.attempts.values()}
    return sorted(str(one) for one in known if caller.may_see(one))


def _listed(names: Iterable[str], limit: int = 4) -> str:
    known = list(map(str, names))
    shown = ", ".join(known[:limit])
    return shown + (f" and {len(known) - limit} more" if len(known) > limit else "")
