# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A small cluster in trouble: what the browser tests walk through and the pictures of the docs show."""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from relight.types import AttemptId, StepBatch
from tests.api.running import XID_79, Service

TIMEOUT = ("[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=118, OpType=ALLREDUCE, "
           "Timeout(ms)=600000) ran for 600042 milliseconds before timing out.")  # fmt: skip
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
ALARMING = '<img src=x onerror="window.owned=1"> <script>window.owned=1</script> \u202egnp.exe \x1b[2J'
RANKS = 10_000
SLOW = 7_777


@dataclass(frozen=True)
class Scenery:
    waiting: str
    waiting_advice: str
    recovered: str
    hostile: str


def furnish(service: Service) -> Scenery:
    service.set_mode("monitor")
    _watched(service)
    _nightly(service)
    service.set_mode("act")
    recovered = _recovered(service)
    _stopped(service)
    hostile = crashed(service, "eval-7b", "n9", ALARMING)
    _training(service)
    service.set_mode("approve")
    waiting = crashed(service, "llama-70b", "n2", "")
    service.put("/v1/exclusions", json={"node": "n7", "scope": "cluster", "reason": "fails its bench test",
                                        "actor": "ada", "evidence": ["nccl-tests: 12 GB/s of 46 GB/s"]})  # fmt: skip
    _trusted(service)
    return Scenery(waiting["incident_id"], waiting["id"], recovered["incident_id"], hostile["incident_id"])


def _put(service: Service, name: str, workload: str, **over: Any) -> None:
    usual = {"workload_id": workload, "gpus_per_node": 8, "user": "ada", "scheduler": {"kind": "slurm", "job_id": name}}
    assert service.put_attempt(name, **(usual | over)).status_code in {200, 201}


def _progress(service: Service, name: str, step: int, checkpoint: int | None) -> None:
    said = {"source": "trainer", "source_event_id": f"{name}-{step}", "event_time": service.clock.at.isoformat(),
            "attempt_id": name, "progress": {"step": step, "checkpoint_step": checkpoint}}  # fmt: skip
    assert service.post("/v1/signals", json={"signals": [said]}).json()["accepted"] == 1


def crashed(service: Service, workload: str, node: str, extra: str) -> dict[str, Any]:
    name = f"{workload}-0"
    _put(service, name, workload)
    service.clock.advance(minutes=4)
    _progress(service, name, 10, None)
    service.clock.advance(hours=2)
    _progress(service, name, 2_000, 2_000)
    service.clock.advance(minutes=9)
    service.send_lines(
        {"attempt_id": name, "file": f"kern-{node}.log", "number": 1, "stream": "kernel", "node": node,
         "at": service.clock.at.isoformat(), "text": f"{XID_79} {extra}"},
        *({"attempt_id": name, "file": f"rank{rank}.log", "number": 1, "rank": rank, "node": f"n{rank + 1}",
           "text": TIMEOUT.format(rank=rank)} for rank in range(2)),
    )  # fmt: skip
    service.clock.advance(seconds=40)
    _put(service, name, workload, state="FAILED", exit_code=1)
    advice: dict[str, Any] = service.advise(name).json()
    return advice


def _nightly(service: Service) -> None:
    """Nine more of the same kind in which people did as advised: a record that a class may rise by."""
    for number in range(9):
        workload = f"nightly-{number}"
        crashed(service, workload, "n3", "")
        service.clock.advance(minutes=18)
        _put(service, f"{workload}-1", workload, attempt_index=1, allocated_nodes=["n1", "n2", "n4", "n5"])
        service.clock.advance(minutes=90)
        _put(service, f"{workload}-1", workload, attempt_index=1, allocated_nodes=["n1", "n2", "n4", "n5"],
             state="COMPLETED")  # fmt: skip


def _trusted(service: Service) -> None:
    """Classes at several stages, and a silence."""
    for failure_class, stage, reason in (("hardware", "approve", "the on-call reads each one"),
                                         ("network", "off", "the new fabric is not learnt yet")):  # fmt: skip
        etag = service.get("/v1/stages").headers["ETag"]
        body = {"class": failure_class, "stage": stage, "actor": "ada", "reason": reason}
        assert service.put("/v1/stages", json=body, headers={"If-Match": etag}).status_code == 200
    until = (service.clock.at + timedelta(hours=8)).isoformat()
    body = {"node": "n7", "ends_at": until, "actor": "grace", "reason": "on the bench until tonight"}
    assert service.post("/v1/silences", json=body).status_code == 201


def _watched(service: Service) -> None:
    """Monitor mode: people restart, once without the accused node and once with it."""
    for number, nodes in enumerate((["n1", "n3", "n4", "n5"], ["n1", "n2", "n3", "n4"])):
        workload = f"watched-{number}"
        crashed(service, workload, "n2", "")
        service.clock.advance(minutes=25)
        _put(service, f"{workload}-1", workload, attempt_index=1, allocated_nodes=nodes)
        service.clock.advance(hours=1)
        _put(service, f"{workload}-1", workload, attempt_index=1, allocated_nodes=nodes, state="COMPLETED")
    _put(service, "tuned-0", "tuned", user="grace")
    service.send_lines({"attempt_id": "tuned-0", "file": "train.log", "number": 1, "rank": 0, "text": OOM})
    service.advise("tuned-0")
    service.clock.advance(minutes=12)
    _put(service, "tuned-0", "tuned", user="grace", state="CANCELLED_BY_USER", actor="grace")


def _recovered(service: Service) -> dict[str, Any]:
    advice = crashed(service, "mixtral-8x7b", "n4", "")
    service.clock.advance(seconds=8)
    body = {"controller_id": "slurm-a", "observed_generation": 1, "lease_s": 60}
    token = service.post(f"/v1/recommendations/{advice['id']}/claim", json=body).json()["claim_token"]
    service.clock.advance(seconds=3)
    report = {"observed_generation": 1, "disposition": "CONVERGED", "reason": "desired_state_observed",
              "claim_token": token,
              "observation": {"job_state": "PENDING", "restart_count": 1, "exc_nodes": ["n4"], "held": False}}  # fmt: skip
    service.put(f"/v1/recommendations/{advice['id']}/reconciliation", json=report)
    service.clock.advance(minutes=6)
    _put(service, "mixtral-8x7b-1", "mixtral-8x7b", attempt_index=1, allocated_nodes=["n1", "n2", "n3", "n5"])
    service.clock.advance(minutes=5)
    _progress(service, "mixtral-8x7b-1", 2_010, None)
    service.clock.advance(minutes=50)
    _progress(service, "mixtral-8x7b-1", 2_900, 2_900)
    return advice


def _stopped(service: Service) -> None:
    _put(service, "sft-13b-0", "sft-13b", user="grace")
    service.send_lines({"attempt_id": "sft-13b-0", "file": "train.log", "number": 812, "rank": 0, "text": OOM})
    _put(service, "sft-13b-0", "sft-13b", user="grace", state="FAILED", exit_code=1)
    service.advise("sft-13b-0")


def _training(service: Service) -> None:
    """Ten thousand ranks, one of them a third slower in its own work."""
    dice = random.Random(3)
    nodes = {str(rank): f"g{rank // 8:04d}" for rank in range(RANKS)}
    _put(service, "big-0", "frontier-400b", allocated_nodes=sorted(set(nodes.values())), rank_to_node=nodes,
         requested_nodes=RANKS // 8, cluster_nodes=2_000, partition_nodes=2_000, eligible_nodes=2_000)  # fmt: skip
    for step in range(40):
        own = [dice.gauss(1.0, 0.03) * (1.33 if rank == SLOW and step > 12 else 1.0) for rank in range(RANKS)]
        with service.application.loop.lock:
            service.application.loop.observe(
                StepBatch(attempt=AttemptId("big-0"), at=service.clock.at, step=step, ranks=range(RANKS),
                          step_s=[max(own)] * RANKS, compute_s=own)
            )  # fmt: skip
    _progress(service, "big-0", 40, 40)
