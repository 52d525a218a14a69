# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A service that listens beside a live job, with limits short enough for a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from service.bootstrap import running
from service.config import Settings
from service.live_job import Reporting, Watched


def settings_of(folder: Path, patience: float = 0.1) -> Settings:
    """Limits a tenth or less of the real ones: a test must not wait for minutes."""
    said: Mapping[str, Any] = {
        "audit": {"path": folder / "audit.duckdb"},
        "server": {"port": 0},
        "recommend": {"sweep_every_s": 0.1},
        "follow": {"roots": [folder / "run"], "poll_every_s": 0.1},
        "plugins": {"options": {"hang": {"patience": patience}}},
    }
    return Settings.model_validate(said)


@contextmanager
def watching(settings: Settings, folder: Path) -> Iterator[tuple[Watched, Reporting]]:
    """A service that listens, an attempt `live` at it, and where its ranks report."""
    with running(settings) as service:
        token = folder / "token"
        token.write_text(service.token)
        headers = {"Authorization": f"Bearer {service.token}"}
        with httpx.Client(base_url=service.url, headers=headers, timeout=10) as client:
            yield Watched(client, "live"), Reporting(url=service.url, token_file=token)
