# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which keys were seen lately: senders deliver at least once, so a repetition must be known as one."""

from __future__ import annotations

from collections import OrderedDict
from datetime import datetime, timedelta


class SeenLately:
    """Keys of a bounded window in time and number; the oldest are forgotten first.

    Not thread-safe. A forgotten key counts as new, which is harmless, since what it carries is idempotent.
    """

    def __init__(self, window: timedelta, keys: int) -> None:
        self._window = window
        self._keys = keys
        self._seen: OrderedDict[bytes, datetime] = OrderedDict()

    def __contains__(self, key: bytes) -> bool:
        return key in self._seen

    def add(self, key: bytes, at: datetime) -> bool:
        """True if the key is new."""
        self._forget(at)
        if key in self._seen:
            return False
        self._seen[key] = at
        return True

    def _forget(self, at: datetime) -> None:
        while self._seen:
            first = next(iter(self._seen.values()))
            if len(self._seen) < self._keys and at - first <= self._window:
                return
            self._seen.popitem(last=False)
