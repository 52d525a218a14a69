# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the names in the settings to detectors and an attributor that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from relight.attribute import BuiltinAttributor
from relight.ports import HangProbe
from relight.types import Taxonomy
from service.attributing import ChosenAttributor
from service.config import ConfigError, Settings
from service.plugins import Group, Plugin, build, load
from service.rules_store import RuleStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Enabled:
    """The plugins that the settings name, made; `collector` is the crash detector, which all attribution rests on."""

    collector: Any
    detectors: list[Any]
    attributor: ChosenAttributor
    plugins: list[Plugin]


def enable(settings: Settings, rules: RuleStore, taxonomy: Taxonomy, probes: Sequence[HangProbe]) -> Enabled:
    """Errors: PluginError for a name or option that is not known; ConfigError without the crash detector."""
    plugins = load(Group.DETECTORS, settings.plugins.detectors)
    (chosen,) = load(Group.ATTRIBUTORS, [settings.plugins.attributor])
    if "crash" not in settings.plugins.detectors:
        raise ConfigError("plugins.detectors must hold 'crash': attribution rests on what it collects")
    signatures, progress = rules.current.pair
    offered: dict[str, object] = {
        "signatures": signatures, "progress": progress, "taxonomy": taxonomy, "probes": tuple(probes),
    }  # fmt: skip
    options = settings.plugins.options
    attributor = ChosenAttributor(
        chosen.name, build(chosen, offered, options.get(chosen.name)), BuiltinAttributor(taxonomy)
    )
    offered["attributor"] = attributor
    made = {one.name: build(one, offered, options.get(one.name)) for one in plugins}
    collector = made.pop("crash")
    return Enabled(
        collector=collector, detectors=list(made.values()), attributor=attributor, plugins=[*plugins, chosen]
    )
