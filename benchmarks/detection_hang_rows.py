# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Rows about hangs: what `benchmarks.detection_hang` measures, with the bars and a fixed timeout beside it."""

from __future__ import annotations

from benchmarks.detection_hang import figures, measured
from benchmarks.detection_table import Row, Scale, row


@row
def hangs(scale: Scale) -> list[Row]:
    rows = measured(scale.seeds(24))
    ours, fixed, lines = figures(rows), rows["fixed 600 s"], rows["relight, rank-0 steps only"]
    rate, from_lines = ours["hang_false_alarms_per_job_day"], ours["hang_false_alarms_per_job_day_rank0"]
    p50, p90 = ours["hang_confirm_p50_s"], ours["hang_confirm_p90_s"]
    suspect, suspects = ours["hang_suspect_p50_s"], ours["hang_suspects_per_job_day"]
    ratio = ours["hang_lost_ratio_to_fixed_600_s"]
    alarms = f"fixed 600 s: {fixed['false_alarms_per_job_day']:.3g}"
    return [
        Row(
            number="1.1", metric="hang: false alarms per job-day, phase markers", measured=f"{rate:.3g}",
            bar="<= 0.10", is_met=rate <= 0.1, baseline=alarms, figures=ours,
        ),
        Row(
            number="1.2", metric="hang: false alarms per job-day, rank-0 lines only", measured=f"{from_lines:.3g}",
            bar="<= 0.30", is_met=from_lines <= 0.3, baseline=alarms,
        ),
        Row(
            number="2", metric="hang: confirmed after, p50 / p90", measured=f"{p50:.0f} / {p90:.0f} s",
            bar="<= 330 / 780 s", is_met=p50 <= 330 and p90 <= 780,
            baseline=(
                f"fixed 600 s: {fixed['confirm_p50_s']:.0f} / {fixed['confirm_p90_s']:.0f}; "
                f"rank-0 lines: {lines['confirm_p50_s']:.0f} / {lines['confirm_p90_s']:.0f}"
            ),
        ),
        Row(
            number="3", metric="hang: suspected after p50, suspicions per job-day", measured=f"{suspect:.0f} s, {suspects:.2g}",
            bar="<= 75 s, <= 2", is_met=suspect <= 75 and suspects <= 2,
            baseline=f"with a probe confirmed after {ours['hang_confirm_p50_s_with_probe']:.0f} s",
        ),
        Row(
            number="4", metric="hang: time lost a day against fixed 600 s", measured=f"{ratio:.2f}x", bar="<= 0.5x",
            is_met=ratio <= 0.5, baseline=f"fixed 600 s: {fixed['lost_s_per_job_day']:.0f} s",
        ),
    ]  # fmt: skip
