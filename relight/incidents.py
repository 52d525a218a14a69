# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The lives of an incident and of a recommendation, as tables of the steps that are allowed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import overload


class IncidentState(StrEnum):
    OPEN = "OPEN"
    DECIDING = "DECIDING"
    RECOMMENDED = "RECOMMENDED"
    AWAITING_APPROVAL = "AWAITING_APPROVAL"
    ACTING = "ACTING"
    ALLOCATION_RESTARTED = "ALLOCATION_RESTARTED"
    PROGRESS_RESUMED = "PROGRESS_RESUMED"
    CLOSED_RECOVERED = "CLOSED_RECOVERED"
    CLOSED_STOPPED = "CLOSED_STOPPED"
    CLOSED_SELF_HEALED = "CLOSED_SELF_HEALED"
    CLOSED_FAIL_OPEN = "CLOSED_FAIL_OPEN"
    CLOSED_USER = "CLOSED_USER"
    CLOSED_RECURRED = "CLOSED_RECURRED"

    @property
    def is_closed(self) -> bool:
        return self.value.startswith("CLOSED_")


class IncidentTransition(StrEnum):
    DECISION_BEGUN = "decision_begun"
    RECOMMENDED = "recommended"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVED = "approved"
    ACTION_BEGUN = "action_begun"
    ALLOCATION_RESTARTED = "allocation_restarted"
    PROGRESS_RESUMED = "progress_resumed"
    RECOVERED = "recovered"
    STOPPED = "stopped"
    SELF_HEALED = "self_healed"
    FAILED_OPEN = "failed_open"
    USER_TOOK_OVER = "user_took_over"
    RECURRED = "recurred"


class RecommendationState(StrEnum):
    PROPOSED = "PROPOSED"
    APPROVED = "APPROVED"
    CLAIMED = "CLAIMED"
    ACTING = "ACTING"
    CONVERGED = "CONVERGED"
    FAILED = "FAILED"
    ABANDONED = "ABANDONED"
    EXPIRED = "EXPIRED"
    SUPERSEDED = "SUPERSEDED"
    REJECTED = "REJECTED"
    SHADOW = "SHADOW"

    @property
    def is_open(self) -> bool:
        """True while somebody may still act on it: at most one such per attempt."""
        return self in {
            RecommendationState.PROPOSED,
            RecommendationState.APPROVED,
            RecommendationState.CLAIMED,
            RecommendationState.ACTING,
        }

    @property
    def is_terminal(self) -> bool:
        return not _RECOMMENDATION[self]


class RecommendationTransition(StrEnum):
    APPROVED = "approved"
    CLAIMED = "claimed"
    ACTION_BEGUN = "action_begun"
    CONVERGED = "converged"
    FAILED = "failed"
    ABANDONED = "abandoned"
    EXPIRED = "expired"
    SUPERSEDED = "superseded"
    REJECTED = "rejected"
    SHADOWED = "shadowed"


class IllegalTransition(ValueError):
    """A step that the state does not allow; names the state, the step and the steps that are allowed."""

    def __init__(self, state: StrEnum, transition: StrEnum, allowed: Iterable[StrEnum]) -> None:
        self.state = state
        self.transition = transition
        self.allowed = tuple(sorted(allowed))
        ways = ", ".join(self.allowed) or "nothing: the state is final"
        super().__init__(f"{type(state).__name__} {state} does not allow {transition!s}, allowed: {ways}")


_I = IncidentState
_T = IncidentTransition
_R = RecommendationState
_S = RecommendationTransition

# Until an action is under way the incident may end by itself, by its user, or by our silence; and the
# scheduler may restart the job on its own, which is adopted rather than done twice.
_BEFORE_ACTING: Mapping[IncidentTransition, IncidentState] = {
    _T.ALLOCATION_RESTARTED: _I.ALLOCATION_RESTARTED,
    _T.SELF_HEALED: _I.CLOSED_SELF_HEALED,
    _T.FAILED_OPEN: _I.CLOSED_FAIL_OPEN,
    _T.USER_TOOK_OVER: _I.CLOSED_USER,
}

_INCIDENT: Mapping[IncidentState, Mapping[IncidentTransition, IncidentState]] = {
    _I.OPEN: {_T.DECISION_BEGUN: _I.DECIDING, **_BEFORE_ACTING},
    _I.DECIDING: {_T.RECOMMENDED: _I.RECOMMENDED, **_BEFORE_ACTING},
    # A richer verdict may revise the first one until it is acted on: recommended again.
    _I.RECOMMENDED: {
        _T.RECOMMENDED: _I.RECOMMENDED,
        _T.APPROVAL_REQUESTED: _I.AWAITING_APPROVAL,
        _T.ACTION_BEGUN: _I.ACTING,
        **_BEFORE_ACTING,
    },
    # An approval clears the way; only then may the action begin, and a revised verdict waits as well.
    _I.AWAITING_APPROVAL: {
        _T.RECOMMENDED: _I.AWAITING_APPROVAL,
        _T.APPROVED: _I.RECOMMENDED,
        **_BEFORE_ACTING,
    },
    _I.ACTING: {
        _T.ALLOCATION_RESTARTED: _I.ALLOCATION_RESTARTED,
        _T.STOPPED: _I.CLOSED_STOPPED,
        _T.FAILED_OPEN: _I.CLOSED_FAIL_OPEN,
        _T.USER_TOOK_OVER: _I.CLOSED_USER,
    },
    _I.ALLOCATION_RESTARTED: {
        _T.PROGRESS_RESUMED: _I.PROGRESS_RESUMED,
        _T.RECURRED: _I.CLOSED_RECURRED,
        _T.USER_TOOK_OVER: _I.CLOSED_USER,
        _T.FAILED_OPEN: _I.CLOSED_FAIL_OPEN,
    },
    _I.PROGRESS_RESUMED: {
        _T.RECOVERED: _I.CLOSED_RECOVERED,
        _T.RECURRED: _I.CLOSED_RECURRED,
        _T.USER_TOOK_OVER: _I.CLOSED_USER,
    },
    _I.CLOSED_RECOVERED: {},
    _I.CLOSED_STOPPED: {},
    _I.CLOSED_SELF_HEALED: {},
    _I.CLOSED_FAIL_OPEN: {},
    _I.CLOSED_USER: {},
    _I.CLOSED_RECURRED: {},
}

_GIVEN_UP: Mapping[RecommendationTransition, RecommendationState] = {
    _S.ABANDONED: _R.ABANDONED,
    _S.EXPIRED: _R.EXPIRED,
    _S.SUPERSEDED: _R.SUPERSEDED,
}

_RECOMMENDATION: Mapping[RecommendationState, Mapping[RecommendationTransition, RecommendationState]] = {
    _R.PROPOSED: {
        _S.APPROVED: _R.APPROVED,
        _S.REJECTED: _R.REJECTED,
        _S.SHADOWED: _R.SHADOW,
        _S.CLAIMED: _R.CLAIMED,
        **_GIVEN_UP,
    },
    _R.APPROVED: {_S.CLAIMED: _R.CLAIMED, **_GIVEN_UP},
    # Claimed again: the same controller renews its lease, or another takes over one that ran out.
    _R.CLAIMED: {
        _S.CLAIMED: _R.CLAIMED,
        _S.ACTION_BEGUN: _R.ACTING,
        _S.CONVERGED: _R.CONVERGED,
        _S.FAILED: _R.FAILED,
        **_GIVEN_UP,
    },
    # Once a verb was sent the truth is the scheduler's: neither expiry nor a revision undoes it.
    _R.ACTING: {
        _S.CLAIMED: _R.ACTING,
        _S.CONVERGED: _R.CONVERGED,
        _S.FAILED: _R.FAILED,
        _S.ABANDONED: _R.ABANDONED,
    },
    _R.CONVERGED: {},
    _R.FAILED: {},
    _R.ABANDONED: {},
    _R.EXPIRED: {},
    _R.SUPERSEDED: {},
    _R.REJECTED: {},
    _R.SHADOW: {_S.SUPERSEDED: _R.SUPERSEDED},
}


@overload
def advance(state: IncidentState, transition: IncidentTransition) -> IncidentState: ...
@overload
def advance(state: RecommendationState, transition: RecommendationTransition) -> RecommendationState: ...
def advance(state: StrEnum, transition: StrEnum) -> StrEnum:
    """The state after one step.

    Errors: IllegalTransition if the state does not allow it.
    """
    steps = _steps(state)
    if transition not in steps:
        raise IllegalTransition(state, transition, steps)
    return steps[transition]


def allowed(state: IncidentState | RecommendationState) -> tuple[StrEnum, ...]:
    """The steps that a state allows; none for a final one."""
    return tuple(sorted(_steps(state)))


def _steps(state: StrEnum) -> Mapping[StrEnum, StrEnum]:
    if isinstance(state, IncidentState):
        return {t: s for t, s in _INCIDENT[state].items()}
    if isinstance(state, RecommendationState):
        return {t: s for t, s in _RECOMMENDATION[state].items()}
    return {}
