# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rows about hangs: what `benchmarks.detection_hang` measures, with the bars and the fixed timeout beside it."""

from __future__ import annotations

from benchmarks.detection_hang import figures, measured
from benchmarks.detection_table import Row, Scale, row


@row
def hangs(scale: Scale) -> list[Row]:
    rows = measured(scale.seeds(24))
    ours, fixed = figures(rows), rows["fixed 600 s"]
    rate, p50, p90 = (ours[f"hang_{name}"] for name in ("false_alarms_per_job_day", "confirm_p50_s", "confirm_p90_s"))
    from_lines = ours["hang_false_alarms_per_job_day_rank0"]
    suspect, suspects = ours["hang_suspect_p50_s"], ours["hang_suspects_per_job_day"]
    ratio = ours["hang_lost_ratio_to_fixed_600_s"]
    return [
        Row(
            number="1", metric="hang false alarms per job-day, markers / rank 0 only", measured=f"{rate:.3f} / {from_lines:.3f}",
            bar="<= 0.10 / <= 0.30", is_met=rate <= 0.1 and from_lines <= 0.3,
            baseline=f"fixed 600 s: {fixed['false_alarms_per_job_day']:.3f}", figures=ours,
        ),
        Row(
            number="2", metric="hang confirmed after, p50 / p90, markers", measured=f"{p50:.0f} / {p90:.0f} s",
            bar="<= 330 / 780 s", is_met=p50 <= 330 and p90 <= 780,
            baseline=f"fixed 600 s: {fixed['confirm_p50_s']:.0f} / {fixed['confirm_p90_s']:.0f} s",
        ),
        Row(
            number="3", metric="hang suspected after, p50; suspects per job-day", measured=f"{suspect:.0f} s, {suspects:.2f}",
            bar="<= 75 s, <= 2", is_met=suspect <= 75 and suspects <= 2,
        ),
        Row(
            number="4", metric="hang: time lost against a fixed 600 s", measured=f"{ratio:.2f}", bar="<= 0.5", is_met=ratio <= 0.5,
            baseline=f"fixed 600 s: {fixed['lost_s_per_job_day']:.0f} s per job-day",
        ),
    ]  # fmt: skip
