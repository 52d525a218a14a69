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
    """Drain's parameters; `similarity` is the share of words that agree, `max_clusters` caps the memory."""

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
            del self[next(iter(self))]
        super().__setitem__(key, value)


@dataclass(slots=True)
class _Remembered:
    """The cluster that a shape of line went to, true while no cluster of that many words has changed."""

    cluster: Any
    words: int
    changes: int


class TemplateMiner:
    """Learns the templates of one job's log; one instance per job, since templates are a job's own.

    Shapes: one line in, text or bytes, one template id out; ids count from 1 and are never reused.
    Errors: SnapshotInvalid from `from_json`; any bytes may be a line, only its first 4,096 count.
    Source: Drain (He et al. 2017) as Drain3 implements it. A line whose shape was seen since the last change
            among the templates of its length goes where it went before: the answer is the same, at a
            hundredth of the cost.
    """

    def __init__(self, settings: TemplateSettings | None = None) -> None:
        self.settings = settings or TemplateSettings()
        self._masker = Masker()
        self._shapes: dict[bytes, _Remembered] = {}
        self._changes: dict[int, int] = {}
        self._drain = _drain.Drain(
            depth=self.settings.depth,
            sim_th=self.settings.similarity,
            max_children=self.settings.max_children,
            max_clusters=self.settings.max_clusters,
        )
        self._clusters = _RecentClusters(self.settings.max_clusters)
        self._drain.id_to_cluster = self._clusters

    def __len__(self) -> int:
        return len(self._clusters)

    def learn(self, line: str | bytes) -> int:
        """The template id of a line, after learning from it."""
        shape = shape_of(line)
        known = self._shapes.get(shape)
        if known is not None and known.changes == self._changes[known.words]:
            cluster = known.cluster
            if cluster.cluster_id in self._clusters:
                cluster.size += 1
                self._clusters.move_to_end(cluster.cluster_id)
                return int(cluster.cluster_id)
        return self._learn_shape(shape)

    def learn_all(self, lines: Iterable[str | bytes]) -> list[int]:
        return [self.learn(line) for line in lines]

    def match(self, line: str | bytes) -> int | None:
        """The template id of a line that fits a known template word for word, learning nothing."""
        found = self._drain.match(self._masker.mask(shape_of(line)))
        return None if found is None else int(found.cluster_id)

    def template(self, template_id: int) -> str | None:
        """The words of a template, variable places as `<*>`; None if it was never seen or is forgotten."""
        cluster = self._clusters.get(template_id)
        return None if cluster is None else str(cluster.get_template())

    def templates(self) -> dict[int, tuple[str, int]]:
        """Every template by id, with how many lines went to it."""
        return {c.cluster_id: (c.get_template(), c.size) for c in sorted(self._clusters.values(), key=_id)}

    def to_json(self) -> str:
        """The whole state as JSON; learning on after `from_json` gives what learning on here would have."""
        return json.dumps(
            {
                "version": SNAPSHOT_VERSION,
                "settings": asdict(self.settings),
                "counter": self._drain.clusters_counter,
                "clusters": [[c.cluster_id, c.size, *c.log_template_tokens] for c in self._clusters.values()],
                "tree": _tree_out(self._drain.root_node),
            },
            separators=(",", ":"),
        )

    @classmethod
    def from_json(cls, text: str) -> TemplateMiner:
        """Errors: SnapshotInvalid if the text is not a snapshot of this version."""
        try:
            state = json.loads(text)
            if state["version"] != SNAPSHOT_VERSION:
                raise SnapshotInvalid(
                    f"snapshot version {state['version']!r}, need {SNAPSHOT_VERSION}: learn the log anew"
                )
            miner = cls(TemplateSettings(**state["settings"]))
            miner._drain.clusters_counter = int(state["counter"])
            for cluster_id, size, *words in state["clusters"]:
                cluster = _drain.LogCluster([str(w) for w in words], int(cluster_id))
                cluster.size = int(size)
                miner._clusters[cluster.cluster_id] = cluster
            miner._drain.root_node = _tree_in(state["tree"])
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            if isinstance(error, SnapshotInvalid):
                raise
            raise SnapshotInvalid(f"not a template snapshot ({error}): learn the log anew") from error
        return miner

    def _learn_shape(self, shape: bytes) -> int:
        masked = self._masker.mask(shape)
        words = masked.count(" ") + 1 if masked else 0
        cluster, change = self._drain.add_log_message(masked)
        if change != "none":
            self._changes[words] = self._changes.get(words, 0) + 1
        if len(self._shapes) >= MAX_REMEMBERED_SHAPES:
            self._shapes.clear()
        self._shapes[shape] = _Remembered(cluster, words, self._changes.setdefault(words, 0))
        return int(cluster.cluster_id)


def _id(cluster: Any) -> int:
    return int(cluster.cluster_id)


def _tree_out(node: Any) -> list[Any]:
    return [list(node.cluster_ids), {key: _tree_out(child) for key, child in node.key_to_child_node.items()}]


def _tree_in(state: list[Any]) -> Any:
    node = _drain.Node()
    ids, children = state
    node.cluster_ids = [int(i) for i in ids]
    node.key_to_child_node = {str(key): _tree_in(child) for key, child in children.items()}
    return node
