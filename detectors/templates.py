# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Log lines to templates: Drain3's algorithm behind our own masks, memory and snapshot format."""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import ModuleType
from typing import Any

from detectors.masks import Masker, shape_of

SNAPSHOT_VERSION = 1
MAX_REMEMBERED_SHAPES = 50_000


class SnapshotInvalid(ValueError):
    """A template snapshot that this version can't read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TemplateSettings:
    """Drain's parameters. `similarity` is the share of words that must agree; `max_clusters` caps the memory."""

    depth: int = 4
    similarity: float = 0.4
    max_children: int = 100
    max_clusters: int = 1_000

    def __post_init__(self) -> None:
        if self.depth < 3 or self.max_children < 2 or self.max_clusters < 1 or not 0 < self.similarity <= 1:
            raise ValueError(
                f"need depth >= 3, max_children >= 2, max_clusters >= 1 and 0 < similarity <= 1, got {self}"
            )


def _drain_module() -> ModuleType:
    """`drain3.drain` without `drain3/__init__.py`.

    The package's own front door imports its persistence, and with it jsonpickle, which runs code found in a
    snapshot. A bare package stands in while the one module is imported, and is gone afterwards.
    """
    if "drain3" in sys.modules or "drain3.drain" in sys.modules:
        return importlib.import_module("drain3.drain")
    spec = importlib.util.find_spec("drain3")
    if spec is None or spec.submodule_search_locations is None:
        raise ModuleNotFoundError("drain3 is not installed; install the locked requirements", name="drain3")
    bare = ModuleType("drain3")
    bare.__path__ = list(spec.submodule_search_locations)
    sys.modules["drain3"] = bare
    try:
        return importlib.import_module("drain3.drain")
    finally:
        del sys.modules["drain3"]


_drain = _drain_module()


class _RecentClusters(OrderedDict[int, Any]):
    """Clusters by id, oldest use first; `get` looks without using, as Drain expects of its cache."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self._capacity = capacity

    def __getitem__(self, key: int) -> Any:
        self.move_to_end(key)
        return super().__getitem__(key)

    def get(self, key: int, default: Any = None) -> Any:
        return OrderedDict.__getitem__(self, key) if key in self else default

    def __setitem__(self, key: int, value: Any) -> None:
        if key not in self and len(self) >= self._capacity:
            self.popitem(last=False)
        super().__setitem__(key, value)

    def popitem(self, last: bool = True) -> tuple[int, Any]:
        key = next(reversed(self)) if last else next(iter(self))
        return key, self.pop(key)

    def pop(self, key: int, *default: Any) -> Any:
        value = OrderedDict.__getitem__(self, key)
        del self[key]
        return value
