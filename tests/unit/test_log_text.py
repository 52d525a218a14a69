# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Logical lines out of whatever bytes a log holds."""

from __future__ import annotations

from detectors.log_text import read_log
from relight.types import Stream


def lines(data: bytes) -> list[tuple[int, bytes]]:
    log = read_log("x.log", data, Stream.APPLICATION)
    return list(zip(log.numbers, log.lines, strict=True))


def test_physical_numbers_count_from_one_and_a_last_newline_adds_no_line() -> None:
    assert lines(b"a\nb\n") == [(1, b"a"), (2, b"b")]


def test_windows_line_ends_leave_no_carriage_return() -> None:
    assert lines(b"a\r\nb\r\n") == [(1, b"a"), (2, b"b")]


def test_a_progress_bar_becomes_one_logical_line_a_rewrite_with_the_same_number() -> None:
    data = b"0%|\r50%|\r[rank1]:[E ProcessGroupNCCL.cpp:523] boom\nnext\n"
    assert lines(data) == [
        (1, b"0%|"),
        (1, b"50%|"),
        (1, b"[rank1]:[E ProcessGroupNCCL.cpp:523] boom"),
        (2, b"next"),
    ]


def test_escape_sequences_are_removed() -> None:
    assert lines(b"\x1b[31mERROR\x1b[0m x \x1b]0;title\x07y\n") == [(1, b"ERROR x y")]


def test_utf16_is_read_as_text() -> None:
    assert lines("Xid 79\nöä\n".encode("utf-16")) == [(1, b"Xid 79"), (2, "öä".encode())]


def test_a_byte_order_mark_is_no_part_of_the_first_line() -> None:
    assert lines(b"\xef\xbb\xbfhello\n") == [(1, b"hello")]


def test_an_empty_file_has_no_lines() -> None:
    assert lines(b"") == []


def test_lines_cut_at_a_terminals_width_are_joined_and_keep_their_first_number() -> None:
    width = 80
    text = "[rank6]:[E614 13:05:56.678374887 ProcessGroupNCCL.cpp:1743] [PG ID 0 Rank 6] ProcessGroupNCCL's watchdog got stuck for 480 seconds without making progress in monitoring enqueued collectives. This typically indicates a NCCL/CUDA API hang blocking the watchdog and so on and on until the end of it all. "
    text = (text * 2)[: width * 6 + 20]
    wrapped = "\n".join(text[i : i + width] for i in range(0, len(text), width))
    ((number, joined), *rest) = lines(wrapped.encode() + b"\n[rank1]: other\n")
    assert (number, joined.decode()) == (1, text.rstrip())
    assert [b for _, b in rest] == [b"[rank1]: other"]


def test_lines_that_merely_share_a_length_are_not_joined() -> None:
    data = b"".join(b"%-79d|\n" % i for i in range(30))
    assert len(lines(data)) == 30


def test_a_ruler_of_one_repeated_line_is_no_wrap() -> None:
    data = (b"*" * 100 + b"\nnote\n") * 10
    assert len(lines(data)) == 20
