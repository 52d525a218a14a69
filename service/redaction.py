# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Secrets taken out of log lines at the door: counted by kind, never kept, the words around them left alone."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import re2

from relight.types import LogLine
from service.secret_kinds import SECRETS, Keep, Secret

MAX_OPEN_KEYS: Final = 10_000
MAX_KEY_LINES: Final = 200
_BLOCK: Final = 64


_GROUPS: Final = ("secret", "secret_", "secret__")
# What a line must hold before any of the patterns is tried; all of it is cheap to look for.
_TRIGGER: Final = re2.compile(
    r"(?i)gh[pousr]_|github_pat|gl[a-z]{2,4}-|hf_|api_org_|akia|asia|abia|acca|sk-|xox|xapp-|hooks\.slack|aiza|ya29|"
    r"gocspx|nvapi|npm_|pypi-a|dckr_pat|[srp]k_|sg\.|dop_v1|hvs\.|glc_|wandb_v1|rlt_|eyj|-----begin|://[^\s/@]*@|"
    r"authorization|bearer\s|--?pass|--?pw|(?:pass\w{0,6}|pwd|secret\w{0,3}|token|key|sig|signature|credential)[\"']?\s{0,3}(?:=|:)"
)
_END: Final = re2.compile(r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY")
_BEGIN: Final = re2.compile(r"-----BEGIN (?:[A-Z0-9]+ ){0,3}PRIVATE KEY")
_KEY_TEXT: Final = re2.compile(r"[\s>|#]*[A-Za-z0-9+/=]{16,}\s*|\s*(?:Proc-Type|DEK-Info|Comment|Version):.*|\s*")


@dataclass(frozen=True, slots=True)
class _Compiled:
    kind: str
    pattern: Any
    groups: tuple[int, ...]
    is_real: Keep | None


def _compiled(one: Secret) -> _Compiled:
    pattern = re2.compile(one.pattern)
    groups = tuple(pattern.groupindex[name] for name in _GROUPS if name in pattern.groupindex)
    return _Compiled(one.kind, pattern, groups, one.is_real)


class Redactor:
    """Lines in, the same lines without secrets out; remembers which files stand in the middle of a private key.

    Thread-safe. `counts` is by kind, and the only thing that is kept of a secret.
    """

    def __init__(self, listener: Callable[[str], object] | None = None) -> None:
        self._patterns = tuple(_compiled(one) for one in SECRETS)
        self._listener = listener
        self._lock = threading.Lock()
        self._open: OrderedDict[tuple[str, str], int] = OrderedDict()
        self.counts: Counter[str] = Counter()

    def lines(self, lines: Sequence[LogLine]) -> list[LogLine]:
        """The lines without secrets; those without any are the same objects.

        Blocks of lines are asked first: what says nothing of secrets, and stands in no private key, is let through.
        """
        out = list[LogLine]()
        for start in range(0, len(lines), _BLOCK):
            block = lines[start : start + _BLOCK]
            out += block if self._is_clean(block) else [self._redacted(line) for line in block]
        return out

    def _is_clean(self, block: Sequence[LogLine]) -> bool:
        if _TRIGGER.search("\n".join([line.text for line in block])) is not None:
            return False
        if not self._open:
            return True
        with self._lock:
            return not any((line.attempt, line.file) in self._open for line in block)

    def _redacted(self, line: LogLine) -> LogLine:
        text = self._keyed(line)
        return line if text == line.text else replace(line, text=text)

    def text(self, text: str) -> str:
        """One text without secrets."""
        if not _TRIGGER.search(text):
            return text
        for one in self._patterns:
            text = self._without(text, one)
        return text

    def _without(self, text: str, one: _Compiled) -> str:
        parts, end = list[str](), 0
        for found in one.pattern.finditer(text):
            group = next(number for number in one.groups if found[number] is not None)
            if "[redacted:" in found[group] or (one.is_real is not None and not one.is_real(found[group])):
                continue
            parts += [text[end : found.start(group)], f"[redacted:{one.kind}]"]
            end = found.end(group)
            self._count(one.kind)
        return "".join(parts) + text[end:] if parts else text

    def _keyed(self, line: LogLine) -> str:
        """A private key spans lines: from its first to its last, what looks like key text goes."""
        place = (line.attempt, line.file)
        with self._lock:
            left = self._open.pop(place, 0)
        if left and _END.search(line.text):
            return "[redacted:private_key]"
        if left and _KEY_TEXT.fullmatch(line.text):
            self._remember(place, left - 1)
            return "[redacted:private_key]" if line.text.strip() else line.text
        if _BEGIN.search(line.text) and not _END.search(line.text):
            self._remember(place, MAX_KEY_LINES)
        return self.text(line.text)

    def _remember(self, place: tuple[str, str], left: int) -> None:
        with self._lock:
            if left > 0:
                self._open[place] = left
                while len(self._open) > MAX_OPEN_KEYS:
                    self._open.popitem(last=False)

    def _count(self, kind: str) -> None:
        with self._lock:
            self.counts[kind] += 1
        if self._listener is not None:
            self._listener(kind)
