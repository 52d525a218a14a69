# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What varies in a training log's line (numbers, ranks, addresses, paths …) replaced by its kind."""

from __future__ import annotations

import re

MAX_LINE_BYTES = 4_096
MAX_REMEMBERED_WORDS = 50_000

_DIGITS_TO_ZERO = bytes.maketrans(b"123456789", b"000000000")

# The order matters: the first kind that fits at a place wins. Every digit is a `0` by now.
_KINDS = re.compile(
    r"""
      (?P<URL>[a-z][a-z0+.-]*://[^\s'"<>),;\]]+)
    | (?P<UUID>(?<![0a-zA-Z])[0a-fA-F]{8}-[0a-fA-F]{4}-[0a-fA-F]{4}-[0a-fA-F]{4}-[0a-fA-F]{12})
    | (?P<PATH>(?<![\w.<])(?:\.{0,2}/[\w.+@=~%-]+){2,}/?)
    | (?P<TIME>(?:0000-00-00[T_]?)?(?<![0a-fA-F:])0{1,2}:00:00(?:[.,]0+)?(?:Z|[+-]00:?00)?(?![0a-fA-F:])
              | 0000[-/]00[-/]00(?![\w-]))
    | (?P<PCI>(?:(?<=PCI:)|(?<![0a-fA-F:]))(?:[0a-fA-F]{4,8}:)?[0a-fA-F]{2}:[0a-fA-F]{2}\.[0a-fA-F](?![\w:])
             | (?:(?<=PCI:)|(?<![0a-fA-F:]))[0a-fA-F]{4,8}:[0a-fA-F]{2}:[0a-fA-F]{2}(?![\w:.]))
    | (?P<IP>(?<![\w.])0{1,3}(?:\.0{1,3}){3}(?:[:/<]0+>?)?(?![\w.])
            | (?<![\w:.])\[?(?:[0a-fA-F]{0,4}:){2,7}[0a-fA-F]{1,4}\]?(?::0+)?(?![\w:]))
    | (?P<HEX>0x[0a-fA-F]+ | (?<![\w-])(?=[a-fA-F]*0)(?=0*[a-fA-F])[0a-fA-F]{8,}(?![\w-]))
    | (?P<DURATION>(?<![\w.])[+-]?0+(?:\.0+)?(?:[nuµm]?s|secs?|seconds|mins?|minutes|h|hrs|hours)(?!\w))
    | (?P<SIZE>(?<![\w.])0+(?:\.0+)?(?:[kKMGTP]i?B?|B)(?:/s|ps)?(?!\w))
    | (?P<NUM>(?<![\w.])[+-]?0+(?:\.0*)?(?:[eE][+-]?0+)?%?(?![\w]))
    | (?P<DIGITS>0+)
    """,
    re.VERBOSE,
)
_NUMBER_LIST = re.compile(r"<NUM>(?:(?:, ?|[;-]|\.\.)<NUM>)+")


def shape_of(line: str | bytes) -> bytes:
    """The line with every digit a zero: equal shapes have equal masked lines, and few shapes recur often.

    Bytes, since translating bytes costs a tenth of translating text.
    """
    raw = line if isinstance(line, bytes) else line.encode("utf-8", "surrogatepass")
    return raw[:MAX_LINE_BYTES].translate(_DIGITS_TO_ZERO)


class Masker:
    """Shape of a line to its masked form; remembers words, since a log repeats the same few thousand.

    Shapes: bytes of `shape_of` in, text out, words separated by one space; junk becomes U+FFFD.
            `rank3` becomes `rank#`, `3` becomes `<NUM>`.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def mask(self, shape: bytes) -> str:
        known = self._known
        words = []
        for word in shape.decode("utf-8", "replace").split():
            masked = known.get(word)
            if masked is None:
                masked = self._learn(word)
            words.append(masked)
        line = " ".join(words)
        return _NUMBER_LIST.sub("<NUMS>", line) if "<NUM>, <NUM>" in line else line

    def _learn(self, word: str) -> str:
        if len(self._known) >= MAX_REMEMBERED_WORDS:
            self._known.clear()
        masked = _KINDS.sub(_kind, word) if "0" in word or "/" in word or "::" in word else word
        if "<NUM>" in masked:
            masked = _NUMBER_LIST.sub("<NUMS>", masked)
        self._known[word] = masked
        return masked


def _kind(found: re.Match[str]) -> str:
    kind = found.lastgroup
    return "#" if kind == "DIGITS" else f"<{kind}>"
