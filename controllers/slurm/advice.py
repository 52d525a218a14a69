# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The advisor's API as the controller uses it: typed, tolerant in reading, and never guessing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from relight.trace_ids import traceparent
from relight.types import Action, AttemptId, ClusterId, IncidentId, NodeName, RecommendationId

JsonObject = Mapping[str, Any]


class AdvisorUnreachable(RuntimeError):
    """No answer, or one that says "later": nothing is known, and asking again is harmless."""


class AdvisorRefused(RuntimeError):
    """The advisor said no; `code` is its stable word for why."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(f"{status} {code}: {detail}")
        self.status = status
        self.code = code


class Transport(Protocol):
    """Sends one request. Errors: AdvisorUnreachable."""

    def send(
        self,
        method: str,
        path: str,
        *,
        body: JsonObject | None = None,
        query: Mapping[str, str] | None = None,
        traceparent: str = "",
    ) -> tuple[int, JsonObject]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """A node that the next run is to avoid."""

    node: NodeName
    score: float
    expires_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """A recommendation as read now. `action` is None for a word that we do not know: then nothing is done."""

    id: RecommendationId
    attempt: AttemptId
    generation: int
    action: Action | None
    exclusions: tuple[Excluded, ...]
    is_actionable: bool
    blocked_by: tuple[str, ...]
    state: str
    failure: str
    evidence_status: str
    delay_s: int
    stop_grace_s: int
    decide_deadline: datetime
    expires_at: datetime
    created_at: datetime
    incident: IncidentId | None
    reconciled: str

    @property
    def is_open(self) -> bool:
        return self.state in {"PROPOSED", "APPROVED", "CLAIMED", "ACTING"}

    @property
    def is_restart(self) -> bool:
        return self.action in {Action.RESTART, Action.RESTART_EXCLUDING}

    @property
    def names_a_cause(self) -> bool:
        """Waiting for more lines is of no use."""
        return self.evidence_status in {"established", "supported"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    token: str
    until: datetime
    advice: Advice


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenIncident:
    id: IncidentId
    attempt: AttemptId
    anomalies: tuple[str, ...]
    state: str
    changed_at: datetime


class Advisor:
    """Calls on `/v1`; work on a recommendation is sent within its incident's trace.

    Errors: AdvisorUnreachable, AdvisorRefused.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._incidents: dict[RecommendationId, IncidentId] = {}

    def put_attempt(self, attempt: AttemptId, body: JsonObject) -> bool:
        """Whether it was applied; False if a later look is known there."""
        return bool(self._ask("PUT", f"/v1/attempts/{attempt}", body).get("applied", True))

    def attempt(self, attempt: AttemptId) -> JsonObject:
        """What the advisor knows of a run."""
        return self._ask("GET", f"/v1/attempts/{attempt}")

    def advise(self, attempt: AttemptId, trigger: str) -> Advice:
        return self._seen(self._ask("POST", "/v1/recommendations", {"attempt_id": attempt, "trigger": trigger}))

    def recommendation(self, name: RecommendationId) -> Advice:
        return self._seen(self._ask("GET", f"/v1/recommendations/{name}"))

    def changed(self, cluster: str, since: int) -> tuple[tuple[Advice, ...], int]:
        """What changed behind a revision, and the revision to ask with next."""
        query = {"cluster": cluster, "since_revision": str(since), "limit": "250"}
        said = self._ask("GET", "/v1/recommendations", query=query)
        return tuple(map(self._seen, said.get("items", ()))), int(said.get("revision", since))

    def tell_drained(self, cluster: ClusterId, drained: Mapping[NodeName, tuple[str, str, datetime]]) -> None:
        """Nodes that somebody took out, each with a key that makes it safe to tell twice, the reason and the time."""
        signals: list[JsonObject] = [
            {
                "source": "slurm", "source_event_id": key, "event_time": at.isoformat(), "node": node,
                "node_event": {"is_fatal": False, "check_name": "drained", "message": reason[:1000]},
            }
            for node, (key, reason, at) in drained.items()
        ]  # fmt: skip
        self._ask("POST", "/v1/signals", {"cluster_id": cluster, "signals": signals})

    def open_incidents(self) -> tuple[SeenIncident, ...]:
        said = self._ask("GET", "/v1/incidents", query={"is_open": "true", "state": "OPEN", "limit": "250"})
        return tuple(map(_incident, said.get("items", ())))

    def incident(self, name: IncidentId) -> SeenIncident:
        return _incident(self._ask("GET", f"/v1/incidents/{name}"))

    def claim(self, name: RecommendationId, controller: str, generation: int, lease_s: float) -> Claim:
        body = {"controller_id": controller, "observed_generation": generation, "lease_s": lease_s}
        said = self._ask("POST", f"/v1/recommendations/{name}/claim", body, about=name)
        return Claim(
            token=str(said["claim_token"]),
            until=_moment(said["lease_expires_at"]),
            advice=self._seen(said["recommendation"]),
        )

    def milestone(self, name: RecommendationId, step: str, phase: str, key: str, detail: JsonObject) -> None:
        body = {"recommendation_id": name, "step": step, "phase": phase, "idempotency_key": key, "detail": detail}
        self._ask("POST", "/v1/milestones", body, about=name)

    def reconcile(
        self,
        name: RecommendationId,
        generation: int,
        disposition: str,
        reason: str,
        observation: JsonObject,
        token: str | None,
    ) -> None:
        body: dict[str, Any] = {"observed_generation": generation, "disposition": disposition, "reason": reason,
                                "observation": observation}  # fmt: skip
        if token is not None:
            body["claim_token"] = token
        self._ask("PUT", f"/v1/recommendations/{name}/reconciliation", body, about=name)

    def _seen(self, said: JsonObject) -> Advice:
        advice = _advice(said)
        if advice.incident is not None and advice.is_open:
            self._incidents[advice.id] = advice.incident
        else:
            self._incidents.pop(advice.id, None)
        return advice

    def _ask(
        self,
        method: str,
        path: str,
        body: JsonObject | None = None,
        query: Mapping[str, str] | None = None,
        about: RecommendationId | None = None,
    ) -> JsonObject:
        incident = self._incidents.get(about) if about is not None else None
        trace = traceparent(incident, "act") if incident is not None else ""
        status, said = self._transport.send(method, path, body=body, query=query, traceparent=trace)
        if status >= 500 or status in {408, 429}:
            raise AdvisorUnreachable(f"{method} {path}: {status} {said.get('detail', '')}")
        if status >= 400:
            raise AdvisorRefused(status, str(said.get("code", "")), f"{method} {path}: {said.get('detail', '')}")
        return said


def _moment(text: Any) -> datetime:
    """A time of the API. Errors: AdvisorUnreachable, since an advisor that talks nonsense is none."""
    try:
        return datetime.fromisoformat(str(text)).astimezone(UTC)
    except ValueError as why:
        raise AdvisorUnreachable(f"{text!r} is no time") from why


def _advice(said: JsonObject) -> Advice:
    try:
        return Advice(
            id=RecommendationId(said["id"]),
            attempt=AttemptId(said["attempt_id"]),
            generation=int(said["generation"]),
            action=Action(said["action"]) if said["action"] in set(Action) else None,
            exclusions=tuple(map(_excluded, said.get("exclusions", ()))),
            is_actionable=said["actionable"] is True,
            blocked_by=tuple(said.get("blocked_by", ())),
            state=str(said["state"]),
            failure=str(said.get("failure", "")),
            evidence_status=str(said.get("evidence_status", "")),
            delay_s=int(said.get("delay_s", 0)),
            stop_grace_s=int(said.get("stop_grace_s", 0)),
            decide_deadline=_moment(said["decide_deadline"]),
            expires_at=_moment(said["expires_at"]),
            created_at=_moment(said["created_at"]),
            incident=IncidentId(said["incident_id"]) if said.get("incident_id") else None,
            reconciled=str((said.get("reconciliation") or {}).get("disposition", "")),
        )
    except (KeyError, TypeError, ValueError) as why:
        raise AdvisorUnreachable(f"no recommendation: {why!r}") from why


def _excluded(said: JsonObject) -> Excluded:
    return Excluded(node=NodeName(said["node"]), score=float(said["score"]), expires_at=_moment(said["expires_at"]))


def _incident(said: JsonObject) -> SeenIncident:
    anomalies: Sequence[str] = said.get("anomalies", ())
    return SeenIncident(
        id=IncidentId(said["id"]), attempt=AttemptId(said["attempt_id"]), anomalies=tuple(anomalies),
        state=str(said["state"]), changed_at=_moment(said["changed_at"]),
    )  # fmt: skip
