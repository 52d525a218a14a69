# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What an attempt trains with, and what its predecessors of the same shape had learnt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from relight.types import JobShape

ShapeKey = tuple[int | None, int | None, int | None]
MOST_WORKLOADS = 64


def key_of(shape: JobShape) -> ShapeKey:
    """Baselines hold for one world size, global batch and sequence length."""
    return (shape.world_size, shape.batch, shape.sequence_length)


class LearntBefore:
    """The last state that each workload's attempts had learnt; the longest unused is dropped.

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
