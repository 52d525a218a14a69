# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What is done to many lines at once, to be quick, says exactly what is said of each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.hang import HangDetector
from detectors.progress import ProgressReader
from detectors.rank_signs import RankSigns
from models.ar_cusum import ArCusum
from relight.quick import quickly
from relight.types import AttemptId, LogLine, LogRef, Rank, StepProgress, Stream
from service.diagnosis import Diagnostician
from service.redaction import Redactor

ATTEMPT = AttemptId("a")
NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
STEP = " [2026-11-02 12:00:00] iteration {n:8d}/  500000 | consumed samples: {n:12d} | elapsed time per iteration (ms): 4101.2 | learning rate: 1E-04 | global batch size: {batch} | lm loss: {loss} | loss scale: 1.0 | grad norm: 0.648 | number of skipped iterations: 0 | number of nan iterations: 0 |"  # fmt: skip
SAID = [
    STEP.format(n=7, batch="   512", loss="2.0E+00"), STEP.format(n=8, batch="   512", loss="1.9E+00"),
    STEP.format(n=9, batch="  5120", loss="1.9E+00"), STEP.format(n=9, batch="   51", loss="1.9E+00"),
    STEP.format(n=10, batch="   512", loss="nan"), "validation loss at iteration 10 | global batch size:   512",
    "\x1b[32mstep=4 loss=2.1\x1b[0m", "step=5 loss=-inf", "step: 6, loss: 2.0, grad_norm: NaN",
    " 40%|####      | 40/100 [00:40<01:00,  1.00it/s]\r 41%|####      | 41/100 [00:41<00:59,  1.00it/s, loss=2.1]",
    "saving checkpoint at iteration      10 to /ckpt", "  successfully saved checkpoint from iteration      10 to /ckpt",
    "[rank3]: step=9 loss=1.5", "[1,7]<stdout>: step=9 loss=1.5", "--global-batch-size 512 --seq-length 4096",
    "NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P", "", "password=hunter2hunter2", "-----BEGIN RSA PRIVATE KEY-----",
    "MIIEpAIBAAKCAQEA7bq8mF1Vb0V1", "-----END RSA PRIVATE KEY-----", "token ghp_" + "a1B2" * 9,
    "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=118, OpType=ALLREDUCE, Timeout(ms)=600000) ran for 600042 milliseconds before timing out.",
    "Traceback (most recent call last):", '  File "t.py", line 3, in <module>',
]  # fmt: skip
LOGS = st.lists(st.sampled_from(SAID) | st.text(max_size=20).filter(lambda text: text.isprintable()), max_size=150)


def lines_of(texts: Sequence[str]) -> tuple[list[LogLine], list[bytes]]:
    lines = [
        LogLine(attempt=ATTEMPT, file="f", number=n, stream=Stream.APPLICATION, text=text, rank=Rank(1))
        for n, text in enumerate(texts, 1)
    ]
    return lines, [text.encode() for text in texts]


@settings(max_examples=60, deadline=None)
@given(texts=LOGS, size=st.integers(1, 40))
def test_progress_is_read_by_batches_as_line_by_line(shipped: Diagnostician, texts: list[str], size: int) -> None:
    lines, raw = lines_of(texts)
    alone, together = ProgressReader(shipped.progress), ProgressReader(shipped.progress)
    single = [said for line in lines for said in alone.read(line, NOON)]
    batches: list[object] = []
    for start in range(0, len(lines), size):
        found = together.read_batch(lines[start : start + size], raw[start : start + size], NOON)
        batches += [said for place in sorted(found) for said in found[place]]
    assert steps(batches) == steps(single)
    assert together.shape(ATTEMPT) == alone.shape(ATTEMPT)


def steps(said: Sequence[object]) -> list[str]:
    """As text, since NaN is not equal to itself."""
    return [repr(one) for one in said if isinstance(one, StepProgress)]


@settings(max_examples=60, deadline=None)
@given(LOGS)
def test_secrets_are_taken_out_of_blocks_as_out_of_lines(texts: list[str]) -> None:
    lines, _ = lines_of(texts)
    one_by_one, at_once = Redactor(), Redactor()
    assert at_once.lines(lines) == [one_by_one._redacted(line) for line in lines]
    assert at_once.counts == one_by_one.counts


@settings(max_examples=20, deadline=None)
@given(texts=LOGS)
def test_a_line_that_the_hang_detector_is_not_shown_would_have_told_it_nothing(
    shipped: Diagnostician, texts: list[str]
) -> None:
    lines, raw = lines_of(texts)
    whole, screened = HangDetector(shipped.signatures), HangDetector(shipped.signatures)
    for detector in (whole, screened):
        detector.overdue(NOON)
    said = [one for line in lines for one in whole.observe(line)]
    shown = set(screened.screen(lines, raw))
    assert [one for n, line in enumerate(lines) if n in shown for one in screened.observe(line)] == said
    assert screened.snapshot() == whole.snapshot()


@given(st.lists(st.tuples(st.integers(-1, 70), st.integers(0, 30), st.floats(0, 1e6)), max_size=60))
def test_one_rank_steps_as_an_array_of_one_does(steps: list[tuple[int, int, float]]) -> None:
    alone, arrays = RankSigns(), RankSigns()
    for rank, step, at_s in steps:
        alone.stepped_alone(rank, step, at_s)
        arrays.stepped(np.array((rank,)), step, at_s)
    assert alone.as_json() == arrays.as_json()


@given(st.lists(st.floats(-0.5, 0.5), min_size=100, max_size=220), st.integers(70, 200))
@settings(max_examples=40, deadline=None)
def test_a_model_that_was_restored_counts_on_as_if_it_had_not_been(values: list[float], cut: int) -> None:
    whole, first = ArCusum(), ArCusum()
    for value in values[:cut]:
        first.learn_one(value)
    second = ArCusum()
    second.restore(first.snapshot())
    for model, some in ((whole, values), (second, values[cut:])):
        for value in some:
            model.learn_one(value)
    assert second.snapshot() == whole.snapshot()
    assert (second.has_fallen(), second.rise()) == (whole.has_fallen(), whole.rise())


@pytest.mark.parametrize("kind", [LogLine, LogRef, StepProgress])
def test_values_made_quickly_are_values(kind: type) -> None:
    given_ = {one.name: n for n, one in enumerate(fields(kind))}
    quick, slow = quickly(kind)(**given_), kind(**given_)
    assert (quick, type(quick), hash(quick), repr(quick)) == (slow, kind, hash(slow), repr(slow))
    with pytest.raises(AttributeError):
        setattr(quick, next(iter(given_)), 0)
    with pytest.raises(TypeError):
        quickly(kind)(**given_, unknown=1)
