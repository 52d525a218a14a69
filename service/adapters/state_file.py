# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What detectors have learnt, kept in one file over a restart; losing it costs a warm-up and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import structlog

log = structlog.get_logger(__name__)


class StateFile:
    """JSON, replaced whole. A file that can't be read is no reason not to start: detectors begin anew.

    Errors: OSError from `save` if it can't be written; ValueError for a state that is no JSON.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> Mapping[str, Any]:
        try:
            said = json.loads(self._path.read_bytes())
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as why:
            log.warning("detector_state_unreadable", path=str(self._path), why=str(why))
            return {}
        return said if isinstance(said, dict) else {}

    def save(self, states: Mapping[str, Any]) -> None:
        fresh = self._path.with_name(self._path.name + ".new")
        fresh.write_text(json.dumps(states, allow_nan=False, separators=(",", ":")))
        fresh.replace(self._path)
