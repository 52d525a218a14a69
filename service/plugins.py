# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What is enabled, found by name among what is installed; ours come through the same door as others'."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib import import_module
from importlib.metadata import entry_points
from inspect import Parameter, signature
from typing import Any


class Group(StrEnum):
    DETECTORS = "relight.detectors"
    RULE_PACKS = "relight.rule_packs"
    ATTRIBUTORS = "relight.attributors"
    SCHEDULERS = "relight.schedulers"
    AUDIT_LOGS = "relight.audit_logs"


# Entry points exist only once the package is installed; a source tree must run too. A test keeps this
# table equal to the one in pyproject.toml.
SHIPPED: Mapping[Group, Mapping[str, str]] = {
    Group.DETECTORS: {
        "crash": "detectors.crash:CrashDetector",
        "hang": "detectors.hang:HangDetector",
        "straggler": "detectors.straggler:StragglerDetector",
        "slowdown": "detectors.slowdown:SlowdownDetector",
        "divergence": "detectors.divergence:DivergenceDetector",
    },
    Group.AUDIT_LOGS: {"duckdb": "service.adapters.duckdb_audit:DuckDBAuditLog"},
    Group.ATTRIBUTORS: {"builtin": "relight.attribute:BuiltinAttributor"},
}


class PluginError(ValueError):
    """A name that is not installed, or an installed one that can't be loaded."""


@dataclass(frozen=True, slots=True)
class Plugin:
    """An installed plugin; `make` is its class or function."""

    group: Group
    name: str
    target: str
    origin: str
    make: Callable[..., Any]


def installed(group: Group) -> dict[str, tuple[str, str]]:
    """Every name of a group with its target and the distribution that brought it."""
    found = {name: (target, "relight") for name, target in SHIPPED.get(group, {}).items()}
    for point in entry_points(group=group.value):
        found[point.name] = (point.value, point.dist.name if point.dist is not None else "unknown")
    return found


def load(group: Group, names: Sequence[str]) -> tuple[Plugin, ...]:
    """The plugins of these names, in this order.

    Errors: PluginError for a name that is not installed, listing those that are, or one that fails to load.
    """
    known = installed(group)
    plugins = []
    for name in names:
        if name not in known:
            have = ", ".join(sorted(known)) or "none"
            raise PluginError(f"{group}: {name!r} is not installed; installed are: {have}")
        target, origin = known[name]
        plugins.append(Plugin(group, name, target, origin, _resolved(group, name, target)))
    return tuple(plugins)


def build(plugin: Plugin, offered: Mapping[str, object], options: Mapping[str, object] | None = None) -> Any:
    """Make a plugin: it is handed those of the `offered` arguments that it names, and the options set for it.

    One convention for all: a detector that needs rules has a parameter `signatures`, one that asks probes has
    `probes`; what it does not name it is not given. `options` come from the configuration and fill the rest.
    Errors: PluginError for an option that it does not take or refuses, or a parameter that nothing fills.
    """
    takes = signature(plugin.make).parameters
    given = {name: value for name, value in offered.items() if name in takes}
    for name in options or {}:
        if name not in takes or name in given:
            known = ", ".join(sorted(set(takes) - set(given))) or "none"
            raise PluginError(f"{plugin.group}: {plugin.name!r} takes no option {name!r}; its options: {known}")
    given.update(options or {})
    missing = [name for name, one in takes.items() if name not in given and _is_needed(one)]
    if missing:
        have = ", ".join(sorted(offered))
        raise PluginError(f"{plugin.group}: {plugin.name!r} needs {', '.join(missing)}; offered are {have}")
    try:
        return plugin.make(**given)
    except (TypeError, ValueError) as why:
        raise PluginError(f"{plugin.group}: {plugin.name!r} can't be made: {why}") from why


def _is_needed(one: Parameter) -> bool:
    return one.default is Parameter.empty and one.kind not in {Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD}


def _resolved(group: Group, name: str, target: str) -> Callable[..., Any]:
    module, _, attribute = target.partition(":")
    try:
        made: Callable[..., Any] = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as why:
        raise PluginError(f"{group}: {name!r} names {target}, which can't be loaded: {why}") from why
    return made
