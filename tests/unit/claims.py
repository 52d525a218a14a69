# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Claims made by hand, and the verdict on them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from relight.attribute import AttemptFacts, attribute
from relight.types import (
    Action,
    Attribution,
    Evidence,
    Failure,
    FailureClass,
    FailureName,
    LogRef,
    Role,
    Severity,
    SignatureId,
    Stream,
)

START = datetime(2026, 1, 1, tzinfo=UTC)
DEPTHS = {
    "gpu_fell_off_bus": (FailureClass.HARDWARE, 10),
    "python_exception": (FailureClass.APPLICATION, 45),
    "cuda_oom": (FailureClass.RESOURCE, 36),
    "cuda_oom_after_progress": (FailureClass.RESOURCE, 36),
    "user_cancelled": (FailureClass.USER_OR_SCHEDULER, 50),
    "time_limit": (FailureClass.USER_OR_SCHEDULER, 22),
    "killed_unconfirmed": (FailureClass.UNKNOWN, 52),
    "nccl_collective_timeout": (FailureClass.UNKNOWN, 64),
    "nccl_early_timeout": (FailureClass.UNKNOWN, 62),
    "collective_desync": (FailureClass.APPLICATION, 40),
    "remote_peer_exited": (FailureClass.UNKNOWN, 70),
    "ib_port_error": (FailureClass.NETWORK, 30),
    "ib_retry_exceeded": (FailureClass.NETWORK, 38),
    "cause_not_in_log": (FailureClass.UNKNOWN, 80),
    "node_not_responding": (FailureClass.UNKNOWN, 30),
    "insufficient_gpu_capacity": (FailureClass.USER_OR_SCHEDULER, 20),
    "pod_evicted_by_taint": (FailureClass.USER_OR_SCHEDULER, 20),
    "input_missing": (FailureClass.STORAGE, 40),
    "gpu_channel_teardown": (FailureClass.UNKNOWN, 60),
    "launch_failure": (FailureClass.UNKNOWN, 30),
    "none": (FailureClass.BENIGN, 99),
}
TAXONOMY = {
    FailureName(name): Failure(
        name=FailureName(name),
        failure_class=cls,
        meaning=name,
        action=Action.RESTART,
        retries=1,
        depth=depth,
        takes_place=name in {"gpu_fell_off_bus", "node_not_responding"},
        waits_for_place=name in {"insufficient_gpu_capacity", "pod_evicted_by_taint"},
        may_be_local=name in {"input_missing", "python_exception"},
    )
    for name, (cls, depth) in DEPTHS.items()
}


def claim(failure: str, order: int, role: Role = Role.ROOT, **more: Any) -> Evidence:
    given: dict[str, Any] = {
        "signature": SignatureId(f"test.{failure}"), "title": failure, "failure": FailureName(failure), "role": role,
        "severity": Severity.ERROR, "where": LogRef(file=more.pop("file", "job.log"), line=order), "order": order,
        "stream": Stream.APPLICATION, "text": failure,
    }  # fmt: skip
    return Evidence(**{**given, **more})


def verdict(*evidence: Evidence, **facts: Any) -> Attribution:
    return attribute(evidence, TAXONOMY, AttemptFacts(**facts))
