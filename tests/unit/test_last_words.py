# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Unknown words at the end of a log, and exceptions by kind."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from detectors.log_text import read_log
from relight.types import Stream
from service.diagnosis import Diagnosis, Diagnostician

AT = datetime(2026, 1, 1, tzinfo=UTC)


def judge(shipped: Diagnostician, *lines: str, stream: Stream = Stream.APPLICATION) -> Diagnosis:
    return shipped.judge((read_log("job.log", "\n".join(lines).encode(), stream),), at=AT)


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-01 10:00:00 [ERROR] frobnicator lost its marbles",
        "FATAL: cannot negotiate with the flux capacitor",
        "F0606 09:10:14.926000 77 reactor.cc:12] Check failed: ready",
        "trainer: error: the widget is upside down",
        "worker 3 exited with unexpected error",
        "zorg.FrobError: no such frob",
    ],
)
def test_an_error_in_unknown_words_at_the_end_asks_for_a_restart(shipped: Diagnostician, line: str) -> None:
    said = judge(shipped, "starting", line)
    assert (said.attribution.failure, said.verdict.action.value) == ("cause_not_in_log", "restart")


@pytest.mark.parametrize(
    "line",
    [
        "2026-01-01 10:00:00 [WARNING] ERROR budget is low",
        "ERROR: connection lost, retrying in 5 s",
        "finished with 0 errors",
        "epoch 3 error: 0 errors=0 INFO",
        "eval error_rate=0.12 top1_error=0.3",
    ],
)
def test_warnings_retries_and_counts_are_not_loud(shipped: Diagnostician, line: str) -> None:
    assert judge(shipped, "starting", line).attribution.failure == "none"


def test_an_unknown_error_followed_by_training_is_no_failure(shipped: Diagnostician) -> None:
    steps = [f"step={n} loss=2.0" for n in range(1, 9)]
    assert judge(shipped, "[ERROR] frobnicator lost its marbles", *steps).attribution.failure == "none"


def test_unknown_words_of_other_streams_prove_nothing(shipped: Diagnostician) -> None:
    said = judge(shipped, "daemon: error: something of its own", stream=Stream.KERNEL)
    assert said.attribution.failure == "none"


def traceback(exception: str) -> list[str]:
    return ["Traceback (most recent call last):", '  File "/srv/train.py", line 3, in f', "    g()", exception]


@pytest.mark.parametrize(
    "exception", ["TypeError: no", "KeyError: 'x'", "omegaconf.errors.ConfigAttributeError: y", "AssertionError"]
)
def test_a_fault_of_the_program_stops(shipped: Diagnostician, exception: str) -> None:
    assert judge(shipped, *traceback(exception)).verdict.action.value == "stop"


@pytest.mark.parametrize(
    "exception", ["acme.client.LeaseExpired: lease 7", "sqlite3.OperationalError: odd", "acme.BrokerUnavailable: gone"]
)
def test_an_exception_that_may_pass_gets_one_more_try(shipped: Diagnostician, exception: str) -> None:
    assert judge(shipped, *traceback(exception)).verdict.action.value == "restart"


def test_a_failed_write_under_saving_frames_is_a_checkpoint_failure(shipped: Diagnostician) -> None:
    said = judge(
        shipped,
        "Traceback (most recent call last):",
        '  File "/opt/torch/serialization.py", line 850, in save',
        "    _save(obj, opened_zipfile)",
        "OSError: [Errno 5] Input/output error",
    )
    assert said.attribution.failure == "checkpoint_write_failed"


def test_a_nan_that_is_gone_at_the_next_step_is_no_failure(shipped: Diagnostician) -> None:
    bad = judge(shipped, "step=1 loss=2.0", "step=2 loss=nan")
    mended = judge(shipped, "step=1 loss=2.0", "step=2 loss=nan", "step=3 loss=1.9")
    assert (bad.attribution.failure, mended.attribution.failure) == ("nan_gradient", "none")
