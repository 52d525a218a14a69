# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How far each attempt got by its own log lines, and whether its counter can be compared between attempts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from relight.types import AttemptId, Phase, StepProgress

ANEW_BELOW = 0.5
ANEW_AFTER = 3
_SMALL = 20


@dataclass(slots=True)
class _Writer:
    """One file's counter: the highest step, and the rising low ones that follow it."""

    highest: int = 0
    low: int = 0
    rising: int = 0


@dataclass(slots=True)
class _Attempt:
    writers: dict[str, _Writer] = field(default_factory=dict)


class StepTally:
    """Sums up the progress that lines state, as counts for the audit log.

    A counter that starts anew within an attempt (each epoch, without naming it) can't tell whether the next
    attempt got further: then `is_relative` is said, and steps are compared no more. A return to a
    checkpoint is none, and neither is a start over that the log announces.
    Shapes: completed steps in order of arrival, of any files; state is one small record a file.
    """

    def __init__(self) -> None:
        self._attempts: dict[AttemptId, _Attempt] = {}

    def counts(self, attempt: AttemptId, seen: Iterable[StepProgress]) -> dict[str, Any]:
        """`step`, `checkpoint_step`, `logged_steps` and `is_relative`, each only if there is something to say."""
        writers = self._attempts.setdefault(attempt, _Attempt()).writers
        counts: dict[str, Any] = {}
        for one in seen:
            file = one.where.file if one.where is not None else ""
            writer = writers.get(file)
            if writer is None:
                writer = writers[file] = _Writer()
            if one.phase is Phase.START:
                writer.highest = writer.low = writer.rising = 0
            if not one.is_completed:
                continue
            if one.checkpoint_step is not None:
                _raise(counts, "checkpoint_step", one.checkpoint_step)
            if one.phase is Phase.STEP and one.step is not None:
                _raise(counts, "step", one.step)
                counts["logged_steps"] = counts.get("logged_steps", 0) + 1
                if _is_anew(writer, one.step):
                    counts["is_relative"] = True
        return counts

    def forget(self, attempt: AttemptId) -> None:
        self._attempts.pop(attempt, None)


def _is_anew(writer: _Writer, step: int) -> bool:
    if step >= writer.highest:
        writer.highest, writer.low, writer.rising = step, 0, 0
        return False
    if writer.highest < _SMALL or step >= ANEW_BELOW * writer.highest:
        return False
    writer.rising = writer.rising + 1 if step > writer.low and writer.rising else 1
    writer.low = step
    if writer.rising < ANEW_AFTER:
        return False
    writer.highest, writer.low, writer.rising = step, 0, 0
    return True


def _raise(counts: dict[str, Any], name: str, reached: int) -> None:
    counts[name] = max(reached, counts.get(name, reached))
