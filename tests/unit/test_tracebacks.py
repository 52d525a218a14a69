# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Tracebacks by structure: which exception, which frames, and whether the text was cut."""

from __future__ import annotations

from collections.abc import Sequence

from detectors.line_prefix import read_prefix
from detectors.tracebacks import Message, Traceback, cut_traceback, terminal_at


def messages(*lines: str) -> list[Message]:
    out = []
    for line in lines:
        start = read_prefix(line).start
        out.append(Message(line[:start], line[start:]))
    return out


def found(lines: Sequence[Message]) -> list[Traceback]:
    return [t for t in (terminal_at(lines, i) for i in range(len(lines))) if t is not None]


PLAIN = (
    "Traceback (most recent call last):",
    '  File "/srv/train.py", line 10, in main',
    "    step()",
    '  File "/srv/train.py", line 20, in step',
    "    x = table[17]",
    "IndexError: list index out of range",
)


def test_a_traceback_ends_at_its_exception_with_its_frames() -> None:
    (one,) = found(messages(*PLAIN))
    assert (one.exception, one.message) == ("IndexError", "list index out of range")
    assert [f.function for f in one.frames] == ["main", "step"]


def test_frames_without_a_header_still_make_a_traceback() -> None:
    (one,) = found(messages(*PLAIN[3:]))
    assert one.exception == "IndexError"


def test_a_logged_word_ending_in_error_is_no_traceback() -> None:
    assert found(messages("step 10 loss 2.1", "ValueError: somebody printed this", "step 11 loss 2.0")) == []


def test_interleaved_ranks_do_not_mix() -> None:
    mixed = messages(
        "[rank0]: Traceback (most recent call last):",
        "[rank1]: Traceback (most recent call last):",
        '[rank0]:   File "/srv/a.py", line 1, in one',
        '[rank1]:   File "/srv/b.py", line 1, in two',
        "[rank1]: KeyError: 'x'",
        "[rank0]: ValueError: y",
    )
    assert [(t.exception, [f.path for f in t.frames]) for t in found(mixed)] == [
        ("KeyError", ["/srv/b.py"]),
        ("ValueError", ["/srv/a.py"]),
    ]


def test_a_chained_exception_is_marked_as_caused() -> None:
    chain = messages(
        *PLAIN,
        "",
        "The above exception was the direct cause of the following exception:",
        "",
        "Traceback (most recent call last):",
        '  File "/srv/train.py", line 30, in run',
        "    raise RuntimeError('step failed') from error",
        "RuntimeError: step failed",
    )
    assert [(t.exception, t.is_caused) for t in found(chain)] == [
        ("IndexError", False),
        ("RuntimeError", True),
    ]


def test_caret_lines_and_elided_frames_belong_to_the_traceback() -> None:
    (one,) = found(
        messages(
            "Traceback (most recent call last):",
            '  File "/srv/train.py", line 10, in main',
            "    ...<5 lines>...",
            "    ^^^^^^",
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        )
    )
    assert one.exception == "torch.OutOfMemoryError"


def test_a_text_that_ends_inside_a_traceback_is_cut() -> None:
    cut = cut_traceback(messages(*PLAIN[:5]), 0)
    assert cut is not None
    assert cut.is_cut
    assert cut.end == 4


def test_a_complete_traceback_is_not_cut() -> None:
    assert cut_traceback(messages(*PLAIN), 0) is None


def test_a_launchers_own_frames_say_nothing_of_the_cause() -> None:
    (one,) = found(
        messages(
            "Traceback (most recent call last):",
            '  File "/opt/venv/bin/torchrun", line 8, in <module>',
            "    sys.exit(main())",
            '  File "/opt/venv/lib/python3.11/site-packages/torch/distributed/run.py", line 1028, in main',
            "    run(args)",
            "SomeError: worker group failed",
        )
    )
    assert one.is_launcher
