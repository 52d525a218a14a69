# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What somebody said that an attempt trains with: a line of its log, its client, or its controller."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from relight.types import AttemptId, LogRef

MOST = 1 << 40  # samples or tokens: a number beyond is none that anybody trains with


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedShape:
    """A statement of the shape; None is "not said", and takes nothing back.

    `batch` is the global batch size and `sequence_length` counts tokens of one sample. Some trainers only say
    what one rank does: `rank_batch` samples at once, `accumulation` times before the optimizer steps.
    """

    attempt: AttemptId
    batch: int | None = None
    sequence_length: int | None = None
    rank_batch: int | None = None
    accumulation: int | None = None
    where: LogRef | None = None

    def after(self, earlier: StatedShape | None) -> StatedShape:
        """Both statements as one: the later says it where both do."""
        if earlier is None:
            return self
        left_out = {name: getattr(earlier, name) for name in _MEASURES if getattr(self, name) is None}
        return replace(self, **left_out)

    def global_batch(self, world_size: int | None) -> int | None:
        """As stated, else what all ranks do together, each with data of its own; None where that is unknown.

        With ranks that share a sample (tensor or pipeline parallel) the product is too large by a constant,
        which still tells a changed batch from the same one.
        """
        if self.batch is not None or self.rank_batch is None or not world_size:
            return self.batch
        return self.rank_batch * (self.accumulation or 1) * world_size

    @property
    def says_anything(self) -> bool:
        return any(getattr(self, name) is not None for name in _MEASURES)

    def as_json(self) -> dict[str, int]:
        """What is said, without what is not."""
        said = {name: getattr(self, name) for name in _MEASURES}
        return {name: value for name, value in said.items() if value is not None}


_MEASURES = tuple(one.name for one in fields(StatedShape) if one.name not in {"attempt", "where"})


def stated_from(attempt: AttemptId, said: Mapping[str, Any]) -> StatedShape:
    """What `as_json` wrote; names that we don't know and values that are no such numbers are left out."""
    known = {name: said[name] for name in _MEASURES if is_measure(said.get(name))}
    return StatedShape(attempt=attempt, **known)


def is_measure(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MOST
