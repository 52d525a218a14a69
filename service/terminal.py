# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a command shows: results on stdout, messages on stderr, log text made harmless."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from functools import cache
from typing import Any

import typer
from rich.console import Console
from rich.text import Text

# C0 and C1 controls but tab, DEL, line and direction marks, and halves of characters.
_HARMFUL = re.compile("[\x00-\x08\x0a-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")


class ExitCode(IntEnum):
    OK = 0
    FINDINGS = 1
    USAGE = 2
    CONFIG = 3
    CANNOT_REACH = 4
    REFUSED = 5
    INTEGRITY = 6


def escaped(text: str) -> str:
    """Untrusted text on one line, with every character that could drive a terminal written as its code."""
    return _HARMFUL.sub(_code, text)


def _code(found: re.Match[str]) -> str:
    point = ord(found[0])
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}"


def result(text: str) -> None:
    sys.stdout.write(text + "\n")


def result_json(value: Any) -> None:
    result(json.dumps(value, ensure_ascii=False, indent=2))


def message(text: str) -> None:
    sys.stderr.write(text + "\n")


def stop(text: str, code: ExitCode) -> typer.Exit:
    """The exit to raise after telling why, as in `raise stop("…", ExitCode.CONFIG)`."""
    message(f"relight: {text}")
    return typer.Exit(code)


@cache
def _console() -> Console:
    return Console(highlight=False, markup=False, emoji=False, soft_wrap=True)


def marked(before: str, line: bytes, span: tuple[int, int]) -> None:
    """A log line with the matched bytes standing out: in colour on a terminal, between » « elsewhere."""
    start, end = span
    parts = [escaped(part.decode("utf-8", "replace")) for part in (line[:start], line[start:end], line[end:])]
    if _console().is_terminal and not _console().no_color:
        text = Text(before)
        text.append(parts[0])
        text.append(parts[1], style="bold red")
        text.append(parts[2])
        _console().print(text)
    else:
        result(f"{before}{parts[0]}»{parts[1]}«{parts[2]}")


class Progress:
    """A bar on stderr; `advance` costs nothing where nobody watches."""

    def __init__(self, bar: Any = None, task: Any = None) -> None:
        self._bar, self._task = bar, task

    def advance(self, amount: int = 1) -> None:
        if self._bar is not None:
            self._bar.advance(self._task, amount)


@contextmanager
def progress(title: str, total: int | None) -> Iterator[Progress]:
    """A progress bar while the block runs, if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield Progress()
        return
    import rich.progress

    with rich.progress.Progress(transient=True, console=Console(stderr=True)) as bar:
        yield Progress(bar, bar.add_task(title, total=total))
