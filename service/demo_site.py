# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Everybody at the demo's cluster who talks to Relight: collectors, a controller and operators, by HTTP alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import httpx
import orjson

from service.demo import checked

CLUSTER = "aurora"
CONTROLLER = "slurm-controller"
GPUS_PER_NODE = 8
NODES = 64
MAX_SIGNALS = 1_000

Json = dict[str, Any]


class Site:
    """The demo's cluster as a client of a service. Errors: DemoFailed with the service's words if it refuses."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    # -------------------------------------------------------------- collectors

    def attempt(self, name: str, said: Mapping[str, Any]) -> None:
        checked(self._client.put(f"/v1/attempts/{name}", json={"cluster_id": CLUSTER, **said}))

    def lines(self, lines: Iterable[Json]) -> None:
        body = b"\n".join(map(orjson.dumps, lines))
        headers = {"Content-Type": "application/x-ndjson"}
        checked(self._client.post("/v1/logs/ndjson", content=body, headers=headers))

    def signals(self, steps: Iterable[Sequence[Json]]) -> None:
        """Signals in few requests; those of one step stay together, since only a whole step can be compared."""
        for batch in _batches(steps):
            body = orjson.dumps({"cluster_id": CLUSTER, "signals": batch})
            headers = {"Content-Type": "application/json"}
            checked(self._client.post("/v1/signals", content=body, headers=headers))

    # -------------------------------------------------------------- the controller

    def advice(self, attempt: str, trigger: str = "exited") -> Json:
        return checked(self._client.post("/v1/recommendations", json={"attempt_id": attempt, "trigger": trigger}))

    def claim(self, advice: Json) -> str:
        body = {"controller_id": CONTROLLER, "observed_generation": advice["generation"], "lease_s": 120}
        return str(checked(self._client.post(f"/v1/recommendations/{advice['id']}/claim", json=body))["claim_token"])

    def milestone(self, advice: Json, step: str, phase: str) -> None:
        key = f"{advice['id']}-{step}-{phase}"
        body = {"recommendation_id": advice["id"], "step": step, "phase": phase, "idempotency_key": key}
        checked(self._client.post("/v1/milestones", json=body))

    def converged(self, advice: Json, token: str, observation: Json) -> None:
        body = {
            "observed_generation": advice["generation"],
            "disposition": "CONVERGED",
            "reason": "desired_state_observed",
            "claim_token": token,
            "observation": observation,
        }
        checked(self._client.put(f"/v1/recommendations/{advice['id']}/reconciliation", json=body))

    # -------------------------------------------------------------- operators

    def mode(self, scope: str, target: str, mode: str, actor: str) -> None:
        known = self._client.get("/v1/modes")
        checked(known)
        body = {"cluster_id": CLUSTER, "scope": scope, "target": target, "mode": mode, "actor": actor,
                "reason": f"{target} starts in {mode} mode"}  # fmt: skip
        checked(self._client.put("/v1/modes", json=body, headers={"If-Match": known.headers["ETag"]}))

    def approve(self, advice: Json, actor: str) -> None:
        body = {"actor": actor, "note": "the node is known to us"}
        checked(self._client.post(f"/v1/recommendations/{advice['id']}/approve", json=body))

    def feedback(self, advice: Json, actor: str, verdict: str) -> None:
        body = {"actor": actor, "verdict": verdict}
        checked(self._client.post(f"/v1/recommendations/{advice['id']}/feedback", json=body))

    def exclude(self, node: str, actor: str, reason: str) -> None:
        body = {"cluster_id": CLUSTER, "node": node, "scope": "cluster", "actor": actor, "reason": reason}
        checked(self._client.put("/v1/exclusions", json=body))

    # -------------------------------------------------------------- everybody

    def told(self, path: str, **query: str | int) -> Json:
        return checked(self._client.get(path, params=query))


def _batches(steps: Iterable[Sequence[Json]]) -> Iterator[list[Json]]:
    batch = list[Json]()
    for step in steps:
        if batch and len(batch) + len(step) > MAX_SIGNALS:
            yield batch
            batch = []
        batch = [*batch, *step]
    if batch:
        yield batch
