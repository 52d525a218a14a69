# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What each attempt trains with: places and size by its controller, batch and sequence length by its own words."""

from __future__ import annotations

from dataclasses import replace

from relight.shape import StatedShape, is_measure, stated_from
from relight.types import AttemptId, JobShape, NodeName
from service.records import AttemptRecord


class JobShapes:
    """Keeps what was told of each attempt's shape, so that detectors hear of it once and again when it changes."""

    def __init__(self) -> None:
        self._told: dict[AttemptId, JobShape] = {}
        self._stated: dict[AttemptId, StatedShape] = {}

    def state(self, said: StatedShape) -> None:
        """A line of the attempt's log, or its client, states it; `news` has it from now on."""
        self._stated[said.attempt] = said.after(self._stated.get(said.attempt))

    def news(self, attempt: AttemptRecord) -> JobShape | None:
        """The shape as far as it is known, or None if that was told before."""
        shape = shape_of(attempt, self._stated.get(attempt.id))
        known = self._told.get(attempt.id)
        if known is not None and replace(known, at=shape.at) == shape:
            return None
        self._told[attempt.id] = shape
        return shape

    def forget(self, attempt: AttemptId) -> None:
        self._told.pop(attempt, None)
        self._stated.pop(attempt, None)


def shape_of(attempt: AttemptRecord, stated: StatedShape | None = None) -> JobShape:
    """What the job itself says outranks what was said of it beforehand; what nobody says stays unknown."""
    placed = attempt.detail("rank_to_node") or {}
    nodes = tuple(NodeName(placed[str(rank)]) for rank in range(len(placed)) if str(rank) in placed)
    per_node, hosts = attempt.detail("gpus_per_node"), len(attempt.seen.nodes)
    world_size = len(placed) or (per_node * hosts if per_node and hosts else hosts or None)
    on_record = stated_from(attempt.id, attempt.shape)
    said = stated.after(on_record) if stated is not None else on_record
    batch, length = said.global_batch(world_size), said.sequence_length
    return JobShape(
        attempt=attempt.id,
        at=attempt.seen.at,
        workload=attempt.seen.workload,
        world_size=world_size,
        batch=batch if batch is not None else _measure(attempt, "global_batch_size"),
        sequence_length=length if length is not None else _measure(attempt, "sequence_length"),
        nodes=nodes if len(nodes) == len(placed) else (),
    )


def _measure(attempt: AttemptRecord, name: str) -> int | None:
    said = attempt.detail(name)
    return said if is_measure(said) else None
