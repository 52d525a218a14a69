# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Nodes that somebody took out: a decision of people, told to the advisor so that its advice is compared with it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from datetime import UTC, datetime

from controllers.slurm.advice import Advisor, AdvisorRefused
from relight.jobs import SchedulerNode
from relight.types import ClusterId, NodeName

_DRAINED = re.compile(r"\bdr(?:ain|ng)", re.IGNORECASE)
# `Reason=fans loud [ada@2026-11-29T22:10:00]`: who, and when, in UTC as everything that is asked of Slurm.
_SIGNED = re.compile(r"\s*\[(?P<who>[^@\]]+)@(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)\]\s*$")
# What slurmctld and slurmd drain for by themselves is no decision of anybody.
_OWN = re.compile(
    r"^(?:Not responding|Kill task failed|Prolog (?:error|failed)|Epilog error|Low (?:RealMemory|TmpDisk|CPUs|socket)"
    r"|Node unexpectedly rebooted|gres/|batch job complete failure|Duplicate jobid|Reboot ASAP|Power)",
    re.IGNORECASE,
)


class DrainsRefused(Exception):
    """The advisor does not take what people did to nodes; everything else goes on without it."""


class Drains:
    """Tells of each drain once; a restart of the controller tells only those of which Slurm says when they began.

    Errors: AdvisorUnreachable, DrainsRefused, and then it is told at the next look.
    """

    def __init__(self, advisor: Advisor, cluster: ClusterId) -> None:
        self._advisor, self._cluster = advisor, cluster
        self._known: dict[NodeName, str] | None = None

    def look(self, nodes: Iterable[SchedulerNode], now: datetime) -> None:
        drained = {one.name: one.reason for one in nodes if _DRAINED.search(one.native_state)}
        known, is_first = self._known or {}, self._known is None
        fresh = {}
        for node, reason in drained.items():
            signed = _SIGNED.search(reason)
            is_own = _OWN.match(reason) is not None or (signed is not None and signed["who"] == "slurm")
            if known.get(node) == reason or is_own or (is_first and signed is None):
                continue
            at = datetime.fromisoformat(signed["at"]).replace(tzinfo=UTC) if signed is not None else now
            fresh[node] = (reason, min(at, now))
        if fresh:
            keyed = {node: (_key(node, reason), reason, at) for node, (reason, at) in fresh.items()}
            try:
                self._advisor.tell_drained(self._cluster, keyed)
            except AdvisorRefused as why:
                raise DrainsRefused(f"drained nodes could not be told: {why}") from why
        self._known = drained


def _key(node: NodeName, reason: str) -> str:
    return f"drained/{node}/{hashlib.sha256(reason.encode()).hexdigest()[:16]}"
