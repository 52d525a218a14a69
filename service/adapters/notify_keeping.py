# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How far each channel's messages have been delivered, and those that were given up, on disk."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import orjson

from service.notify.outbox import Waiting


class KeepingUnreadable(ValueError):
    """The file of positions is there and is not ours."""


class FileKeeping:
    """One small JSON file, replaced whole, and a file of dead letters beside it, one JSON object a line.

    Errors: KeepingUnreadable if the file is not ours; OSError from writing.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._positions = _read(path)

    @property
    def dead_letters(self) -> Path:
        return self._path.with_suffix(".dead.jsonl")

    def position(self, channel: str) -> int | None:
        return self._positions.get(channel)

    def reached(self, channel: str, position: int) -> None:
        with self._lock:
            self._positions[channel] = position
            fresh = self._path.with_name(self._path.name + ".new")
            with fresh.open("wb") as file:
                file.write(orjson.dumps(self._positions))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self._path)

    def bury(self, channel: str, one: Waiting) -> None:
        said = {
            "channel": channel, "position": one.notice.position, "title": one.notice.title, "since": one.since,
            "tries": one.tries, "why": one.why,
        }  # fmt: skip
        with self._lock, self.dead_letters.open("ab") as file:
            file.write(orjson.dumps(said) + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path) -> dict[str, int]:
    try:
        said = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError as why:
        raise KeepingUnreadable(f"{path} is not a file of positions ({why}); move it away to begin anew") from why
    if not isinstance(said, dict) or not all(isinstance(one, int) for one in said.values()):
        raise KeepingUnreadable(f"{path} is not a file of positions; move it away to begin anew")
    return said
