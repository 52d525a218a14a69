# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a file's name says of it: which stream it is, which rank and node wrote it, whether it is a log at all."""

from __future__ import annotations

import re
from dataclasses import dataclass

from relight.types import NodeName, Rank, Stream

_STREAMS: tuple[tuple[re.Pattern[str], Stream], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), stream)
    for pattern, stream in (
        (r"dmesg|kern(?:el)?[._-]|kmsg|syslog|messages|journal", Stream.KERNEL),
        (r"slurmctld|slurmd|slurmdbd|scontrol|sacct|squeue|sinfo|jobcomp|srun\.log|node\.txt|pbs|lsf|qstat", Stream.SCHEDULER),
        (r"nvidia-smi|dcgm|nvml|rocm-smi", Stream.DCGM),
        (r"fabric|nvlsm|opensm|ibdiag", Stream.FABRIC),
        (r"kubelet|kubectl|events?\.(?:log|txt|ya?ml)|pod[._-]", Stream.KUBERNETES),
    )
)  # fmt: skip
_RANKED = re.compile(r"(?:^|[/._-])rank[_-]?(?P<rank>\d{1,6})(?:[-_.](?P<node>[A-Za-z][\w-]*\d[\w-]*))?(?=[./_-]|$)")
_WORKER = re.compile(r"(?:^|/)(?P<node>[A-Za-z][\w-]*)\.(?P<job>\d+)\.(?P<step>\d+)\.(?:out|err|log)$")
_NODE_FILE = re.compile(r"(?:slurmd|dmesg|kern|syslog|pyspy)[-_.](?P<node>[A-Za-z][\w-]*\d)(?=[.]|$)")
_NOT_LOGS = re.compile(
    r"(?:^|/)(?:README[^/]*|truth\.json|label\.json|input\.json|times/.*|[^/]*\.(?:jsonl|json|csv|parquet|pt|npz|yaml|yml|md|py|sh|html))$",
    re.IGNORECASE,
)
_WORKER_COPIES = re.compile(r"(?:^|/)attempt_\d+/(?P<local>\d+)/(?:stdout|stderr)\.log$")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedLog:
    """`is_copy` marks a launcher's per-worker copy of output that also stands in the job's own log."""

    stream: Stream
    rank: Rank | None = None
    node: NodeName | None = None
    is_copy: bool = False


def read_name(name: str) -> NamedLog | None:
    """What a path tells of the log behind it, or None if it is none (data, notes, configuration).

    Source: the naming of launchers and collectors: `rank3-node4.out`, `slurmd-node2.log`,
            `worker.job.step.out`, torchrun's `attempt_0/0/stderr.log`.
    """
    if _NOT_LOGS.search(name):
        return None
    base = name.rsplit("/", 1)[-1]
    stream = next((s for pattern, s in _STREAMS if pattern.search(base)), Stream.APPLICATION)
    ranked = _RANKED.search(name)
    placed = _NODE_FILE.search(base) or _WORKER.search(name)
    node = (ranked["node"] if ranked is not None else None) or (placed["node"] if placed is not None else None)
    return NamedLog(
        stream=stream,
        rank=Rank(int(ranked["rank"])) if ranked is not None else None,
        node=NodeName(node) if node else None,
        is_copy=_WORKER_COPIES.search(name) is not None,
    )
