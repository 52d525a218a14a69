# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Who is compared with whom: the ranks of one pipeline stage, each with the median of the others."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Slots = NDArray[np.int32]

MANY = 64  # from here on leaving oneself out changes nothing worth the time


class PeerGroups:
    """The medians of each rank's peers, all ranks at once.

    Shapes: values of shape (ranks,), NaN for a rank that did not report; results alike.
    Errors: none; a rank with no peer, or whose group reported by less than half, gets NaN.
    """

    def __init__(self, stages: NDArray[np.integer]) -> None:
        self.labels, group = np.unique(stages, return_inverse=True)
        self.sizes = np.bincount(group, minlength=len(self.labels))
        self._ranks = len(stages)
        self._group = group.astype(np.int16)
        width = int(self.sizes.max()) if self._ranks else 0
        self._grid = np.full((len(self.labels), width), self._ranks, dtype=np.int32)
        order = np.argsort(group, kind="stable")
        column = np.arange(self._ranks) - np.repeat(np.cumsum(self.sizes) - self.sizes, self.sizes)
        self._grid[group[order], column] = order

    @property
    def nbytes(self) -> int:
        return int(self._grid.nbytes + self._group.nbytes + self.sizes.nbytes + self.labels.nbytes)

    def members(self, group: int) -> Slots:
        return self._grid[group, : self.sizes[group]]

    def around(self, rank: int) -> Slots:
        """The group that a rank belongs to, itself included."""
        return self.members(int(self._group[rank]))

    def medians(self, values: Floats) -> tuple[Floats, Floats]:
        """Each rank's median of its peers without itself, and each group's median."""
        padded = np.empty(self._ranks + 1, dtype=np.float32)
        present = np.isfinite(values)
        padded[:-1] = values if present.all() else np.where(present, values, np.inf)
        padded[-1] = np.inf
        own = padded[self._grid]
        ordered = np.sort(own, axis=1)
        count = self.sizes if present.all() else np.isfinite(ordered).sum(axis=1)
        low, high = np.maximum(count - 1, 0) // 2, np.minimum(count // 2, ordered.shape[1] - 1)
        rows = np.arange(len(count))
        whole: Floats = (ordered[rows, low] + ordered[rows, high]) * np.float32(0.5)
        whole[2 * count < self.sizes] = np.nan
        if len(self.sizes) and self.sizes.min() >= MANY:
            return whole[self._group], whole
        peers = self._without_self(own, ordered, np.maximum(count - 2, 0) // 2)
        peers += self._without_self(own, ordered, low)
        peers *= np.float32(0.5)
        peers[(count < 2) | (2 * count < self.sizes)] = np.nan
        padded[self._grid] = peers
        return padded[:-1], whole

    @staticmethod
    def _without_self(own: Floats, ordered: Floats, index: NDArray[np.integer]) -> Floats:
        """The index-th smallest of each row, taken without the element itself."""
        rows = np.arange(len(index))
        here = ordered[rows, index][:, None]
        after = ordered[rows, np.minimum(index + 1, ordered.shape[1] - 1)][:, None]
        chosen: Floats = np.where(own <= here, after, here)
        return chosen
