# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The labelled failures as a regression gate: floors that only rise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from service.adapters.log_files import read_folder
from service.diagnosis import Diagnostician, as_prediction

DATASETS = Path(__file__).parents[2] / "datasets"
CASES = sorted(p.parent for p in (DATASETS / "failures").glob("*/label.json"))
AT = datetime(2026, 1, 1, tzinfo=UTC)

# What is reached today; a change may raise a floor, never lower it.
FLOORS = {
    "action, gold": 0.955,
    "action, gold or acceptable": 0.99,
    "failure": 0.97,
    "class": 0.97,
    "root-cause line": 0.97,
    "exclusion recall": 0.95,
}
CEILINGS = {"false stop": 0.0, "benign false alarm": 0.0, "wrong exclusion": 0.0}


@dataclass(frozen=True)
class Judged:
    case: str
    label: Mapping[str, Any]
    said: Mapping[str, Any]

    @property
    def acceptable(self) -> set[str]:
        return {self.label["action"], *self.label["also_acceptable"]}

    @property
    def root_lines(self) -> set[tuple[str, int]]:
        root = self.label["root_cause"]
        if not root or root.get("line") is None:
            return set()
        return {(r["file"], r["line"]) for r in (root, *root.get("also", ()))}

    @property
    def said_line(self) -> tuple[str, int] | None:
        root = self.said["root_cause"]
        return (root["file"], root["line"]) if root else None

    def has_node(self, node: str) -> bool:
        return any(_same(node, other) for other in self.said["nodes"])


def _same(a: str, b: str) -> bool:
    return a.lower() == b.lower() or (not a[:1].isdigit() and a.split(".")[0].lower() == b.split(".")[0].lower())


@pytest.fixture(scope="module")
def judged(shipped: Diagnostician) -> list[Judged]:
    out = []
    for folder in CASES:
        label = json.loads((folder / "label.json").read_text())
        out.append(
            Judged(folder.name, label, as_prediction(folder.name, shipped.judge(read_folder(folder).logs, at=AT)))
        )
    return out


Test = Callable[[Judged], bool | None]
MEASURES: dict[str, Test] = {
    "action, gold": lambda j: j.said["action"] == j.label["action"],
    "action, gold or acceptable": lambda j: j.said["action"] in j.acceptable,
    "failure": lambda j: j.said["failure"] == j.label["failure"],
    "class": lambda j: j.said["class"] == j.label["class"],
    "root-cause line": lambda j: j.said_line in j.root_lines if j.root_lines else None,
    "exclusion recall": lambda j: (
        all(j.has_node(n) for n in j.label["culprit_nodes"])
        if j.label["action"] == "restart_excluding" and j.label.get("culprit_nodes")
        else None
    ),
    "false stop": lambda j: None if "stop" in j.acceptable else j.said["action"] == "stop",
    "benign false alarm": lambda j: None if j.label["action"] != "continue" else j.said["action"] not in j.acceptable,
    "wrong exclusion": lambda j: any(
        not any(_same(n, gold) for gold in j.label.get("culprit_nodes") or ()) for n in j.said["nodes"]
    ),
}


def rate(judged: list[Judged], test: Test) -> tuple[float, list[str]]:
    counted = [(j.case, r) for j in judged if (r := test(j)) is not None]
    return sum(r for _, r in counted) / len(counted), [c for c, r in counted if not r]


@pytest.mark.parametrize("measure", FLOORS)
def test_a_figure_does_not_fall(judged: list[Judged], measure: str) -> None:
    reached, missed = rate(judged, MEASURES[measure])
    assert reached >= FLOORS[measure], f"{measure}: {reached:.3f}, missed {missed}"


@pytest.mark.parametrize("measure", CEILINGS)
def test_a_harm_does_not_rise(judged: list[Judged], measure: str) -> None:
    reached, harmless = rate(judged, MEASURES[measure])
    harmed = sorted({j.case for j in judged} - set(harmless))
    assert reached <= CEILINGS[measure], f"{measure}: {reached:.3f} in {harmed}"


def test_the_data_set_is_what_its_manifest_says() -> None:
    manifest = json.loads((DATASETS / "manifest.json").read_text())["sha256"]
    found = {
        str(p.relative_to(DATASETS)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in DATASETS.rglob("*")
        if p.is_file() and p.parent != DATASETS
    }
    assert found == manifest
