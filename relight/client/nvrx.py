# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Takes what NVIDIA's resiliency extension measures on a rank: section timings and heartbeats."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from relight.client.reporter import Reporter

_MS_PER_S = 1e3


def report_sections(
    reporter: Reporter,
    step: int,
    summaries: Mapping[str, Mapping[Any, float]],
    *,
    local: Collection[str],
    whole: str | None = None,
) -> None:
    """Report a step timing from `Report.local_section_summaries` of the straggler detector.

    `local` names the sections before the first collective of a step; `whole` the one around the step,
    without which a step is the sum of all sections. The median of each section is taken.
    Units:  milliseconds in, as the detector keeps them.
    Errors: ValueError for a section that is not in `summaries`, or none at all.
    Source: nvidia_resiliency_ext.straggler, Detector.detection_section and Statistic.
    """
    medians = {name: _median_s(name, summary) for name, summary in summaries.items()}
    for name in (*local, *([whole] if whole is not None else [])):
        if name not in medians:
            raise ValueError(f"no section {name!r}; the report holds {', '.join(sorted(medians)) or 'none'}")
    step_s = medians[whole] if whole is not None else sum(medians.values())
    local_s = sum(medians[name] for name in local) if local else None
    reporter.timing(step, step_s, local_s)


def _median_s(name: str, summary: Mapping[Any, float]) -> float:
    """Keys are members of an enumeration that print as MED, AVG, …, or those names themselves."""
    for key, value in summary.items():
        if str(key).rpartition(".")[2] == "MED":
            return float(value) / _MS_PER_S
    raise ValueError(f"section {name!r} holds no median (MED), only {', '.join(map(str, summary))}")


class MirroredClient:
    """A `RankMonitorClient` whose heartbeats and sections are reported here too.

        client = MirroredClient(RankMonitorClient(), reporter, step_section="step")

    Everything else goes through unchanged. The sections named `step_section` count as steps.
    """

    def __init__(self, client: Any, reporter: Reporter, *, step_section: str | None = None) -> None:
        self._client = client
        self._reporter = reporter
        self._step_section = step_section
        self._steps = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send_heartbeat(self) -> None:
        self._client.send_heartbeat()
        self._reporter.heartbeat()

    def start_section(self, section: str) -> None:
        self._client.start_section(section)
        if section == self._step_section:
            self._reporter.step(self._steps + 1).__enter__()

    def end_section(self, section: str) -> None:
        if section == self._step_section:
            self._steps += 1
            self._reporter.step(self._steps).__exit__(None, None, None)
        self._client.end_section(section)

    def resume_at(self, step: int) -> None:
        """Number the steps from here, as after a checkpoint was loaded."""
        self._steps = step
