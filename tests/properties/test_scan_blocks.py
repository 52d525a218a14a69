# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Asking blocks of lines first changes how fast a scan is and never what it finds."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from service.diagnosis import Diagnostician

HITS = (
    b"NVRM: Xid (PCI:0000:0f:00): 79, pid=1, name=python, GPU has fallen off the bus.",
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
    b"srun: error: node3: task 2: Killed",
    b"make: *** [train] Error 1",
    b"Aborted (core dumped) ",
    b"slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO TIME LIMIT ***",
)
lines = st.lists(
    st.one_of(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b" ")), st.just(b"chatter"), st.sampled_from(HITS)),
    max_size=400,
)


@settings(max_examples=60, deadline=None)
@given(text=lines)
def test_a_scan_finds_the_same_with_and_without_blocks(shipped: Diagnostician, text: list[bytes]) -> None:
    for rules in (shipped.signatures, shipped.progress):
        assert list(rules.candidates(text)) == list(rules._scan_lines(text, 0))


def test_a_hit_far_down_a_quiet_log_is_found_and_one_in_a_loud_log_too(shipped: Diagnostician) -> None:
    quiet = [b"chatter"] * 5_000 + [HITS[0]] + [b"chatter"] * 500
    loud = [HITS[3], b"chatter"] * 3_000
    assert [i for i, _ in shipped.signatures.scan(quiet)] == [5_000]
    assert [i for i, _ in shipped.signatures.scan(loud)] == list(range(0, 6_000, 2))
