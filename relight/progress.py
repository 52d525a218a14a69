# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How far a workload got, and how often it failed in the same way without getting further."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from relight.types import (
    AttemptId,
    Attribution,
    FailureClass,
    FailureName,
    NodeName,
    Progress,
    StepProgress,
    Suspect,
)

# Ends that are nobody's failure: the scheduler or a person took the nodes, or nothing failed at all.
UNCOUNTED = frozenset(
    FailureName(name)
    for name in (
        "none", "preempted", "time_limit", "user_cancelled", "node_removed", "pod_evicted_by_taint",
        "insufficient_gpu_capacity", "step_waiting_for_resources", "crash_after_completion",
    )
)  # fmt: skip

DAY = timedelta(hours=24)
REMEMBERED_RESTARTS = 256
REMEMBERED_ATTEMPTS = 64
REMEMBERED_ENTITIES = 512
ROOT_CHARS = 200

_NOISE = (
    (re.compile(r"\x1b\[[0-9;]*[A-Za-z]"), ""),
    (re.compile(r"\b0x[0-9a-fA-F]+\b"), "#"),
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "#"),
    (re.compile(r"\b(?=[0-9a-fA-F]*\d)[0-9a-fA-F]{8,}\b"), "#"),
    (re.compile(r"\d+"), "#"),
    (re.compile(r"#(?:[.:,\-/_ ]?#)+"), "#"),
    (re.compile(r"\s+"), " "),
)

RootKey = tuple[FailureName, str]


def root_key(attribution: Attribution) -> RootKey:
    """What makes two failures "the same": the failure and its root line without numbers, ids and hosts."""
    if attribution.root is None:
        return (attribution.failure, "")
    text = attribution.root.text
    hosts = {str(n) for n in (attribution.root.node, *attribution.nodes) if n}
    for host in sorted(hosts, key=len, reverse=True):
        text = text.replace(host, "#")
    for pattern, mask in _NOISE:
        text = pattern.sub(mask, text)
    return (attribution.failure, text.strip()[:ROOT_CHARS])


def entity_key(failure: FailureName, node: NodeName, gpu: str | None = None) -> str:
    """The key of `Ledger.same_node`: a failure on a node, or on one GPU of it."""
    return f"{failure}@{node}#{gpu}" if gpu else f"{failure}@{node}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What a workload has used up of its retries; a value, changed only by `after`.

    `same_root_without_progress` and `attempts_without_progress` are strikes: they rise on Progress.NO
    only. `repeats` counts attempts since the last known progress, unknown ones too: it spaces restarts
    out and never stops anything. `same_node` counts accusations within a day, by `entity_key`.
    """

    root: RootKey | None = None
    same_root_without_progress: int = 0
    attempts_without_progress: int = 0
    repeats: int = 0
    same_root_seen: int = 0
    total_restarts: int = 0
    ever_progressed: bool = False
    restarted_at: tuple[datetime, ...] = ()
    same_node: Mapping[str, int] = field(default_factory=dict)
    same_node_at: Mapping[str, datetime] = field(default_factory=dict)

    def after(
        self, attribution: Attribution, progress: Progress, at: datetime, *, counts: bool | None = None
    ) -> Ledger:
        """The ledger after one more failed attempt.

        `counts` False (or, left out, an end of `UNCOUNTED`) takes nothing from the workload, but known
        progress is still remembered.
        """
        if counts is None:
            counts = _counts(attribution)
        if not counts:
            return self._credited() if progress is Progress.YES else self
        key = root_key(attribution)
        is_same = key == self.root
        before = self._credited() if progress is Progress.YES else self
        strike = 1 if progress is Progress.NO else 0
        same_node, same_node_at = self._accused(attribution, at)
        return replace(
            before,
            root=key,
            same_root_without_progress=(before.same_root_without_progress if is_same else 0) + strike,
            attempts_without_progress=before.attempts_without_progress + strike,
            repeats=0 if progress is Progress.YES else before.repeats + 1,
            same_root_seen=(self.same_root_seen if is_same else 0) + 1,
            total_restarts=self.total_restarts + 1,
            restarted_at=(*_within_a_day(self.restarted_at, at), at)[-REMEMBERED_RESTARTS:],
            same_node=same_node,
            same_node_at=same_node_at,
        )

    def restarts_within_a_day(self, at: datetime) -> int:
        return len(_within_a_day(self.restarted_at, at))

    def times_accused(self, failure: FailureName, suspect: Suspect) -> int:
        """How often within a day this failure struck the same GPU, or the same node if no GPU is named."""
        if suspect.node is None:
            return 0
        return self.same_node.get(entity_key(failure, suspect.node, suspect.gpu), 0)

    def _credited(self) -> Ledger:
        """Known progress wipes the strikes out."""
        return replace(
            self,
            same_root_without_progress=0,
            attempts_without_progress=0,
            repeats=0,
            ever_progressed=True,
        )

    def _accused(self, attribution: Attribution, at: datetime) -> tuple[Mapping[str, int], Mapping[str, datetime]]:
        fresh = {k: t for k, t in self.same_node_at.items() if abs(at - t) <= DAY}
        counts = {k: self.same_node[k] for k in fresh if k in self.same_node}
        keys = {
            entity_key(attribution.failure, s.node, gpu)
            for s in attribution.suspects
            if s.node is not None
            for gpu in (None, s.gpu)
        }
        for key in sorted(keys):
            counts[key] = counts.get(key, 0) + 1
            fresh[key] = at
        kept = sorted(fresh, key=lambda k: (fresh[k], k))[-REMEMBERED_ENTITIES:]
        return (
            {k: counts[k] for k in kept if k in counts},
            {k: fresh[k] for k in kept if k in counts},
        )


def _counts(attribution: Attribution) -> bool:
    return attribution.failure not in UNCOUNTED and attribution.failure_class is not FailureClass.BENIGN


def _within_a_day(times: tuple[datetime, ...], at: datetime) -> tuple[datetime, ...]:
    return tuple(t for t in times if abs(at - t) <= DAY)


@dataclass(slots=True)
class _Reach:
    """The furthest an attempt got; None means that nothing of the kind was seen."""

    step: int | None = None
    checkpoint: int | None = None
    was_readable: bool = False


class StepLedger:
    """The steps and checkpoints that each attempt of one workload completed.

    Attempts stand in the order of their first mention. Only completed work counts; late reports for an
    older attempt are credited to that attempt. State is bounded: the oldest attempts are folded into one.
    """

    def __init__(self) -> None:
        self._reached: dict[AttemptId, _Reach] = {}
        self._folded = _Reach()

    def begin(self, attempt: AttemptId) -> None:
        """Put an attempt in order, before it has said anything."""
        if attempt in self._reached:
            return
        self._reached[attempt] = _Reach()
        while len(self._reached) > REMEMBERED_ATTEMPTS:
            oldest = self._reached.pop(next(iter(self._reached)))
            self._folded = _furthest((self._folded, oldest))

    def observe(self, seen: StepProgress) -> None:
        self.begin(seen.attempt)
        if not seen.is_completed:
            return
        reach = self._reached[seen.attempt]
        reach.step = _later(reach.step, seen.step)
        reach.checkpoint = _later(reach.checkpoint, seen.checkpoint_step)

    def ended(self, attempt: AttemptId, *, was_readable: bool) -> None:
        """Close an attempt: only if its log was read whole does the absence of steps mean anything."""
        self.begin(attempt)
        self._reached[attempt].was_readable = was_readable

    def progress_of(self, attempt: AttemptId) -> Progress:
        """Did `attempt` get further than every attempt before it?

        UNKNOWN if it reported nothing and its log could not be read whole.
        """
        reach = self._reached.get(attempt)
        if reach is None:
            return Progress.UNKNOWN
        before = _furthest(self._earlier(attempt))
        if _is_further(reach.checkpoint, before.checkpoint) or _is_further(reach.step, before.step):
            return Progress.YES
        has_reported = reach.step is not None or reach.checkpoint is not None
        return Progress.NO if has_reported or reach.was_readable else Progress.UNKNOWN

    def last_step(self, attempt: AttemptId) -> int | None:
        reach = self._reached.get(attempt)
        return None if reach is None else reach.step

    def last_checkpoint(self) -> int | None:
        """The newest checkpoint of the whole workload."""
        return _furthest((self._folded, *self._reached.values())).checkpoint

    def _earlier(self, attempt: AttemptId) -> tuple[_Reach, ...]:
        order = list(self._reached)
        return (self._folded, *(self._reached[a] for a in order[: order.index(attempt)]))


def _later(one: int | None, other: int | None) -> int | None:
    known = [x for x in (one, other) if x is not None]
    return max(known) if known else None


def _furthest(reaches: tuple[_Reach, ...]) -> _Reach:
    best = _Reach()
    for reach in reaches:
        best.step = _later(best.step, reach.step)
        best.checkpoint = _later(best.checkpoint, reach.checkpoint)
    return best


def _is_further(reached: int | None, before: int | None) -> bool:
    return reached is not None and (before is None or reached > before)
