# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A log that fell silent before somebody ended the job: a hang that no line names."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

from detectors.evidence import LogEvidence
from detectors.line_prefix import own_time
from detectors.lines import Lines
from relight.attribute import STOP_ORDERS
from relight.types import Action, Evidence, FailureName, LogRef, Role, Severity, SignatureId, Stream

MIN_SILENCE = timedelta(seconds=20)
SILENCE_FACTOR = 10
_TAIL = 400
_MIN_GAPS = 5


def silence_before_order(read: Sequence[LogEvidence]) -> Evidence | None:
    """A claim of a silent hang, if every stamped job log went quiet long before the order to end it.

    Units: silent for at least 20 s and ten times the usual gap between training lines.
    Errors: none; without time stamps, or without an order to end, nothing is claimed.
    """
    ordered_at = min(
        (
            at
            for r in read
            for e in r.evidence
            if e.failure in STOP_ORDERS and (at := own_time(e.text, r.log.year)) is not None
        ),
        default=None,
    )
    if ordered_at is None:
        return None
    last: tuple[datetime, LogEvidence, int] | None = None
    usual = timedelta(0)
    for one in read:
        if one.log.stream is not Stream.APPLICATION or not one.steps:
            continue
        stamps = _stamps(one, ordered_at)
        if len(stamps) <= _MIN_GAPS:
            continue
        gaps = [(b - a).total_seconds() for (a, _), (b, _) in pairwise(stamps)]
        usual = max(usual, timedelta(seconds=median(gaps)))
        if last is None or stamps[-1][0] > last[0]:
            last = (stamps[-1][0], one, stamps[-1][1])
    if last is None or ordered_at - last[0] < max(MIN_SILENCE, SILENCE_FACTOR * usual):
        return None
    return _claim(last[1], last[2], last[0], ordered_at)


def _stamps(one: LogEvidence, before: datetime) -> list[tuple[datetime, int]]:
    """Times and indexes of the last training lines, in order, up to the order to end."""
    lines = Lines(one.log)
    out: list[tuple[datetime, int]] = []
    for step in one.steps[-_TAIL:]:
        at = lines.prefix(step.index).at
        if at is not None and at <= before and (not out or at >= out[-1][0]):
            out.append((at, step.index))
    return out


def _claim(one: LogEvidence, index: int, at: datetime, ordered_at: datetime) -> Evidence:
    silent_s = (ordered_at - at).total_seconds()
    return Evidence(
        signature=SignatureId("relight.silence"),
        title=f"no step in the {silent_s:.0f} s before the job was ended",
        failure=FailureName("silent_hang"),
        role=Role.ROOT,
        severity=Severity.WARNING,
        where=LogRef(file=one.log.name, line=one.log.numbers[index]),
        order=index,
        stream=one.log.stream,
        text=one.log.lines[index][:600].decode("utf-8", "replace"),
        at=at,
        accuses_node="none",
        action=Action.STOP,
        does_not_prove="which rank hung; all wait for it in silence",
    )
