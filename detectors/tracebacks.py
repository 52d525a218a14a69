# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Python tracebacks read by structure: frames, chained causes, and where the text was cut off."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

# What a line must hold to end a traceback; also the cheap test that picks lines to look at.
TERMINAL = re.compile(
    r"^(?P<exception>(?:[A-Za-z_]\w*\.)*(?:[A-Za-z_]\w*(?:Error|Exception|Interrupt|Failure|Timeout|Exit|Fault|Died|Closed"
    r"|Unavailable|Refused|NotFound|Mismatch|Abort|Aborted|Invalid\w*|Exhausted|Expired|Warning)(?:\(\w+\))?|StopIteration|KeyboardInterrupt"
    r"|AssertionError|BdbQuit|Empty|Full))(?::\s?(?P<message>.*))?$",
    re.DOTALL,
)
HEADER = "Traceback (most recent call last)"
_FRAME = re.compile(r'^\s*File "(?P<path>[^"]+)", line (?P<line>\d+)(?:, in (?P<function>\S+))?')
_CHAIN = ("The above exception was the direct cause of", "During handling of the above exception")
_LAUNCHER = re.compile(
    r"torch/distributed/(?:run|launch|launcher|elastic)|/bin/(?:torchrun|accelerate|deepspeed)"
    r"|accelerate/commands|deepspeed/launcher|torch/multiprocessing/spawn|/runpy\.py|<frozen runpy>"
    r"|torch/utils/data/_utils/worker\.py|lightning/fabric/cli"
)
_MAX_FRAMES_BACK = 120
_MAX_AHEAD = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    path: str
    function: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceback:
    """One traceback; `end` is the index of its last line, where the exception stands unless it was cut off.

    `is_caused` says that it only wraps the one printed before it.
    """

    end: int
    exception: str
    message: str
    frames: tuple[Frame, ...]
    is_cut: bool = False
    is_caused: bool = False

    @property
    def is_launcher(self) -> bool:
        """Only a launcher's own frames: it reports that a worker ended, and not why."""
        return bool(self.frames) and all(_LAUNCHER.search(f.path) for f in self.frames)


@dataclass(frozen=True, slots=True)
class Message:
    """A logical line split into its prefix and its message."""

    prefix: str
    body: str


def terminal_at(messages: Sequence[Message], index: int) -> Traceback | None:
    """The traceback that ends at `index`, or None if that line ends none.

    Shapes: `messages` are consecutive lines of one file; only lines with the same prefix shape belong
            together, so interleaved ranks do not mix.
    """
    here = messages[index]
    body = here.body.strip("\r")
    found = TERMINAL.match(body)
    if found is None or body[:1].isspace():
        return None
    frames, is_caused, is_block = _frames_before(messages, index)
    if not is_block:
        return None
    return Traceback(
        end=index,
        exception=found["exception"],
        message=(found["message"] or "").strip(),
        frames=frames,
        is_caused=is_caused,
    )


def cut_traceback(messages: Sequence[Message], header: int) -> Traceback | None:
    """The traceback that begins at `header` if its exception never appears before the log goes on or ends."""
    writer = writer_of(messages[header].prefix)
    frames: list[Frame] = []
    last = header
    for index in range(header + 1, min(len(messages), header + _MAX_AHEAD)):
        line = messages[index]
        if writer_of(line.prefix) != writer:
            continue
        if not line.body.strip():
            continue
        frame = _FRAME.match(line.body)
        if frame is not None:
            frames.append(_frame(frame, index))
        elif not line.body[:1].isspace():
            if TERMINAL.match(line.body) or line.body.startswith(_CHAIN) or HEADER in line.body:
                return None
            break
        last = index
    if not frames:
        return None
    return Traceback(end=last, exception="", message="", frames=tuple(frames), is_cut=True)


def _frames_before(messages: Sequence[Message], index: int) -> tuple[tuple[Frame, ...], bool, bool]:
    """Frames above a terminal line, whether a chain marker stands above them, and if it is one at all."""
    writer = writer_of(messages[index].prefix)
    frames: list[Frame] = []
    is_block = False
    for back in range(index - 1, max(-1, index - _MAX_FRAMES_BACK), -1):
        line = messages[back]
        if writer_of(line.prefix) != writer:
            continue
        body = line.body
        if not body.strip():
            continue
        frame = _FRAME.match(body)
        if frame is not None:
            frames.append(_frame(frame, back))
            is_block = True
        elif HEADER in body:
            return tuple(reversed(frames)), _is_chained(messages, back, writer), True
        elif body[:1].isspace() or not body.strip(" ~^"):
            is_block = True
        else:
            break
    return tuple(reversed(frames)), False, is_block


def _is_chained(messages: Sequence[Message], header: int, writer: str) -> bool:
    for back in range(header - 1, max(-1, header - 6), -1):
        line = messages[back]
        if writer_of(line.prefix) == writer and line.body.strip():
            return line.body.strip().startswith(_CHAIN)
    return False


def _frame(found: re.Match[str], index: int) -> Frame:
    return Frame(path=found["path"], function=found["function"] or "", index=index)


_NUMBERS = re.compile(r"\d+")
_RANK_LIKE = re.compile(
    r"\[(?:rank|default|trainer)\d+(?:\|\d+)?\]:|\[\d+,\d+\]<|pid=\d+|^\s*\d{1,6}: |^[A-Za-z][\w.-]*\d: "
)


def writer_of(prefix: str) -> str:
    """What tells writers apart in a prefix: ranks and pids stay, times go."""
    return " ".join(m.group(0).strip() for m in _RANK_LIKE.finditer(prefix))
