# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How long a pause may last before it is suspected, and before it is called a hang."""

from __future__ import annotations

from dataclasses import dataclass, field

from detectors.pauses import MIN_ORDINARY, Pauses
from relight.types import Phase
from relight.watching import HangTerms

START_LIMIT_S = 1800.0
WARM_UP_LIMIT_S = 1800.0
WARM_UP_SUSPECT_S = 300.0
TALKING_LIMIT_S = 1800.0
EARLY_LIMIT_S = 900.0  # once the first gaps, in which steps are compiled, are over
KNOWN_WARM_UP_LIMIT_S = 600.0  # where an earlier attempt has shown how slow its first steps are
SILENT_LIMIT_S = 600.0  # for every rank's heartbeats: a job that compiles goes on beating
RANK_SILENT_S = 180.0  # for one rank's, while the others go on
COMPILE_SILENT_S = 300.0  # a rank that compiles alone may miss some
EARLY_LOOK_S = 30.0
START_LOOK_S = 300.0
COMPILE_GAPS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Pause:
    """A running pause and the attempt's steps so far; seconds on the watch's own clock.

    `gaps` have ended, the longest of them after `longest_s`, and after `settled_s` the longest of those in which
    nothing is compiled any more; `expected_s` is what the last line lets expect of the next one. `start_s` is what
    the first progress took, 0 once it is further behind.
    """

    kind: str
    is_marked: bool
    has_progressed: bool
    gaps: int
    longest_s: float
    settled_s: float
    expected_s: float
    start_s: float = 0.0

    @property
    def is_plain(self) -> bool:
        return self.has_progressed and not self.is_marked


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one pause, by what the attempt's pauses have taught and by what its owner says of them.

    Units:  seconds on the watch's own clock; `own` are the owner's bounds on that clock.
    Source: measured on seeds of `benchmarks.detection_hang` and `benchmarks.detection_early` below 100.
    """

    pauses: Pauses
    pause: Pause
    start_limit_s: float = START_LIMIT_S
    own: HangTerms = field(default_factory=HangTerms)

    @property
    def is_warm(self) -> bool:
        return self.pause.gaps >= MIN_ORDINARY and self.pauses.ordinary >= MIN_ORDINARY

    def look_after_s(self) -> float | None:
        """When second signs are worth asking although time alone makes no suspicion: while little is learned."""
        if self.is_warm:
            return None
        usual_s = self.pauses.median_s or 0.0
        least_s = max(EARLY_LOOK_S, 5.0 * usual_s) if self.pause.is_plain else START_LOOK_S
        longest_s = self.pause.settled_s if self.pause.gaps >= COMPILE_GAPS else self.pause.longest_s
        return max(least_s, 3.0 * longest_s, 2.0 * self.pause.expected_s)

    def suspect_after_s(self) -> float:
        after_s = self._suspect_after_s()
        most_s = self.own.start_s if not self.pause.has_progressed else self.own.at_most_s
        return after_s if most_s is None else min(after_s, 0.5 * most_s)

    def _suspect_after_s(self) -> float:
        if not self.pause.has_progressed:
            knows = self.pauses.knows(Phase.START.value)
            return max(300.0, self.pauses.suspect_after_s(Phase.START.value)) if knows else self.start_limit_s
        learned = self.pauses.suspect_after_s(self.pause.kind)
        if self.is_warm:
            return learned
        return max(learned, WARM_UP_SUSPECT_S, 3.0 * self.pause.longest_s, 2.0 * self.pause.expected_s)

    def confirm_after_s(self, *, is_silent: bool = False, is_alive: bool = False) -> float | None:
        """A hang by time alone; None where it never is.

        `is_silent`: every rank's heartbeats stopped. `is_alive`: the job still writes, or a probe calls it alive.
        The owner's word goes before what was learned.
        """
        if not self.pause.has_progressed and self.own.start_s is not None:
            return float(self.own.start_s)
        learned = self._confirm_after_s(is_silent)
        if learned is None:
            return None
        if is_alive:
            learned = max(learned, TALKING_LIMIT_S)
        least_s = self.own.at_least_s or 0.0
        most_s = self.own.at_most_s if self.own.at_most_s is not None else float("inf")
        return learned if not self.pause.has_progressed else min(max(learned, least_s), most_s)

    def _confirm_after_s(self, is_silent: bool) -> float | None:
        if not self.pause.has_progressed:
            if not self.pauses.knows(Phase.START.value):
                return None  # perhaps we just can't read its progress lines
            return max(self.start_limit_s, self.pauses.confirm_after_s(Phase.START.value))
        learned = self.pauses.confirm_after_s(self.pause.kind)
        if self.is_warm:
            return learned
        longest_s, expected_s = 5.0 * self.pause.longest_s, 3.0 * self.pause.expected_s
        return max(learned, self._warm_up_limit_s(is_silent), self.pause.start_s, longest_s, expected_s)

    def _warm_up_limit_s(self, is_silent: bool) -> float:
        """The least patience with the first steps, by what is known of such steps."""
        if self.pause.is_marked:
            return WARM_UP_LIMIT_S
        if self.pauses.warm_up_s > 0.0:
            return max(KNOWN_WARM_UP_LIMIT_S, 3.0 * self.pauses.warm_up_s)
        if is_silent:
            return SILENT_LIMIT_S
        return EARLY_LIMIT_S if self.pause.gaps >= COMPILE_GAPS else WARM_UP_LIMIT_S

    def agree_after_s(self) -> float:
        """How long a pause must be before another sign that agrees makes it a hang: what its owner allows it."""
        return (self.own.at_least_s or 0.0) if self.pause.has_progressed else float(self.own.start_s or 0.0)

    def rank_silent_s(self) -> float:
        """How long a pause must be before a rank that misses its heartbeats alone is a hang.

        A rank that saves, builds an index or compiles may miss them: outside of plain steps the pause must be long
        by itself.
        """
        if not self.pause.is_plain:
            return 0.5 * (self._confirm_after_s(is_silent=False) or START_LIMIT_S)
        if self.is_warm:
            return 0.0
        if self.pause.gaps < COMPILE_GAPS:
            return max(COMPILE_SILENT_S, 3.0 * self.pause.longest_s, 2.0 * self.pause.expected_s)
        return max(RANK_SILENT_S, 3.0 * self.pause.settled_s, 2.0 * self.pause.expected_s)
