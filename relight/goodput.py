# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Where a workload's GPU time went: what trained, and what each stage of a failure cost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from itertools import pairwise

from relight.types import AttemptId, AttemptState, ClusterId, WorkloadId


class Part(StrEnum):
    """What a span of time was spent on, in the order in which a failure passes through them."""

    PRODUCTIVE = "productive"
    LOST = "lost_since_checkpoint"
    DETECT = "detect"
    DECIDE = "decide"
    ACT = "act"
    QUEUE = "queue"
    RELOAD = "reload"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """The marks that an incident left on its attempt; None where that stage was not reached.

    A straggler or a slowdown does not stop training: it costs no stage before the attempt ends.
    """

    onset_at: datetime
    detected_at: datetime | None = None
    decided_at: datetime | None = None
    acted_at: datetime | None = None
    is_open: bool = True
    is_harmless: bool = False
    stops_training: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """An attempt as its use of time needs it; `gpus` is None where nobody said how many a node has."""

    attempt: AttemptId
    workload: WorkloadId
    cluster: ClusterId
    index: int
    nodes: int
    state: AttemptState
    submitted_at: datetime
    gpus: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    first_step_at: datetime | None = None
    checkpoint_at: datetime | None = None
    trouble: Trouble | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of a workload's time; spans of one workload neither overlap nor run backwards."""

    part: Part
    begin: datetime
    end: datetime
    attempt: AttemptId


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """Hours by part, of one workload or of many.

    Units: GPU-hours if `is_in_gpu_hours`, else node-hours, since the number of GPUs is not known.
    `left_out` are workloads that a sum could not take in for that reason.
    """

    hours: Mapping[Part, float] = field(default_factory=dict)
    is_in_gpu_hours: bool = True
    left_out: tuple[WorkloadId, ...] = ()

    @property
    def total(self) -> float:
        return sum(self.hours.values())

    @property
    def goodput_ratio(self) -> float | None:
        """Productive share of what is known, or None while nothing is known."""
        known = self.total - self.hours.get(Part.UNKNOWN, 0.0)
        return self.hours.get(Part.PRODUCTIVE, 0.0) / known if known > 0 else None


def spans(runs: Iterable[Run], now: datetime) -> tuple[Span, ...]:
    """The time of one workload, run after run, until `now`.

    What was never reported is UNKNOWN and neither productive nor lost: a run without step reports, and
    the steps of a failed run in a workload that never reported a checkpoint.
    """
    ordered = sorted(runs, key=lambda run: (run.index, run.submitted_at))
    knows_steps = any(run.first_step_at for run in ordered)
    knows_checkpoints = any(run.checkpoint_at for run in ordered)
    found: list[Span] = []
    pairs: Sequence[tuple[Run, Run | None]] = [*pairwise(ordered), *((run, None) for run in ordered[-1:])]
    for run, following in pairs:
        if run.started_at is None:
            continue
        marks = [*_running(run, now, knows_steps, knows_checkpoints), *_recovering(run, following, now)]
        horizon = following.started_at if following is not None else None
        begin = max(run.started_at, found[-1].end) if found else run.started_at
        found += _laid_out(run.attempt, begin, [(part, min(end, horizon or end)) for part, end in marks])
    return tuple(found)


def waterfall(runs: Iterable[Run], now: datetime) -> Waterfall:
    """Hours by part of one workload."""
    known = {run.attempt: run for run in runs}
    is_in_gpu_hours = all(run.gpus is not None for run in known.values())
    hours = dict.fromkeys(Part, 0.0)
    for span in spans(known.values(), now):
        run = known[span.attempt]
        width = run.gpus if is_in_gpu_hours and run.gpus is not None else run.nodes
        hours[span.part] += (span.end - span.begin).total_seconds() / 3600 * width
    return Waterfall(hours=hours, is_in_gpu_hours=is_in_gpu_hours)


def cluster_waterfall(workloads: Mapping[WorkloadId, Iterable[Run]], now: datetime) -> Waterfall:
    """The sum over workloads, in GPU-hours; those whose GPUs nobody counted are named, not guessed."""
    hours, left_out = dict.fromkeys(Part, 0.0), list[WorkloadId]()
    for name, runs in workloads.items():
        one = waterfall(runs, now)
        if not one.is_in_gpu_hours:
            left_out.append(name)
            continue
        for part, value in one.hours.items():
            hours[part] += value
    return Waterfall(hours=hours, left_out=tuple(left_out))


def closed(trouble: Trouble | None, *, is_harmless: bool) -> Trouble | None:
    """The marks of an incident that is over; a harmless one cost nothing."""
    return replace(trouble, is_open=False, is_harmless=is_harmless) if trouble is not None else None


_Mark = tuple[Part, datetime]


def _running(run: Run, now: datetime, knows_steps: bool, knows_checkpoints: bool) -> Iterator[_Mark]:
    """Until the trouble, or the end: loading, training, and what is gone since the last checkpoint."""
    end = _trouble_begins(run, now)
    if run.first_step_at is None:
        yield (Part.RELOAD if knows_steps and run.ended_at else Part.UNKNOWN), end
        return
    yield Part.RELOAD, min(run.first_step_at, end)
    if run.ended_at is None or run.state is AttemptState.COMPLETED:
        yield Part.PRODUCTIVE, end
    elif knows_checkpoints:
        yield Part.PRODUCTIVE, min(run.checkpoint_at or run.first_step_at, end)
        yield Part.LOST, end
    else:
        yield Part.UNKNOWN, end


def _recovering(run: Run, following: Run | None, now: datetime) -> Iterator[_Mark]:
    """From the trouble to the next run: each stage ends where the next one's mark stands."""
    trouble = _costly(run)
    if trouble is not None:
        is_waiting = following is None and trouble.is_open
        acted = trouble.acted_at or (following.submitted_at if following is not None else None)
        stages = ((Part.DETECT, trouble.detected_at), (Part.DECIDE, trouble.decided_at), (Part.ACT, acted))
        for part, mark in stages:
            if mark is not None:
                yield part, mark
            elif is_waiting:
                yield part, now
                return
    if following is not None:
        yield Part.QUEUE, following.started_at or now


def _trouble_begins(run: Run, now: datetime) -> datetime:
    end, trouble = run.ended_at or now, _costly(run)
    return min(trouble.onset_at, end) if trouble is not None and trouble.stops_training else end


def _costly(run: Run) -> Trouble | None:
    """The trouble that stages are reckoned from, if there is one."""
    trouble = run.trouble
    if trouble is None or trouble.is_harmless or (run.ended_at is None and not trouble.stops_training):
        return None
    return trouble


def _laid_out(attempt: AttemptId, begin: datetime, marks: Iterable[_Mark]) -> Iterator[Span]:
    """Marks one behind the other; one that lies in the past of the last takes no time."""
    for part, end in marks:
        if end > begin:
            yield Span(part=part, begin=begin, end=end, attempt=attempt)
            begin = end
