# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What stands between a recommendation and an action now: mode, approval, expiry, generation, state."""

from __future__ import annotations

from datetime import datetime

from relight.incidents import IllegalTransition, RecommendationState, RecommendationTransition, advance
from relight.policy import lowest_mode
from relight.promotion import Stage
from relight.types import Action, ClusterId, Mode, RecommendationId
from service.config import Recommend
from service.journal import Journal
from service.records import IncidentRecord, RecommendationRecord
from service.refusals import Refused

_READ_AFRESH = frozenset({"awaiting_approval"})


class Gates:
    """Questions asked before every claim and told in every answer.

    Errors: Refused with the code of the first gate that is closed.
    """

    def __init__(self, journal: Journal, settings: Recommend, start: Stage = Stage.ACT) -> None:
        self._journal = journal
        self._settings = settings
        self._start = start

    def blocked_by(self, known: RecommendationRecord, at: datetime) -> tuple[str, ...]:
        """What keeps a controller from acting now."""
        gates = [gate for gate in known.issued.blocked_by if gate not in _READ_AFRESH]
        live = self.live_mode(known)
        if live is Mode.MONITOR and "mode_monitor" not in gates:
            gates.append("mode_monitor")
        if live is Mode.APPROVE and known.approved is None:
            gates.append("awaiting_approval")
        if at >= known.issued.expires_at and "expired" not in gates:
            gates.append("expired")
        return tuple(gates)

    def is_actionable(self, known: RecommendationRecord, at: datetime) -> bool:
        acts = known.issued.action not in {Action.CONTINUE, Action.NO_DECISION}
        return acts and known.state.is_open and not self.blocked_by(known, at)

    def live_mode(self, known: RecommendationRecord) -> Mode:
        """The lowest of the mode at the decision, those set now and what its class is trusted with now.

        A promotion revives nothing.
        """
        state, issued = self._journal.state, known.issued
        attempt, cluster = state.attempts.get(issued.attempt), str(issued.cluster or "")
        partition = (attempt.detail("partition") or attempt.detail("namespace")) if attempt else None
        modes = state.mode_for(cluster, str(partition or ""), issued.failure_class, str(issued.workload or ""))
        has_own = any(key[1:] == ("cluster", cluster) for key in state.modes)
        trusted = state.stage_of(ClusterId(cluster), issued.failure_class, self._start).mode
        return lowest_mode([issued.mode, trusted, *modes, *([] if has_own else [self._settings.mode])])

    def known(self, name: RecommendationId) -> RecommendationRecord:
        found = self._journal.state.recommendations.get(name)
        if found is None:
            raise Refused("not_found", f"no recommendation {name!r}")
        return found

    def incident(self, known: RecommendationRecord) -> IncidentRecord | None:
        name = known.issued.incident
        return self._journal.state.incidents.get(name) if name is not None else None

    def require_generation(self, known: RecommendationRecord, generation: int) -> None:
        if generation < known.generation:
            raise Refused("stale_generation", f"it is generation {known.generation} now, not {generation}")
        if generation > known.generation:
            raise Refused("unknown_generation", f"it is generation {known.generation}, not yet {generation}")

    def require_actionable(self, known: RecommendationRecord, at: datetime) -> None:
        """An action under way may always be taken over, so that somebody finishes it."""
        self.require_step(known, RecommendationTransition.CLAIMED)
        if known.state is RecommendationState.ACTING:
            return
        if known.issued.action in {Action.CONTINUE, Action.NO_DECISION}:
            raise Refused("not_actionable", f"{known.issued.action} asks for no action")
        if gates := self.blocked_by(known, at):
            raise Refused("not_actionable", f"blocked by {', '.join(gates)}")

    def require_step(self, known: RecommendationRecord, step: RecommendationTransition) -> None:
        try:
            advance(known.state, step)
        except IllegalTransition as why:
            code = "already_answered" if known.state.is_terminal else "not_actionable"
            raise Refused(code, str(why)) from why
