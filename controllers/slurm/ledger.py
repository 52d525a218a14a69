# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What recoveries cost: how long each part took, in seconds and in GPU-hours, as a file of metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

# From one moment to the next; what did not happen is left out, not counted as nothing.
PARTS = {
    "detect": ("ended", "detected"),
    "decide": ("detected", "decided"),
    "act": ("decided", "executed"),
    "hold": ("requeue_hold", "release"),
    "queue": ("executed", "restarted"),
    "resume": ("restarted", "resumed"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One recovery; `lost_gpu_hours` counts the GPUs of the job from its end to its resumption."""

    attempt: str
    disposition: str
    seconds: Mapping[str, float]
    lost_gpu_hours: float | None


def entry(outcome: Mapping[str, Any], gpus: int | None) -> Entry:
    """The costs of one finished recovery, from its moments."""
    at = {name: datetime.fromisoformat(text) for name, text in outcome.get("times", {}).items()}
    seconds = {
        part: (at[end] - at[start]).total_seconds() for part, (start, end) in PARTS.items() if start in at and end in at
    }
    known = [at[name] for name in ("resumed", "restarted", "executed") if name in at]
    lost = None
    if gpus is not None and "ended" in at and known:
        lost = gpus * (known[0] - at["ended"]).total_seconds() / 3600
    return Entry(
        attempt=str(outcome.get("attempt", "")), disposition=str(outcome.get("disposition", "")), seconds=seconds,
        lost_gpu_hours=lost,
    )  # fmt: skip


def exposition(entries: Iterable[Entry], *, is_blind: bool, is_advised: bool, holds: int) -> str:
    """Prometheus text, for the textfile collector."""
    kept = list(entries)
    lines = [
        "# HELP relight_controller_blind 1 while the scheduler can't be read",
        "# TYPE relight_controller_blind gauge",
        f"relight_controller_blind {int(is_blind)}",
        "# HELP relight_controller_advised 1 while the advisor answers",
        "# TYPE relight_controller_advised gauge",
        f"relight_controller_advised {int(is_advised)}",
        "# HELP relight_controller_recoveries_open Recoveries under way",
        "# TYPE relight_controller_recoveries_open gauge",
        f"relight_controller_recoveries_open {holds}",
        "# HELP relight_recoveries_total Recoveries by how they ended",
        "# TYPE relight_recoveries_total counter",
    ]
    for disposition in sorted({one.disposition for one in kept}):
        count = sum(one.disposition == disposition for one in kept)
        lines.append(f'relight_recoveries_total{{disposition="{disposition}"}} {count}')
    lines += ["# HELP relight_recovery_seconds Time spent in each part", "# TYPE relight_recovery_seconds summary"]
    for part in PARTS:
        spent = [one.seconds[part] for one in kept if part in one.seconds]
        if spent:
            lines.append(f'relight_recovery_seconds_sum{{part="{part}"}} {sum(spent):.3f}')
            lines.append(f'relight_recovery_seconds_count{{part="{part}"}} {len(spent)}')
    hours = sum(one.lost_gpu_hours or 0.0 for one in kept)
    lines += ["# HELP relight_lost_gpu_hours_total GPU-hours from failures to resumptions",
              "# TYPE relight_lost_gpu_hours_total counter", f"relight_lost_gpu_hours_total {hours:.4f}"]  # fmt: skip
    return "\n".join(lines) + "\n"
