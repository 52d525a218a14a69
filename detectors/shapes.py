# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What an attempt trains with, and what its predecessors of the same shape had learnt."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from typing import Any

from relight.types import JobShape

ShapeKey = tuple[int | None, int | None, int | None]
MOST_WORKLOADS = 64
_MEASURES = ("world_size", "batch", "sequence_length")


class ShapeChange(StrEnum):
    """What a statement of the shape means for baselines: only another shape makes them worthless."""

    FIRST = "first"
    SAME = "same"
    FULLER = "fuller"
    OTHER = "other"


def key_of(shape: JobShape) -> ShapeKey:
    """Baselines hold for one world size, global batch and sequence length."""
    return (shape.world_size, shape.batch, shape.sequence_length)


def joined(before: JobShape | None, seen: JobShape) -> JobShape:
    """`seen`, with what it leaves out as it was known before: not to say a thing is no change of it."""
    if before is None:
        return seen
    kept = {name: getattr(before, name) for name in _MEASURES if getattr(seen, name) is None}
    return replace(seen, workload=seen.workload or before.workload, **kept)


def change_of(before: JobShape | None, seen: JobShape) -> ShapeChange:
    """What `seen` says beyond what was known of the same attempt."""
    if before is None:
        return ShapeChange.FIRST
    pairs = [(getattr(before, name), getattr(seen, name)) for name in (*_MEASURES, "workload")]
    if any(was is not None and now is not None and was != now for was, now in pairs):
        return ShapeChange.OTHER
    return ShapeChange.FULLER if any(was is None and now is not None for was, now in pairs) else ShapeChange.SAME


def is_far(before: JobShape, seen: JobShape) -> bool:
    """True if a measure that both know changed by half or more; a ramp goes on in small steps."""
    pairs = [(getattr(before, name), getattr(seen, name)) for name in _MEASURES]
    return any(max(was, now) >= 1.5 * min(was, now) for was, now in pairs if was and now)


class LearntBefore:
    """The last state that each workload's attempts had learnt; the longest unused is dropped.

    What is unknown of one shape and known of another is no reason to take them for the same.
    Shapes: states are JSON objects; at most 64 workloads are remembered, one shape each.
    Errors: none.
    """

    def __init__(self) -> None:
        self._states: dict[str, tuple[ShapeKey, Mapping[str, Any]]] = {}

    def keep(self, shape: JobShape | None, state: Mapping[str, Any]) -> None:
        if shape is None or shape.workload is None:
            return
        self._states.pop(shape.workload, None)
        self._states[shape.workload] = (key_of(shape), state)
        if len(self._states) > MOST_WORKLOADS:
            del self._states[next(iter(self._states))]

    def recall(self, shape: JobShape) -> Mapping[str, Any] | None:
        """What an attempt of the same workload and shape had learnt, or None."""
        if shape.workload is None or (found := self._states.get(shape.workload)) is None:
            return None
        return found[1] if found[0] == key_of(shape) else None

    def snapshot(self) -> list[Any]:
        return [[name, list(key), state] for name, (key, state) in self._states.items()]

    def restore(self, states: list[Any]) -> None:
        self._states = {name: (tuple(key), state) for name, key, state in states}
