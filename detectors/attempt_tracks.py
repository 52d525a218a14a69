# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What detectors with one track an attempt have in common: freezing, forgetting, shapes, and their state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from detectors.shapes import LearntBefore, ShapeChange, change_of, joined
from relight.types import Anomaly, AttemptId, JobShape, LogLine


class ShapedTrack(Protocol):
    """One attempt as a detector sees it."""

    shape: JobShape | None


Track = TypeVar("Track", bound=ShapedTrack)


class AttemptTracks(ABC, Generic[Track]):
    """One track an attempt; baselines die with the shape they were learnt for, and are inherited by the next one.

    Shapes: any number of attempts, told apart; `forget` frees a track but for what the next attempt of the same
            workload and shape begins with.
    Errors: ValueError from `restore` for another version's state.
    """

    name: str
    VERSION: ClassVar[int]

    def __init__(self, make: Callable[[], Track]) -> None:
        self._make = make
        self._tracks: dict[AttemptId, Track] = {}
        self._frozen: set[AttemptId] = set()
        self._learnt = LearntBefore()

    # -------------------------------------------------------------- what a detector says of its tracks

    @abstractmethod
    def _start_over(self, track: Track) -> None:
        """Drop the baselines: the job is another one now."""

    @abstractmethod
    def _is_untaught(self, track: Track) -> bool:
        """True while the track may still begin with what an earlier attempt had learnt."""

    @abstractmethod
    def _carry_over(self, track: Track, past: Mapping[str, Any]) -> None:
        """Begin with what `_lesson` of an earlier attempt of the same shape said."""

    @abstractmethod
    def _lesson(self, track: Track) -> Mapping[str, Any] | None:
        """What the next attempt of the same shape may begin with, as JSON values; None if there is nothing yet."""

    def _take_shape(self, track: Track, shape: JobShape) -> None:
        track.shape = shape

    @abstractmethod
    def _written(self, track: Track) -> dict[str, Any]:
        """The track as JSON values."""

    @abstractmethod
    def _read(self, kept: Mapping[str, Any]) -> Track:
        """The track that `_written` wrote."""

    # -------------------------------------------------------------- what all of them do

    def overdue(self, now: datetime) -> tuple[Anomaly, ...]:  # noqa: ARG002
        """Silence says nothing of these faults: it is the hang detector's."""
        return ()

    def screen(self, lines: Sequence[LogLine], raw: Sequence[bytes]) -> Collection[int]:  # noqa: ARG002
        """The words of a line are none of their business: steps come as observations of their own."""
        return ()

    def freeze(self, attempt: AttemptId, is_frozen: bool) -> None:
        """Stop or resume learning, as while an incident is open."""
        (self._frozen.add if is_frozen else self._frozen.discard)(attempt)

    def forget(self, attempt: AttemptId) -> None:
        self._frozen.discard(attempt)
        track = self._tracks.pop(attempt, None)
        if track is not None:
            self._keep(track)

    def _learns(self, attempt: AttemptId) -> bool:
        return attempt not in self._frozen

    def _track(self, attempt: AttemptId) -> Track:
        track = self._tracks.get(attempt)
        if track is None:
            track = self._tracks[attempt] = self._make()
        return track

    def _see_shape(self, seen: JobShape) -> None:
        """Another shape begins anew, and so does one that is stated late: the job may have changed with it."""
        track = self._track(seen.attempt)
        change = change_of(track.shape, seen)
        self._take_shape(track, joined(track.shape, seen))
        if change is ShapeChange.SAME:
            return
        if change is ShapeChange.OTHER or (change is ShapeChange.FULLER and not self._is_untaught(track)):
            self._start_over(track)
        if not self._is_untaught(track):
            return
        for other in self._tracks.values():
            if other is not track and other.shape is not None and other.shape.workload == seen.workload:
                self._keep(other)
        if track.shape is not None and (past := self._learnt.recall(track.shape)) is not None:
            self._carry_over(track, past)

    def _keep(self, track: Track) -> None:
        if track.shape is not None and (lesson := self._lesson(track)) is not None:
            self._learnt.keep(track.shape, lesson)

    # -------------------------------------------------------------- state

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "detector": self.name,
            "version": self.VERSION,
            "tracks": {attempt: self._written(track) for attempt, track in self._tracks.items()},
            "frozen": sorted(self._frozen),
            "learnt": self._learnt.snapshot(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if (state.get("detector"), state.get("version")) != (self.name, self.VERSION):
            raise ValueError(
                f"need the state of {self.name} version {self.VERSION}, got {state.get('detector')} "
                f"version {state.get('version')}; rebuild it by replaying the observations"
            )
        self._tracks = {AttemptId(attempt): self._read(kept) for attempt, kept in state["tracks"].items()}
        self._frozen = {AttemptId(attempt) for attempt in state["frozen"]}
        self._learnt.restore(state["learnt"])
