# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The enabled detectors, kept from harming each other: one that raises is out for that attempt, the others go on."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, ParamSpec, TypeVar

import structlog

from relight.ports import Detector, Freezable, PlacesRanks, ScreensLines, TakesRules, TakesTerms
from relight.types import Anomaly, AttemptId, LogLine, NodeName, Observation, Rank
from relight.watching import HangTerms

log = structlog.get_logger(__name__)
MAX_FAILURES = 5

Given = ParamSpec("Given")
Said = TypeVar("Said")
Failed = Callable[[str, Exception, AttemptId | None, int, bool], None]


class Panel:
    """Every observation to every detector, in order; what they claim comes back together.

    A detector that raises is told to forget the attempt and not shown it again; after five failures it is
    left out altogether. Its silence from then on is unknown, not healthy: `failing` names it for good.
    Errors: none of a detector's; `failed` is told of each.
    """

    def __init__(self, detectors: Iterable[Detector], failed: Failed) -> None:
        self._detectors = list(detectors)
        self._failed = failed
        self._failures: dict[str, int] = {}
        self._out: dict[str, set[AttemptId]] = {}

    def __len__(self) -> int:
        return len(self._detectors)

    @property
    def failing(self) -> tuple[str, ...]:
        """Detectors that raised, so that their silence says nothing."""
        return tuple(sorted(self._failures))

    # -------------------------------------------------------------- watching

    def observe(self, seen: Observation) -> list[Anomaly]:
        attempt: AttemptId | None = getattr(seen, "attempt", None)
        found: list[Anomaly] = []
        for detector in tuple(self._detectors):
            if self._out and attempt is not None and attempt in self._out.get(detector.name, ()):
                continue
            try:  # not by `_guarded`: this is asked for every step of every rank
                said = detector.observe(seen)
            except Exception as why:  # noqa: BLE001 -- a plugin may raise anything; it is put on record by `failed`
                self._take_out(detector, why, attempt)
                continue
            if said:
                found += said
        return found

    def screened(self, attempt: AttemptId, lines: Sequence[LogLine], raw: Sequence[bytes]) -> dict[int, list[Detector]]:
        """Who has to be shown which lines of a batch, by their places in it; most lines concern nobody."""
        shown: dict[int, list[Detector]] = {}
        for detector in tuple(self._detectors):
            if attempt in self._out.get(detector.name, ()):
                continue
            places: Collection[int] | None = range(len(lines))
            if isinstance(detector, ScreensLines):
                places = self._guarded(detector, attempt, detector.screen, lines, raw)
            for place in places or ():
                shown.setdefault(place, []).append(detector)
        return shown

    def show(self, line: LogLine, detectors: Iterable[Detector]) -> list[Anomaly]:
        """One line to those who have to see it."""
        found: list[Anomaly] = []
        for detector in detectors:
            if line.attempt not in self._out.get(detector.name, ()):
                found += self._guarded(detector, line.attempt, detector.observe, line) or ()
        return found

    def overdue(self, now: datetime) -> list[Anomaly]:
        found: list[Anomaly] = []
        for detector in tuple(self._detectors):
            found += self._guarded(detector, None, detector.overdue, now) or ()
        return found

    # -------------------------------------------------------------- what they are told beside that

    def forget(self, attempt: AttemptId) -> None:
        for detector in tuple(self._detectors):
            self._guarded(detector, attempt, detector.forget, attempt)
        for out in self._out.values():
            out.discard(attempt)

    def freeze(self, attempt: AttemptId, is_frozen: bool) -> None:
        """Learning stops while an incident is open: what is wrong must not become usual."""
        for detector in tuple(self._detectors):
            if isinstance(detector, Freezable):
                self._guarded(detector, attempt, detector.freeze, attempt, is_frozen)

    def place_ranks(self, attempt: AttemptId, ranks: Mapping[Rank, NodeName]) -> None:
        for detector in tuple(self._detectors):
            if isinstance(detector, PlacesRanks):
                self._guarded(detector, attempt, detector.place_ranks, attempt, ranks)

    def bound(self, attempt: AttemptId, terms: HangTerms) -> None:
        """What the job's owner or the site says of its pauses."""
        for detector in tuple(self._detectors):
            if isinstance(detector, TakesTerms):
                self._guarded(detector, attempt, detector.bound, attempt, terms)

    def use_rules(self, signatures: Any, progress: Any) -> None:
        for detector in tuple(self._detectors):
            if isinstance(detector, TakesRules):
                self._guarded(detector, None, detector.use_rules, signatures, progress)

    # -------------------------------------------------------------- over a restart

    def snapshot(self) -> dict[str, Any]:
        """The state of every detector that can tell it, as JSON values."""
        states: dict[str, Any] = {}
        for detector in tuple(self._detectors):
            state = self._guarded(detector, None, detector.snapshot)
            if state is not None:
                states[detector.name] = state
        return states

    def restore(self, states: Mapping[str, Any]) -> None:
        """Go on where `snapshot` left off; a state that a detector refuses is left alone, and it starts anew."""
        for detector in self._detectors:
            if detector.name not in states:
                continue
            try:
                detector.restore(states[detector.name])
            except Exception as why:  # noqa: BLE001 -- a file from another version may break a plugin in any way
                log.warning("detector_starts_anew", detector=detector.name, why=repr(why))

    # -------------------------------------------------------------- inside

    def _guarded(
        self,
        detector: Detector,
        attempt: AttemptId | None,
        call: Callable[Given, Said],
        *given: Given.args,
        **named: Given.kwargs,
    ) -> Said | None:
        try:
            return call(*given, **named)
        except Exception as why:  # noqa: BLE001 -- a plugin may raise anything; it is put on record by `failed`
            self._take_out(detector, why, attempt)
            return None

    def _take_out(self, detector: Detector, why: Exception, attempt: AttemptId | None) -> None:
        failures = self._failures.get(detector.name, 0) + 1
        self._failures[detector.name] = failures
        is_disabled = failures >= MAX_FAILURES
        if is_disabled and detector in self._detectors:
            self._detectors.remove(detector)
        if attempt is not None and attempt not in self._out.setdefault(detector.name, set()):
            self._out[detector.name].add(attempt)
            try:
                detector.forget(attempt)
            except Exception as again:  # noqa: BLE001 -- it is broken anyway, and one record of that is enough
                log.warning("detector_keeps_state", detector=detector.name, why=repr(again))
        log.error("detector_failed", detector=detector.name, failures=failures, error=repr(why))
        self._failed(detector.name, why, attempt, failures, is_disabled)
