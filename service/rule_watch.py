# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Reads rule folders again once changed files stand still or a silence turns, and keeps the last good set."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta

from service.rules_store import Reload, RuleStore


class RuleWatch:
    """Looks at the files' names, sizes and times; reads them only after a change that has settled.

    A silence of a signature that begins or ends is a change too, and waits for nothing.

    Shapes: `fingerprint` is any text that changes with the files; `swapped` is told of a set that is in force,
            `refused` of one that is not and whose predecessor stays.
    Units:  a change counts as settled once nothing changed for `settle`.
    Errors: OSError from `fingerprint` if a folder can't be listed.
    """

    def __init__(
        self,
        store: RuleStore,
        fingerprint: Callable[[], str],
        settle: timedelta,
        swapped: Callable[[], object],
        refused: Callable[[Reload], object],
    ) -> None:
        self._store = store
        self._fingerprint = fingerprint
        self._settle = settle
        self._swapped, self._refused = swapped, refused
        self._loaded = self._seen = fingerprint()
        self._since: datetime | None = None

    @property
    def is_pending(self) -> bool:
        """True while changed files wait to stand still."""
        return self._since is not None

    def look(self, now: datetime) -> Reload | None:
        """What a reload did, or None if there was nothing to do (yet)."""
        found = self._fingerprint()
        if found != self._seen:
            self._seen, self._since = found, now
        if self._since is None:
            return self._told(self._store.turn()) if self._store.is_due(now) else None
        if now - self._since < self._settle:
            return None
        self._since = None
        if found == self._loaded:
            return None
        self._loaded = found
        return self._told(self._store.reload())

    def _told(self, done: Reload) -> Reload:
        if not done.is_good:
            self._refused(done)
        elif done.is_swapped:
            self._swapped()
        return done
