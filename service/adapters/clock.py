# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The machine's clock, the only place that reads the present."""

from __future__ import annotations

from datetime import UTC, datetime


class SystemClock:
    """The present, as the operating system has it."""

    def now(self) -> datetime:
        return datetime.now(UTC)
