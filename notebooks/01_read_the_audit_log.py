# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
# %% [markdown]
# # Read the audit log
#
# `relight audit export DIR` writes `events.parquet`, one row an event, while the log stays in use. Here it becomes
# a pandas frame: what failed, what was advised, what people said of it, and how soon we noticed.
# Without a file of your own, a sample of the same form is read.

# %%
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pandas as pd

from relight.chain import GENESIS, Record, draft
from relight.events import AnomalyDetected, AttributionMade, FeedbackGiven, FeedbackVerdict
from relight.types import (
    Anomaly,
    AnomalyKind,
    AttemptId,
    EvidenceStatus,
    FailureClass,
    FailureName,
    RecommendationId,
)

EXPORT: Path | None = None  # Path("export/events.parquet")


# %%
def sample() -> pd.DataFrame:
    """Five attempts as an export would hold them; every third verdict was wrong, by a person's word."""
    said = [
        ("gpu_fell_off_bus", FailureClass.HARDWARE, None),
        ("cause_not_in_log", FailureClass.UNKNOWN, "shared_filesystem_stuck"),
        ("nccl_collective_timeout", FailureClass.UNKNOWN, "nic_failure"),
        ("cuda_oom", FailureClass.APPLICATION, None),
        ("cause_not_in_log", FailureClass.UNKNOWN, None),
    ]
    events = []
    for number, (failure, failure_class, truth) in enumerate(said):
        at, attempt = datetime(2026, 1, 5, number, tzinfo=UTC), AttemptId(f"demo/{number}/0")
        anomaly = Anomaly(
            attempt=attempt, kind=AnomalyKind.CRASH, detector="crash", score=1.0,
            onset_at=at, detected_at=at + timedelta(seconds=4 + 3 * number),
        )  # fmt: skip
        events.append(AnomalyDetected(at=anomaly.detected_at, anomaly=anomaly))
        events.append(
            AttributionMade(
                at=anomaly.detected_at, attempt=attempt, failure=FailureName(failure), failure_class=failure_class,
                evidence_status=EvidenceStatus.SUPPORTED, attribution={},
            )
        )  # fmt: skip
        if truth is not None:
            events.append(
                FeedbackGiven(
                    at=at + timedelta(hours=1), recommendation=RecommendationId(f"r{number}"), attempt=attempt,
                    verdict=FeedbackVerdict.WRONG, actor="operator", true_failure=FailureName(truth),
                )
            )  # fmt: skip
    head, rows = GENESIS, []
    for event in events:
        record = draft(event).seal(head)
        head = record.head
        rows.append(record)
    frame = pd.DataFrame(rows, columns=list(Record._fields))
    frame["occurred_at"] = pd.to_datetime(frame.pop("at_us"), unit="us")
    written = io.BytesIO()
    frame.to_parquet(written)
    return pd.read_parquet(written)


events = sample() if EXPORT is None else pd.read_parquet(EXPORT)
print(f"{len(events)} events, {events['occurred_at'].min()} to {events['occurred_at'].max()}")
print(events["kind"].value_counts().to_string())


# %% [markdown]
# `payload` is the event's JSON: its fields become columns on demand.


# %%
def of_kind(kind: str) -> pd.DataFrame:
    rows = events[events["kind"] == kind]
    fields = pd.DataFrame([json.loads(text) for text in rows["payload"]], index=rows.index)
    return rows[["position", "occurred_at", "attempt"]].join(fields.drop(columns=["attempt", "kind"], errors="ignore"))


attributed = of_kind("attribution.made")
print(attributed.groupby(["failure_class", "failure"]).size().rename("attempts").to_string())

# %% [markdown]
# Detection latency: from the onset that a detector found to the moment it spoke.

# %%
found = pd.json_normalize(of_kind("anomaly.detected")["anomaly"].tolist())
latency_s = (pd.to_datetime(found["detected_at"]) - pd.to_datetime(found["onset_at"])).dt.total_seconds()
print(latency_s.groupby(found["detector"]).describe()[["count", "50%", "max"]].to_string())

# %% [markdown]
# What is worth a label: verdicts that people corrected, and verdicts without a cause. Put the logs of these attempts
# into a folder each, with a `label.json`, and retrain (`02_retrain_attribution`).

# %%
feedback = of_kind("feedback.given").reindex(columns=["attempt", "true_failure", "verdict"])
judged = attributed.merge(feedback, on="attempt", how="left")
worth = judged[judged["true_failure"].notna() | (judged["failure"] == "cause_not_in_log")]
print(worth[["attempt", "failure", "true_failure"]].to_string(index=False))
