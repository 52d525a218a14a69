# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Plugins are found by name; what is not installed stops the start and says what is."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from detectors.crash import CrashDetector
from service.plugins import SHIPPED, Group, PluginError, installed, load

ROOT = Path(__file__).parent.parent.parent


def test_the_table_for_source_trees_is_the_one_in_pyproject() -> None:
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    shipped = {group.value: dict(names) for group, names in SHIPPED.items()}
    assert shipped == {group: names for group, names in declared.items() if group in shipped}


def test_a_shipped_detector_is_loaded_by_its_name() -> None:
    (plugin,) = load(Group.DETECTORS, ["crash"])
    assert plugin.make is CrashDetector
    assert plugin.origin == "relight"


def test_an_unknown_name_lists_those_installed() -> None:
    with pytest.raises(PluginError, match=r"'crush' is not installed; installed are: .*crash"):
        load(Group.DETECTORS, ["crush"])


def test_a_plugin_that_cannot_be_imported_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.plugins.SHIPPED", {Group.DETECTORS: {"lost": "nowhere.at_all:Lost"}})
    with pytest.raises(PluginError, match=r"nowhere\.at_all:Lost"):
        load(Group.DETECTORS, ["lost"])


def test_a_group_without_plugins_is_empty_and_not_an_error() -> None:
    assert "duckdb" in installed(Group.AUDIT_LOGS)
    assert load(Group.SCHEDULERS, []) == ()
