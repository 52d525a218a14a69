# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Names the ranks and nodes that became slower than their pipeline-stage peers, from their own work alone."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from detectors.attempt_tracks import AttemptTracks
from detectors.peer_cusum import PeerCusumOptions
from detectors.rank_frames import StepFrame
from detectors.straggler_track import Track
from relight.types import Anomaly, AttemptId, JobShape, Observation, StepBatch, StepTiming


class StragglerDetector(AttemptTracks[Track]):
    """PeerCUSUM over the ranks of each attempt, with ADWIN as the second vote.

    Shapes: `StepBatch` for all ranks at once (vectorised), or `StepTiming` one by one; `JobShape` says which
            rank runs on which node and in which pipeline stage, and resets baselines when it changes.
    Units:  seconds; only `compute_s`, a rank's work before the first collective, is ever compared: with
            synchronous collectives the whole step takes equally long on all ranks, so it accuses nobody.
    Errors: ValueError from `restore` for another version's state; none for any observation.
    """

    name = "straggler"
    VERSION = 1

    def __init__(self, options: PeerCusumOptions | None = None) -> None:
        self._options = options or PeerCusumOptions()
        super().__init__(lambda: Track(self._options))

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

    def bytes_per_rank(self, attempt: AttemptId) -> float:
        """What an attempt's ranks take of memory, arrays that outlive a step; NaN for an unknown attempt."""
        track = self._tracks.get(attempt)
        return math.nan if track is None else track.nbytes / max(len(track.engine.ranks), 1)

    # -------------------------------------------------------------- observations

    def _see_batch(self, seen: StepBatch) -> tuple[Anomaly, ...]:
        track = self._track(seen.attempt)
        at_s = seen.at.timestamp()
        if seen.compute_s is None or not track.order.admits(seen.step, at_s):
            return ()
        work = np.asarray(seen.compute_s, dtype=np.float32)
        ranks = track.as_ranks(seen.ranks)
        if len(work) != len(ranks) or not len(ranks):
            return ()
        learns = self._learns(seen.attempt)
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
                    attempt, frame.step, frame.at_s, ranks, work, wall, None, learns=self._learns(attempt)
                )
        return tuple(said)

    # -------------------------------------------------------------- tracks

    def _take_shape(self, track: Track, shape: JobShape) -> None:
        track.take_shape(shape)

    def _start_over(self, track: Track) -> None:
        track.start_over()

    def _is_untaught(self, track: Track) -> bool:
        return not len(track.engine.ranks)

    def _carry_over(self, track: Track, past: Mapping[str, Any]) -> None:
        track.carry_over(past)

    def _lesson(self, track: Track) -> Mapping[str, Any] | None:
        return track.learnt() if len(track.engine.ranks) else None

    def _written(self, track: Track) -> dict[str, Any]:
        return track.snapshot()

    def _read(self, kept: Mapping[str, Any]) -> Track:
        track = Track(self._options)
        track.restore(kept)
        return track


def _wall(step_s: Sequence[float]) -> float:
    """The step's wall time: the median of up to 64 ranks, as all wait for the slowest."""
    some = np.asarray(step_s[:: max(1, len(step_s) // 64)], dtype=np.float64)
    some = some[np.isfinite(some) & (some > 0)]
    return float(np.median(some)) if len(some) else math.nan
