# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whether one pipeline stage carries more work than the others: the workload's imbalance, no node's fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from detectors.peer_cusum import PeerCusum, PeerCusumOptions

WARMUP = 20
MUCH = 1.2


class StageBalance:
    """Compares the stages' medians: once at the start, and by CUSUM for a change later.

    Shapes: one number a stage; nothing is said of fewer than two stages.
    Units:  ratios to the median of the other stages.
    """

    def __init__(self, options: PeerCusumOptions) -> None:
        self._engine = PeerCusum(
            PeerCusumOptions(
                effect=2 * options.effect, false_per_day=options.false_per_day, usual_spread=10.0, warmup=WARMUP
            )
        )

    def see(self, ranks: PeerCusum, wall_s: float, at_s: float) -> list[tuple[int, float, float, bool]]:
        """(stage, ratio, since, is it so from the start) of each stage newly found out of balance."""
        medians, labels = ranks.stage_medians, ranks.groups.labels
        if len(labels) < 2 or len(medians) != len(labels) or not np.isfinite(medians).all():
            return []
        engine = self._engine
        slots = engine.slots_of(labels.astype(np.int32))
        if len(slots) != len(engine.ranks):
            return []
        was_ready = bool((engine.reports >= WARMUP).all())
        new = engine.step(medians.astype(np.float32), wall_s, at_s)
        found = []
        if not was_ready and (engine.reports >= WARMUP).all():
            heavy = np.flatnonzero(engine.bias > np.log(MUCH))
            found += [(int(engine.ranks[s]), float(np.exp(engine.bias[s])), at_s, True) for s in heavy]
        for slot in new:
            ratio = float(np.exp(engine.excess[slot] / max(int(engine.count[slot]), 1)))
            found.append((int(engine.ranks[slot]), ratio, at_s - wall_s * int(engine.count[slot]), False))
        return found

    def snapshot(self) -> dict[str, Any]:
        return self._engine.snapshot()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._engine.restore(state)
