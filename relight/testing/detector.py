# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The contract of every detector, as tests to inherit: what it must do with good, bad and late observations."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from relight.ports import Detector
from relight.types import Anomaly, AttemptId, Heartbeat, NodeEvent, NodeName, Observation, Rank

NOON = datetime(2026, 11, 2, 12, tzinfo=UTC)
ONE, OTHER = AttemptId("attempt-1"), AttemptId("attempt-2")
HOUR = timedelta(hours=1)


def run(detector: Detector, seen: Iterable[Observation]) -> list[Anomaly]:
    """All anomalies of a stream, in order."""
    return [anomaly for one in seen for anomaly in detector.observe(one)]


def moved(seen: Observation, by: timedelta) -> Observation:
    """The same observation at another time."""
    change: dict[str, Any] = {"at": seen.at + by} if seen.at is not None else {}
    return replace(seen, **change)


def size_of(detector: Detector) -> int:
    return len(json.dumps(detector.snapshot(), allow_nan=False))


class DetectorContract:
    """Inherit, and say how to make the detector and what its streams look like.

    Shapes: `healthy` and `faulty` are streams of one attempt in order of time; `faulty` begins healthy and
            leads to at least one anomaly. `spoilt` are single observations, of steps after the healthy
            ones, whose values must be ignored.
    """

    def make(self) -> Detector:
        """A new detector, with nothing learnt."""
        raise NotImplementedError

    def healthy(self, attempt: AttemptId, steps: int) -> Sequence[Observation]:
        raise NotImplementedError

    def faulty(self, attempt: AttemptId) -> Sequence[Observation]:
        raise NotImplementedError

    def spoilt(self, attempt: AttemptId, after: int) -> Sequence[Observation]:
        raise NotImplementedError

    # -------------------------------------------------------------- verdicts

    def test_it_is_a_detector(self) -> None:
        assert isinstance(self.make(), Detector)

    def test_without_data_there_is_no_verdict(self) -> None:
        detector = self.make()
        assert detector.overdue(NOON + 24 * HOUR) == ()
        stranger = NodeEvent(at=NOON, node=NodeName("node-1"), code="79", is_fatal=True)
        assert run(detector, [stranger, Heartbeat(attempt=ONE, at=NOON, rank=Rank(0))]) == []

    def test_a_healthy_stream_raises_nothing(self) -> None:
        assert run(self.make(), self.healthy(ONE, 400)) == []

    def test_one_observation_is_no_verdict(self) -> None:
        for seen in self.healthy(ONE, 3):
            assert run(self.make(), [seen]) == []

    def test_an_anomaly_says_what_when_and_how_sure(self) -> None:
        detector = self.make()
        said = run(detector, self.faulty(ONE))
        assert said
        for anomaly in said:
            assert (anomaly.attempt, anomaly.detector) == (ONE, detector.name)
            assert NOON <= anomaly.onset_at <= anomaly.detected_at
            assert anomaly.threshold is not None and anomaly.score >= anomaly.threshold
            assert anomaly.summary and anomaly.scope in ("job", "rank", "node", "stage")
            json.dumps(dict(anomaly.detail), allow_nan=False)

    # -------------------------------------------------------------- determinism and state

    def test_a_replay_says_the_same(self) -> None:
        stream = self.faulty(ONE)
        assert run(self.make(), stream) == run(self.make(), stream)

    def test_a_snapshot_mid_stream_equals_none(self) -> None:
        stream = self.faulty(ONE)
        whole = run(self.make(), stream)
        for share in (0.02, 0.3, 0.6, 0.9):
            cut = int(len(stream) * share)
            before, after = self.make(), self.make()
            said = run(before, stream[:cut])
            after.restore(json.loads(json.dumps(before.snapshot(), allow_nan=False)))
            assert after.snapshot() == before.snapshot()
            assert said + run(after, stream[cut:]) == whole

    def test_a_snapshot_does_not_change_afterwards(self) -> None:
        detector, stream = self.make(), self.faulty(ONE)
        run(detector, stream[: len(stream) // 2])
        kept = detector.snapshot()
        before = json.dumps(kept)
        run(detector, stream[len(stream) // 2 :])
        assert json.dumps(kept) == before

    def test_the_state_of_another_version_is_refused(self) -> None:
        detector = self.make()
        for strange in ({**detector.snapshot(), "version": 999}, {}):
            try:
                detector.restore(strange)
            except ValueError as why:
                assert detector.name in str(why)
            else:
                raise AssertionError("a strange state was taken over")

    def test_forgetting_frees_everything_of_an_attempt(self) -> None:
        detector = self.make()
        fresh = detector.snapshot()
        run(detector, self.faulty(ONE))
        assert detector.snapshot() != fresh
        detector.forget(ONE)
        detector.forget(OTHER)
        assert detector.snapshot() == fresh

    def test_memory_does_not_grow_with_the_stream(self) -> None:
        short, long = self.make(), self.make()
        stream = self.healthy(ONE, 2500)
        run(short, stream[: len(stream) // 2])
        run(long, stream)
        assert size_of(long) < 1.1 * size_of(short) + 2000

    def test_attempts_do_not_mix(self) -> None:
        faulty, healthy = self.faulty(ONE), self.healthy(OTHER, 400)
        mixed = [seen for pair in zip(faulty, healthy, strict=False) for seen in pair] + [*faulty[len(healthy) :]]
        assert run(self.make(), mixed) == run(self.make(), faulty)

    # -------------------------------------------------------------- bad input

    def test_doubled_observations_change_nothing(self) -> None:
        stream = self.faulty(ONE)
        doubled = [seen for one in stream for seen in (one, one)]
        assert run(self.make(), doubled) == run(self.make(), stream)

    def test_a_batch_sent_again_changes_nothing(self) -> None:
        stream = self.faulty(ONE)
        cut, back = len(stream) // 3, len(stream) // 6
        again = [*stream[:cut], *stream[cut - back : cut], *stream[cut:]]
        assert run(self.make(), again) == run(self.make(), stream)

    def test_spoilt_values_are_ignored(self) -> None:
        stream = self.healthy(ONE, 300)
        spoilt = self.spoilt(ONE, 300)
        detector = self.make()
        assert run(detector, [*stream, *spoilt]) == []
        size_of(detector)

    def test_a_clock_that_jumps_an_hour_raises_nothing(self) -> None:
        stream = self.healthy(ONE, 400)
        half = len(stream) // 2
        for by in (-HOUR, HOUR):
            jumped = [*stream[:half], *(moved(seen, by) for seen in stream[half:])]
            assert run(self.make(), jumped) == []

    def test_an_onset_is_never_after_its_detection(self) -> None:
        stream = self.faulty(ONE)
        third = len(stream) // 3
        for by in (-HOUR, HOUR):
            jumped = [*stream[:third], *(moved(seen, by) for seen in stream[third:])]
            assert all(anomaly.onset_at <= anomaly.detected_at for anomaly in run(self.make(), jumped))
