# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a job trains with: read from its lines, and what that means for what was learnt."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from detectors.attempt_tracks import AttemptTracks
from detectors.divergence import DivergenceDetector
from detectors.hang import HangDetector
from detectors.log_text import read_log
from detectors.progress import ProgressReader
from detectors.shapes import ShapeChange, change_of, is_far, joined
from detectors.slowdown import CARRIED_WEIGHT, SlowdownDetector
from detectors.straggler import StragglerDetector
from detectors.training_steps import training_steps
from relight.ports import Detector
from relight.shape import StatedShape, stated_from
from relight.testing.detector import NOON, ONE, OTHER, run
from relight.types import Anomaly, AttemptId, JobShape, LogLine, StepProgress, Stream, Tier
from service.diagnosis import Diagnostician
from tests.unit.detection_streams import STEP_S, batches, lines, shape, slow_rank

MEGATRON = (
    "------------------------ arguments ------------------------",
    "  encoder_seq_length .............................. 4096",
    "  global_batch_size ............................... 512",
    "  micro_batch_size ................................ 2",
    "  rampup_batch_size ............................... None",
    "  seq_length ...................................... 4096",
)
DEEPSPEED = (
    "[2023-04-24 13:26:47,829] [INFO] [config.py:957:print]   train_batch_size ............. 32",
    "[2023-04-24 13:26:47,829] [INFO] [config.py:957:print]   train_micro_batch_size_per_gpu  4",
    '    "train_batch_size": 32, ',
)
TORCHTUNE = ("batch_size: 2", "gradient_accumulation_steps: 8", "tokenizer:", "  max_seq_len: 4096", "  batch_size: 9")
TITAN = (
    "[rank0]:[titan] 2025-11-25 19:44:58,838 - root - INFO - Trainer is initialized with local batch size 8, "
    "global batch size 64, gradient accumulation steps 1, sequence length 2048, total steps 10 (warmup 2)",
)


def line(text: str, attempt: AttemptId = ONE, number: int = 1) -> LogLine:
    return LogLine(attempt=attempt, file="job.out", number=number, stream=Stream.APPLICATION, text=text)


Make = Callable[[], ProgressReader]


@pytest.fixture
def reader_of(shipped: Diagnostician) -> Make:
    return lambda: ProgressReader(shipped.progress)


def stated(reader: ProgressReader, texts: tuple[str, ...]) -> dict[str, int]:
    for text in texts:
        reader.read(line(text), NOON)
    found = reader.shape(ONE)
    return {} if found is None else found.as_json()


# ------------------------------------------------------------------ reading


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (MEGATRON, {"batch": 512, "sequence_length": 4096}),
        (DEEPSPEED, {"batch": 32}),
        (TORCHTUNE, {"rank_batch": 2, "accumulation": 8, "sequence_length": 4096}),
        (TITAN, {"batch": 64, "sequence_length": 2048}),
        (("python t.py model.global_batch_size=256 model.encoder_seq_length=8192",), {"batch": 256, "sequence_length": 8192}),
        (("  Total train batch size (w. parallel, distributed & accumulation) = 1,024",), {"batch": 1024}),
        (("Config param global_batch_size_to_train_on: 512", "Config param max_target_length: 2048"), {"batch": 512, "sequence_length": 2048}),
        (("global_batch_size: 99999999999999999999999", "seq_length: 0"), {}),
    ],
)  # fmt: skip
def test_arguments_tell_the_shape(reader_of: Make, texts: tuple[str, ...], said: dict[str, int]) -> None:
    assert stated(reader_of(), texts) == said


def test_the_last_of_several_configurations_counts(reader_of: Make) -> None:
    reader = reader_of()
    assert stated(reader, MEGATRON)["batch"] == 512
    assert stated(reader, ("  global_batch_size ............................... 1024",))["batch"] == 1024


def step_line(step: int, batch: int) -> str:
    return f" iteration {step:8d}/ 1000 | elapsed time per iteration (ms): 900.1 | global batch size: {batch:5d} | lm loss: 2.6E+00 |"


def test_a_step_line_tells_its_step_and_the_batch_and_the_batch_stands_first(reader_of: Make) -> None:
    said = reader_of().read(line(step_line(7, 80)), NOON)
    assert [type(one) for one in said] == [StatedShape, StepProgress]
    assert isinstance(said[0], StatedShape) and said[0].batch == 80


def test_a_ramp_counts_once_it_is_settled_and_a_length_that_varies_does_not(reader_of: Make) -> None:
    reader = reader_of()
    assert stated(reader, tuple(step_line(i, 32) for i in range(5)))["batch"] == 32
    assert stated(reader, tuple(step_line(i, 64) for i in range(5, 7)))["batch"] == 32
    assert stated(reader, (step_line(7, 64),))["batch"] == 64
    vary = tuple(f"step={i} loss=2.0 seq_len={400 + 7 * i}" for i in range(60))
    assert stated(reader, vary)["sequence_length"] == 400


def test_a_batch_of_lines_reads_as_its_lines_one_by_one(reader_of: Make) -> None:
    texts = [*MEGATRON, *(step_line(i, 512) for i in range(3)), "\x1b[32m" + step_line(3, 512), *TITAN]
    some = [line(text, number=i + 1) for i, text in enumerate(texts)]
    whole = reader_of().read_batch(some, [one.text.encode() for one in some], NOON)
    single = reader_of()
    assert whole == {i: said for i, one in enumerate(some) if (said := single.read(one, NOON))}


def test_a_shape_line_is_no_step_for_the_reader_of_a_crash(shipped: Diagnostician) -> None:
    log = read_log("job.out", "\n".join([*MEGATRON, step_line(7, 80)]).encode(), Stream.APPLICATION)
    found = training_steps(log, shipped.progress, [], 0)
    assert [(one.step, one.event) for one in found] == [(7, "step")]


def test_what_one_rank_does_becomes_the_whole_with_the_number_of_ranks() -> None:
    said = StatedShape(attempt=ONE, rank_batch=2, accumulation=8)
    assert said.global_batch(4) == 64
    assert said.global_batch(None) is None
    assert StatedShape(attempt=ONE, batch=512).after(said).global_batch(4) == 512
    assert stated_from(ONE, said.as_json()) == said
    assert stated_from(ONE, {"batch": "many", "sequence_length": -1, "later": 3, "accumulation": True}).as_json() == {}


# ------------------------------------------------------------------ what it means


def test_what_is_left_out_is_no_change() -> None:
    whole, part = shape(ONE, workload="job"), replace(shape(ONE, workload="job"), batch=None)
    assert change_of(whole, part) is ShapeChange.SAME
    assert change_of(part, whole) is ShapeChange.FULLER
    assert change_of(whole, replace(whole, batch=1024)) is ShapeChange.OTHER
    assert joined(whole, part).batch == 512
    assert not is_far(whole, replace(whole, batch=544))


def pace(
    factor: float, attempt: AttemptId = ONE, first: int = 0, seed: int = 100, steps: int = 300
) -> list[StepProgress]:
    """Lines that state no tokens: a larger batch looks like a slower step."""
    made = lines(attempt, steps, factor=factor, onset=0, seed=seed, tokens=lambda step: None)
    return [replace(s, step=(s.step or 0) + first, at=s.at + timedelta(seconds=STEP_S * first)) for s in made]


def test_a_doubled_batch_resets_the_baseline_of_the_pace() -> None:
    before, after = pace(1.0), pace(1.8, first=300, seed=101)
    known = shape(ONE, workload="job")
    doubled = replace(known, batch=1024)
    assert run(SlowdownDetector(), [known, *before, *after]) != [], "without the statement it looks like a drop"
    assert run(SlowdownDetector(), [known, *before, doubled, *after]) == []


def test_a_drop_after_the_change_is_seen_against_the_new_baseline() -> None:
    known = shape(ONE, workload="job")
    halved = lines(ONE, 600, factor=1.2, onset=300, seed=101, tokens=lambda step: None)
    later = [replace(s, step=(s.step or 0) + 300, at=s.at + timedelta(seconds=1.8 * STEP_S * 300)) for s in halved]
    (said,) = run(SlowdownDetector(), [known, *pace(1.8), replace(known, batch=256), *later])
    assert said.detail["ratio"] == pytest.approx(1.2, rel=0.03)


def slower_next(
    detector: SlowdownDetector, attempt: str, factor: float, seed: int, batch: int | None = 512
) -> list[Anomaly]:
    name = AttemptId(attempt)
    said = run(detector, [shape(name, workload="job", batch=batch), *pace(factor, name, seed=seed)])
    detector.forget(name)
    return said


def test_the_next_attempt_of_the_same_shape_is_held_against_the_last_and_one_of_another_is_not() -> None:
    detector = SlowdownDetector()
    assert slower_next(detector, "a", 1.0, 101) == []
    assert slower_next(detector, "b", 1.9, 102, batch=1024) == []
    assert slower_next(detector, "c", 1.9, 103, batch=1024) == []
    other = SlowdownDetector()
    assert slower_next(other, "a", 1.0, 101) == []
    (said,) = slower_next(other, "b", 1.25, 102)
    assert said.detail["is_slower_than_before"] is True


def test_an_unknown_batch_is_not_taken_for_the_known_one_until_the_log_states_it() -> None:
    detector = SlowdownDetector()
    assert slower_next(detector, "a", 1.0, 101) == []
    assert slower_next(detector, "b", 1.25, 102, batch=None) == []
    again = SlowdownDetector()
    assert slower_next(again, "a", 1.0, 101) == []
    name = AttemptId("b")
    unknown, known = shape(name, workload="job", batch=None), shape(name, workload="job")
    (said,) = run(again, [unknown, known, *pace(1.25, name, seed=102)])
    assert said.detail["is_slower_than_before"] is True


def handed(detector: SlowdownDetector) -> dict[str, float]:
    ((_, _, lesson),) = detector.snapshot()["learnt"]
    return dict(lesson)


def test_what_is_carried_weighs_no_more_than_some_steps_of_the_attempt_itself() -> None:
    detector = SlowdownDetector()
    slower_next(detector, "a", 1.0, 101)
    first = handed(detector)
    assert first["weight"] == CARRIED_WEIGHT
    for number in range(3):
        slower_next(detector, f"b{number}", 1.06, 102 + number)
    last = handed(detector)
    assert last["weight"] == CARRIED_WEIGHT
    assert last["best"] - first["best"] == pytest.approx(0.057, abs=0.01), "three slightly slower attempts outweigh one"
    slower_next(detector, "c", 1.4, 110)
    assert handed(detector) == last, "an attempt that was called slow teaches nothing"


def test_a_rank_that_was_usual_before_the_batch_changed_is_judged_anew() -> None:
    known = shape(ONE, workload="job")
    own = batches(ONE, 300, slow_rank(3, 1.2, 0), seed=101)
    detector = StragglerDetector()
    run(detector, [known, *own])
    assert detector.snapshot()["tracks"][ONE]["engine"]["reports"][3] > 0
    detector.observe(replace(known, batch=1024))
    assert detector.snapshot()["tracks"][ONE]["engine"]["reports"] == []


@pytest.mark.parametrize("make", [SlowdownDetector, StragglerDetector, DivergenceDetector])
def test_all_of_them_share_how_tracks_are_kept(make: type[AttemptTracks[Any]]) -> None:
    assert issubclass(make, AttemptTracks)
    assert make.freeze is AttemptTracks.freeze and make.forget is AttemptTracks.forget
    assert make.overdue is AttemptTracks.overdue and make.restore is AttemptTracks.restore


# ------------------------------------------------------------------ the hang detector's pace


def beat_on(
    detector: Detector, attempt: AttemptId, steps: int, every_s: float, first: int = 0, at_s: float = 0.0
) -> float:
    for number in range(steps):
        at_s += every_s
        detector.observe(StepProgress(attempt=attempt, at=NOON + timedelta(seconds=at_s), step=first + number))
        assert detector.overdue(NOON + timedelta(seconds=at_s)) == ()
    return at_s


def suspected_after(detector: Detector, since_s: float, most_s: int) -> int | None:
    for later in range(0, most_s, 5):
        if any(one.tier is Tier.SUSPECT for one in detector.overdue(NOON + timedelta(seconds=since_s + later))):
            return later
    return None


def test_another_batch_gives_the_steps_time_to_find_their_pace() -> None:
    quick, anew = HangDetector(), HangDetector()
    for detector in (quick, anew):
        detector.observe(shape(ONE, workload="job"))
        end_s = beat_on(detector, ONE, 60, 2.0)
    anew.observe(replace(shape(ONE, workload="job"), batch=4096))
    soon, late = suspected_after(quick, end_s, 400), suspected_after(anew, end_s, 400)
    assert soon is not None and soon <= 60
    assert late is not None and late >= 300


def test_a_step_of_a_ramp_keeps_the_pace() -> None:
    detector = HangDetector()
    for size, (begin, end) in zip(range(512, 800, 32), pairwise(range(0, 100, 10)), strict=True):
        detector.observe(replace(shape(ONE, workload="job"), batch=size))
        beat_on(detector, ONE, end - begin, 2.0, first=begin, at_s=2.0 * begin)
    soon = suspected_after(detector, 2.0 * 90, 400)
    assert soon is not None and soon <= 60


def test_a_snapshot_keeps_what_is_known_of_the_shape() -> None:
    detector, other = HangDetector(), HangDetector()
    detector.observe(shape(ONE, workload="job"))
    detector.observe(JobShape(attempt=OTHER, at=NOON, world_size=4))
    kept = json.loads(json.dumps(detector.snapshot()))
    other.restore(kept)
    assert other.snapshot() == kept
