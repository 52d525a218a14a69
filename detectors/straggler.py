# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Names the ranks and nodes that became slower than their pipeline-stage peers, from their own work alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import numpy as np

from detectors.peer_cusum import PeerCusumOptions
from detectors.rank_frames import StepFrame
from detectors.shapes import LearntBefore, key_of
from detectors.straggler_track import Track
from relight.types import Anomaly, AttemptId, JobShape, Observation, StepBatch, StepTiming

VERSION = 1


class StragglerDetector:
    """PeerCUSUM over the ranks of each attempt, with ADWIN as the second vote.

    Shapes: `StepBatch` for all ranks at once (vectorised), or `StepTiming` one by one; `JobShape` says which
            rank runs on which node and in which pipeline stage, and resets baselines when it changes.
    Units:  seconds; only `compute_s`, a rank's work before the first collective, is ever compared: with
            synchronous collectives the whole step takes equally long on all ranks, so it accuses nobody.
    Errors: ValueError from `restore` for another version's state; none for any observation.
    """

    name = "straggler"

    def __init__(self, options: PeerCusumOptions | None = None) -> None:
        self._options = options or PeerCusumOptions()
        self._tracks: dict[AttemptId, Track] = {}
        self._frozen: set[AttemptId] = set()
        self._learnt = LearntBefore()

    def observe(self, seen: Observation) -> tuple[Anomaly, ...]:
        match seen:
            case StepBatch():
                return self._see_batch(seen)
            case StepTiming():
                track = self._track(seen.attempt)
                return self._see_frames(seen.attempt, track.frames.add(seen, seen.at.timestamp()))
            case JobShape():
                self._see_shape(seen)
        return ()

    def overdue(self, now: datetime) -> tuple[Anomaly, ...]:  # noqa: ARG002
        """Silence says nothing of slowness: that is the hang detector's."""
        return ()

    def freeze(self, attempt: AttemptId, is_frozen: bool) -> None:
        """Stop or resume learning, as while an incident is open; detection goes on."""
        (self._frozen.add if is_frozen else self._frozen.discard)(attempt)

    def forget(self, attempt: AttemptId) -> None:
        self._frozen.discard(attempt)
        track = self._tracks.pop(attempt, None)
        if track is not None and track.shape is not None and track.shape.workload is not None:
            self._learnt.keep(track.shape, track.learnt())

    def bytes_per_rank(self, attempt: AttemptId) -> float:
        """What an attempt's ranks take of memory, arrays that outlive a step; NaN for an unknown attempt."""
        track = self._tracks.get(attempt)
        return math.nan if track is None else track.nbytes / max(len(track.engine.ranks), 1)

    def _track(self, attempt: AttemptId) -> Track:
        track = self._tracks.get(attempt)
        if track is None:
            track = self._tracks[attempt] = Track(self._options)
        return track

    # -------------------------------------------------------------- observations

    def _see_shape(self, seen: JobShape) -> None:
        track = self._track(seen.attempt)
        before = track.shape
        if before is not None and key_of(before) == key_of(seen) and before.workload == seen.workload:
            track.take_shape(seen)
            return
        if before is not None:
            track.start_over()
        track.take_shape(seen)
        if seen.workload is not None and not len(track.engine.ranks):
            for other in self._tracks.values():
                if other is not track and other.shape is not None and other.shape.workload == seen.workload:
                    self._learnt.keep(other.shape, other.learnt())
            if (past := self._learnt.recall(seen)) is not None:
                track.carry_over(past)

    def _see_batch(self, seen: StepBatch) -> tuple[Anomaly, ...]:
        track = self._track(seen.attempt)
        at_s = seen.at.timestamp()
        if seen.compute_s is None or not track.order.admits(seen.step, at_s):
            return ()
        work = np.asarray(seen.compute_s, dtype=np.float32)
        ranks = track.as_ranks(seen.ranks)
        if len(work) != len(ranks) or not len(ranks):
            return ()
        learns = seen.attempt not in self._frozen
        return track.see(seen.attempt, seen.step, at_s, ranks, work, _wall(seen.step_s), seen.stages, learns=learns)

    def _see_frames(self, attempt: AttemptId, frames: Sequence[StepFrame]) -> tuple[Anomaly, ...]:
        track = self._tracks[attempt]
        said: list[Anomaly] = []
        for frame in frames:
            ranks = np.fromiter(frame.timings, dtype=np.int32)
            work = np.asarray([own for _, own in frame.timings.values()], dtype=np.float32)
            wall = _wall([step_s for step_s, _ in frame.timings.values()])
            if np.isfinite(work).any():
                said += track.see(
                    attempt, frame.step, frame.at_s, ranks, work, wall, None, learns=attempt not in self._frozen
                )
        return tuple(said)

    # -------------------------------------------------------------- state

    def snapshot(self) -> Mapping[str, Any]:
        return {
            "detector": self.name,
            "version": VERSION,
            "tracks": {attempt: track.snapshot() for attempt, track in self._tracks.items()},
            "frozen": sorted(self._frozen),
            "learnt": self._learnt.snapshot(),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        if (state.get("detector"), state.get("version")) != (self.name, VERSION):
            raise ValueError(
                f"need the state of {self.name} version {VERSION}, got {state.get('detector')} "
                f"version {state.get('version')}; rebuild it by replaying the observations"
            )
        self._tracks = {}
        for attempt, kept in state["tracks"].items():
            self._track(AttemptId(attempt)).restore(kept)
        self._frozen = {AttemptId(attempt) for attempt in state["frozen"]}
        self._learnt.restore(state["learnt"])


def _wall(step_s: Sequence[float]) -> float:
    """The step's wall time: the median of up to 64 ranks, as all wait for the slowest."""
    some = np.asarray(step_s[:: max(1, len(step_s) // 64)], dtype=np.float64)
    some = some[np.isfinite(some) & (some > 0)]
    return float(np.median(some)) if len(some) else math.nan
