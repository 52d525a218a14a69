# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One working example for every request body, shown in the API's description and sent by its tests."""

from __future__ import annotations

from typing import Any, Final

EXAMPLES: Final[dict[str, dict[str, Any]]] = {
    "AttemptAsk": {
        "cluster_id": "default",
        "workload_id": "llm-7b",
        "scheduler": {"kind": "slurm", "job_id": "4711"},
        "attempt_index": 0,
        "name": "pretrain",
        "user": "ada",
        "partition": "gpu",
        "allocated_nodes": ["n1", "n2"],
        "requeueable": True,
        "state": "FAILED",
        "reason": "NonZeroExitCode",
        "exit_code": 1,
        "observed_at": "2026-11-02T12:00:00Z",
    },
    "SignalBatch": {
        "signals": [
            {
                "source": "trainer",
                "source_event_id": "llm-7b/step/1200",
                "event_time": "2026-11-02T11:59:58Z",
                "attempt_id": "a-1",
                "progress": {"step": 1200, "checkpoint_step": 1000, "kind": "completed"},
            },
            {
                "source": "node-health",
                "source_event_id": "n2/79/1",
                "event_time": "2026-11-02T11:59:59Z",
                "node": "n2",
                "gpu": "3",
                "node_event": {"is_fatal": True, "error_code": ["79"], "check_name": "GpuXid"},
            },
        ]
    },
    "RecommendationAsk": {"attempt_id": "a-1", "trigger": "exited", "wait_ms": 0},
    "ClaimAsk": {"controller_id": "slurm-1", "observed_generation": 1, "lease_s": 60},
    "ReconciliationAsk": {
        "observed_generation": 1,
        "disposition": "CONVERGED",
        "reason": "desired_state_observed",
        "observation": {"job_state": "PENDING", "restart_count": 1, "exc_nodes": ["n2"], "held": False},
        "claim_token": "as the claim told it",
    },
    "MilestoneAsk": {
        "recommendation_id": "r-1",
        "step": "requeue_hold",
        "phase": "intent",
        "idempotency_key": "r-1/1/requeue_hold/intent",
    },
    "AnswerAsk": {"actor": "ada", "note": "n2 was replaced last week, go on"},
    "FeedbackAsk": {"actor": "ada", "verdict": "wrong", "true_failure": "cuda_oom", "note": "memory"},
    "ExclusionAsk": {
        "node": "n9",
        "scope": "cluster",
        "reason": "fan replaced, waiting for a bench test",
        "actor": "ada",
        "expires_at": "2036-11-03T12:00:00Z",
    },
    "PolicyAsk": {"text": "schema: 1\n", "actor": "ada", "reason": "back to the defaults"},
    "SilenceAsk": {
        "workload_id": "llm-7b",
        "node": "n2",
        "ends_at": "2026-11-02T18:00:00Z",
        "actor": "ada",
        "reason": "the rack is being moved",
    },
    "StageAsk": {"class": "hardware", "stage": "notify", "actor": "ada", "reason": "new firmware on half the nodes"},
    "ModeAsk": {
        "scope": "cluster",
        "target": "default",
        "mode": "approve",
        "actor": "ada",
        "reason": "two weeks of monitoring agreed with us",
    },
    "AttributionAsk": {
        "attempt_id": "a-1",
        "failure": "gpu_fell_off_bus",
        "class": "hardware",
        "retry_outlook": "recovers_elsewhere",
        "evidence_status": "supported",
        "implicated": [{"node": "n2", "reason": "Xid 79 in the kernel log"}],
        "evidence_refs": [{"file": "kern.log", "line": 7}],
        "attributor": "our-model",
        "version": "2026-11-01",
    },
    "ModelPromotionAsk": {
        "model": "attribution@4",
        "actor": "ada",
        "reason": "taught with the cases of October",
        "even_if_worse": False,
    },
    "VerifyAsk": {"anchor": None},
}
