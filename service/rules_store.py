# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The rule set in force: reloaded off to the side, swapped whole, and kept when the new one is faulty."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

from rules.checked import Checked, Quiet
from rules.lint import check
from rules.match import RuleSet
from rules.problems import Problem, RulesInvalid

Checker = Callable[[Mapping[str, str], Iterable[str]], Checked]

_READS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ActiveRules:
    """Two compiled sets that belong together, and the digest of the texts and silences they came from.

    `checked` also holds what is switched off, `texts` is the digest of the files alone, `quiet` are the silences that
    hold, by target, and `changed` says when a signature last became another while this program ran.
    """

    signatures: RuleSet
    progress: RuleSet
    digest: str
    checked: Checked
    texts: str
    quiet: Mapping[str, Quiet] = field(default_factory=dict)
    changed: Mapping[str, datetime] = field(default_factory=dict)

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

    Shapes: `now` is asked at every reload: silences of signatures begin and end. Without it none holds.
    Errors: RulesInvalid from the constructor, since without a first good set there is nothing to keep.
    """

    def __init__(
        self,
        read: Callable[[], Mapping[str, str]],
        failures: Iterable[str],
        checker: Checker = check,
        now: Callable[[], datetime] | None = None,
    ) -> None:
        self._read = read
        self._checker = checker
        self._now = now
        self._failures = frozenset(failures)
        self._reloading = threading.Lock()
        self._made_at: datetime | None = None
        self._current = self._built()
        self._last = Reload(is_swapped=True, digest=self._current.digest)

    @property
    def current(self) -> ActiveRules:
        return self._current

    @property
    def last_reload(self) -> Reload:
        return self._last

    def is_due(self, now: datetime) -> bool:
        """Whether a silence began or ended since the set in force was made."""
        made = self._made_at
        return made is not None and any(made < turn <= now for turn in self._current.checked.turns())

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
                    self._swap(fresh)
                self._last = Reload(is_swapped=fresh.digest != before, digest=fresh.digest)
            return self._last

    def turn(self) -> Reload:
        """Let silences begin and end in the set in force, without reading a file: a faulty one holds nothing up."""
        with self._reloading:
            before = self._current
            fresh = self._made(before.checked, before.texts)
            if fresh.digest != before.digest:
                self._swap(fresh)
            return Reload(is_swapped=fresh.digest != before.digest, digest=fresh.digest)

    def _swap(self, fresh: ActiveRules) -> None:
        before, at = self._current, self._made_at
        changed = {} if at is None else {name: at for name in _differing(before, fresh)}
        self._current = replace(fresh, changed={**before.changed, **changed})

    def _built(self) -> ActiveRules:
        texts = self._settled()
        return self._made(self._checker(texts, self._failures), _digest(texts))

    def _made(self, checked: Checked, texts: str) -> ActiveRules:
        at = self._made_at = self._now() if self._now is not None else None
        signatures, progress = checked.compiled(at)
        quiet = checked.silenced(at)
        digest = _digest({**{target: str(one) for target, one in quiet.items()}, "": texts}) if quiet else texts
        return ActiveRules(
            signatures=signatures, progress=progress, digest=digest, checked=checked, texts=texts, quiet=quiet
        )

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


def _differing(before: ActiveRules, after: ActiveRules) -> set[str]:
    """Signatures that came, went, or are judged otherwise: by their text, an overlay or a silence."""
    was, now = (_by_name(one) for one in (before, after))
    return {name for name in was.keys() | now.keys() if was.get(name) != now.get(name)}


def _by_name(rules: ActiveRules) -> dict[str, object]:
    off, quiet = rules.checked.disabled, rules.quiet
    return {
        s.id: (
            s,
            sorted(t for t in off if _owner(t) == s.id),
            sorted(str(q) for t, q in quiet.items() if _owner(t) == s.id),
        )
        for s in rules.checked.signatures
    }


def _owner(target: str) -> str:
    return target.partition("#")[0]


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
