# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Any bytes may be a log: nothing raises, and junk alone is no failure of the job."""

from __future__ import annotations

from datetime import UTC, datetime

from hypothesis import given, settings
from hypothesis import strategies as st

from detectors.line_prefix import read_prefix
from detectors.log_text import read_log
from relight.types import Action, Stream
from service.diagnosis import Diagnostician

AT = datetime(2026, 1, 1, tzinfo=UTC)
FRAGMENTS = (
    b"Traceback (most recent call last):\n", b'  File "x.py", line 1, in f\n', b"ValueError: no\n", b"\r", b"\x1b[31m",
    b"[rank0]:", b"NVRM: Xid (PCI:0000:0f:00): 79, GPU has fallen off the bus.", b"\xff\xfe", b"==== restart 1 ====\n",
    b"slurmstepd: error: *** JOB 1 ON n CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***\n", b"\n\n", b"\x00",
    b"The above exception was the direct cause of the following exception:\n", b"iteration 5/ 10 | grad norm: nan |\n",
)  # fmt: skip
logs = st.lists(st.one_of(st.binary(max_size=60), st.sampled_from(FRAGMENTS)), max_size=40).map(b"".join)


@settings(max_examples=150, deadline=None)
@given(data=logs, stream=st.sampled_from(Stream))
def test_any_bytes_get_a_verdict(shipped: Diagnostician, data: bytes, stream: Stream) -> None:
    said = shipped.judge((read_log("x", data, stream),), at=AT)
    assert said.verdict.action in set(Action)
    if said.attribution.root is not None:
        assert 1 <= said.attribution.root.where.line <= data.count(b"\n") + 1


@settings(max_examples=100, deadline=None)
@given(data=logs)
def test_the_same_log_gets_the_same_verdict(shipped: Diagnostician, data: bytes) -> None:
    first, second = (shipped.judge((read_log("x", data, Stream.APPLICATION),), at=AT) for _ in range(2))
    assert first == second


@settings(max_examples=300, deadline=None)
@given(text=st.text(max_size=200))
def test_a_prefix_never_ends_behind_its_line(text: str) -> None:
    assert 0 <= read_prefix(text, 2026).start <= len(text)


def test_a_line_of_a_megabyte_is_harmless(shipped: Diagnostician) -> None:
    data = b"A" * 1_000_000 + b"\n" + b"CUDA out of memory " * 60_000 + b"\n"
    assert shipped.judge((read_log("x", data, Stream.APPLICATION),), at=AT).verdict.action in set(Action)


def test_random_binary_is_no_failure(shipped: Diagnostician) -> None:
    data = bytes((i * 7919 + (i >> 3) * 104729) % 256 for i in range(200_000))
    assert shipped.judge((read_log("x", data, Stream.APPLICATION),), at=AT).attribution.failure == "none"
