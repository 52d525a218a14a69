# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The rule set in force: reloaded off to the side, swapped whole, and kept when the new one is faulty."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from rules.lint import load
from rules.match import RuleSet
from rules.problems import Problem, RulesInvalid

Compiler = Callable[[Mapping[str, str], Iterable[str]], tuple[RuleSet, RuleSet]]

_READS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRules:
    """Two compiled sets that belong together, and the digest of the texts they came from."""

    signatures: RuleSet
    progress: RuleSet
    digest: str

    @property
    def pair(self) -> tuple[RuleSet, RuleSet]:
        return self.signatures, self.progress


@dataclass(frozen=True, slots=True, kw_only=True)
class Reload:
    """What a reload did. Without problems `digest` is now in force, with problems the old one still is."""

    is_swapped: bool
    digest: str
    problems: tuple[Problem, ...] = ()

    @property
    def is_good(self) -> bool:
        return not self.problems


class RuleStore:
    """Holds the rule set in force; readers take `current` once and keep it for as long as they work.

    Errors: RulesInvalid from the constructor, since without a first good set there is nothing to keep.
    """

    def __init__(
        self, read: Callable[[], Mapping[str, str]], failures: Iterable[str], compiled: Compiler = load
    ) -> None:
        self._read = read
        self._compiled = compiled
        self._failures = frozenset(failures)
        self._reloading = threading.Lock()
        self._current = self._built()
        self._last = Reload(is_swapped=True, digest=self._current.digest)

    @property
    def current(self) -> ActiveRules:
        return self._current

    @property
    def last_reload(self) -> Reload:
        return self._last

    def reload(self) -> Reload:
        """Read, lint, test and swap in one step; on any problem the set in force stays as it is.

        Errors: none; problems are returned, those of reading included.
        """
        with self._reloading:
            before = self._current.digest
            try:
                fresh = self._built()
            except RulesInvalid as invalid:
                self._last = Reload(is_swapped=False, digest=before, problems=invalid.problems)
            else:
                if fresh.digest != before:
                    self._current = fresh
                self._last = Reload(is_swapped=fresh.digest != before, digest=fresh.digest)
            return self._last

    def _built(self) -> ActiveRules:
        texts = self._settled()
        signatures, progress = self._compiled(texts, self._failures)
        return ActiveRules(signatures=signatures, progress=progress, digest=_digest(texts))

    def _settled(self) -> Mapping[str, str]:
        """Texts that two readings agree on: files of one change do not all land at once."""
        texts = self._texts()
        for _ in range(_READS):
            again = self._texts()
            if _digest(again) == _digest(texts):
                return texts
            texts = again
        raise RulesInvalid((_unreadable("files change while they are read", "reload once they stand still"),))

    def _texts(self) -> Mapping[str, str]:
        try:
            texts = self._read()
        except OSError as error:
            where = str(error.filename or "-")
            what = error.strerror or str(error)
            raise RulesInvalid((_unreadable(what, "make it readable, then reload", where),)) from error
        if not texts:
            raise RulesInvalid((_unreadable("no rule files found", "an empty set would match nothing"),))
        return texts


def _digest(texts: Mapping[str, str]) -> str:
    whole = hashlib.sha256()
    for file, text in sorted(texts.items()):
        for part in (file, text):
            raw = part.encode("utf-8", "surrogatepass")
            whole.update(len(raw).to_bytes(8, "big"))
            whole.update(raw)
    return whole.hexdigest()


def _unreadable(what: str, fix: str, file: str = "-") -> Problem:
    return Problem(file=file, line=1, column=1, signature="-", key="-", what=what, fix=fix)
