# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The demo's script: real failures sent to a running service as a site would send them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import httpx
import orjson

from detectors.log_text import LogText

NODES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """A labelled failure and the verdict that the demo must reach."""

    case: str
    what: str
    failure: str
    action: str
    nodes: tuple[str, ...] = ()


STORY: tuple[Expected, ...] = (
    Expected(case="c0078", what="a GPU falls off the bus", failure="gpu_fell_off_bus",
             action="restart_excluding", nodes=("node06",)),
    Expected(case="c0004", what="the scheduler loses a node", failure="node_failure",
             action="restart_excluding", nodes=("node-iam81",)),
    Expected(case="c0173", what="a port fails on one host, eight times", failure="ib_port_error",
             action="restart_excluding", nodes=("node92",)),
    Expected(case="c0226", what="three ranks wait for a fourth", failure="nccl_collective_timeout", action="restart"),
    Expected(case="c0019", what="ranks part ways in the program", failure="collective_desync", action="restart"),
    Expected(case="c0018", what="a worker gets SIGKILL, unexplained", failure="killed_unconfirmed", action="restart"),
    Expected(case="c0042", what="a file handle goes stale", failure="stale_file_handle", action="restart"),
    Expected(case="c0009", what="the time limit ends a healthy run", failure="time_limit", action="restart"),
    Expected(case="c0153", what="the model does not fit the device", failure="cuda_oom", action="stop"),
    Expected(case="c0287", what="a checkpoint of another model", failure="checkpoint_shape_mismatch", action="stop"),
    Expected(case="c0192", what="a type error in the model's code", failure="python_exception", action="stop"),
    Expected(case="c0221", what="Slurm confirms that host memory ran out", failure="host_oom_killed", action="stop"),
    Expected(case="c0077", what="loss scaling skips a step, as it should", failure="none", action="continue"),
    Expected(case="c0100", what="an NVLink error that is not fatal", failure="none", action="continue"),
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What the service said of one case."""

    expected: Expected
    failure: str
    action: str
    nodes: tuple[str, ...]
    root: str
    state: str

    @property
    def is_as_expected(self) -> bool:
        wanted = (self.expected.failure, self.expected.action, self.expected.nodes)
        return (self.failure, self.action, self.nodes) == wanted


class DemoFailed(RuntimeError):
    """The service did not answer as its API promises."""


def play(client: httpx.Client, cases: Mapping[str, Sequence[LogText]], at: datetime) -> Iterator[Told]:
    """Send every case of the story and ask for advice on it.

    Errors: DemoFailed with the service's own words if a request is refused.
    """
    for number, expected in enumerate(STORY, 1):
        logs = cases[expected.case]
        yield _one(client, expected, logs, at, number)


def _one(client: httpx.Client, expected: Expected, logs: Sequence[LogText], at: datetime, number: int) -> Told:
    attempt = f"demo-{expected.case}"
    hosts = {*expected.nodes, *(log.node for log in logs if log.node is not None)}
    _put_attempt(client, attempt, at, number, "RUNNING", hosts)
    body = b"\n".join(orjson.dumps(line) for line in _lines(attempt, logs))
    headers = {"Content-Type": "application/x-ndjson"}
    sent = checked(client.post("/v1/logs/ndjson", content=body, headers=headers))
    if sent["rejected"]:
        raise DemoFailed(f"{expected.case}: the service refused {sent['rejected']} lines: {sent['errors'][:2]}")
    ended = "COMPLETED" if expected.action == "continue" else "FAILED"
    _put_attempt(client, attempt, at, number, ended, hosts)
    advice = checked(client.post("/v1/recommendations", json={"attempt_id": attempt, "trigger": "exited"}))
    return Told(
        expected=expected,
        failure=advice["failure"],
        action=advice["action"],
        nodes=tuple(x["node"] for x in advice["exclusions"]),
        root=_root(client, advice),
        state=advice["state"],
    )


def _root(client: httpx.Client, advice: dict[str, Any]) -> str:
    if advice["incident_id"] is None:
        return ""
    why = checked(client.get(f"/v1/incidents/{advice['incident_id']}/why"))
    root = (why.get("attribution") or why).get("root") or {}
    where = root.get("where") or root
    return f"{where.get('file', '?')}:{where.get('line', '?')}" if root else ""


def _put_attempt(client: httpx.Client, attempt: str, at: datetime, number: int, state: str, hosts: Set[str]) -> None:
    nodes = [f"node{n:02d}" for n in range(1, NODES + 1)]
    body = {
        "workload_id": f"demo-{number}",
        "scheduler": {"kind": "slurm", "job_id": str(1000 + number)},
        "user": "demo",
        "partition": "gpu",
        "allocated_nodes": sorted({*hosts, *nodes[:4]}),
        "cluster_nodes": NODES,
        "partition_nodes": NODES,
        "eligible_nodes": NODES,
        "requested_nodes": 4,
        "gpus_per_node": 8,
        "requeueable": True,
        "state": state,
        "exit_code": 0 if state == "COMPLETED" else 1,
        "observed_at": at.isoformat(),
    }
    checked(client.put(f"/v1/attempts/{attempt}", json=body))


def _lines(attempt: str, logs: Sequence[LogText]) -> Iterator[dict[str, Any]]:
    for log in logs:
        for number, line in enumerate(log.lines, 1):
            yield {
                "attempt_id": attempt,
                "file": log.name,
                "number": number,
                "stream": log.stream.value,
                "node": log.node,
                "text": line.decode("utf-8", "replace"),
            }


def checked(answer: httpx.Response) -> dict[str, Any]:
    if answer.is_error:
        raise DemoFailed(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {answer.text}")
    told: dict[str, Any] = answer.json()
    return told
