# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which step comes next: what is late or doubled is dropped, a return to a checkpoint is followed."""

from __future__ import annotations

from dataclasses import dataclass

PATIENCE = 3


@dataclass(slots=True)
class StepOrder:
    """Admits each step once, in rising order.

    Shapes: steps with the time they were seen, in seconds.
    Errors: none. Steps at or below the last one are late or doubled, unless three of them in a row rise
            while time goes on: then training went back to a checkpoint.
    """

    last: int | None = None
    seen_s: float = 0.0
    back: int | None = None
    streak: int = 0

    def admits(self, step: int, at_s: float) -> bool:
        if self.last is None or step > self.last:
            self.last, self.back, self.streak = step, None, 0
            self.seen_s = at_s
            return True
        if at_s <= self.seen_s or step == self.last:
            return False
        is_rising = self.back is not None and step > self.back
        self.back, self.streak, self.seen_s = step, self.streak + 1 if is_rising else 1, at_s
        if self.streak < PATIENCE:
            return False
        self.last, self.back, self.streak = step, None, 0
        return True

    def snapshot(self) -> list[float | int | None]:
        return [self.last, self.seen_s, self.back, self.streak]
