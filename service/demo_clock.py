# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The demo's clock: it starts hours ago, is wound forward, and in the end goes with the real one."""

from __future__ import annotations

from datetime import datetime, timedelta

from relight.ports import Clock


class WoundClock:
    """Time for a service that shall live through hours within seconds; it never runs back.

    Errors: ValueError for a moment that has not come yet.
    """

    def __init__(self, real: Clock, ago: timedelta) -> None:
        self._real = real
        self._at: datetime | None = real.now() - ago

    def now(self) -> datetime:
        at = self._at
        return self._real.now() if at is None else at

    def wind(self, to: datetime) -> None:
        """Let time pass; a moment of the past changes nothing, nor does any once time is real."""
        if to > self._real.now():
            raise ValueError(f"can't wind the clock to {to.isoformat()}, which is in the future")
        if self._at is not None:
            self._at = max(self._at, to)

    def release(self) -> None:
        """From here on time is real."""
        self._at = None
