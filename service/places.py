# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which nodes stand or are wired together: the site's own word on racks and NVLink domains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import hostlist

from relight.types import NodeName
from service.config import ConfigError, Topology


@dataclass(frozen=True, slots=True)
class Places:
    """Node to NVLink domain, and node to rack; empty where nobody said."""

    domains: Mapping[NodeName, str] = field(default_factory=dict)
    racks: Mapping[NodeName, str] = field(default_factory=dict)


NOWHERE = Places()


def places_of(said: Topology) -> Places:
    """Errors: ConfigError for a host list that can't be read, or a node in two places of one kind."""
    return Places(_placed("domains", said.domains), _placed("racks", said.racks))


def _placed(kind: str, said: Mapping[str, tuple[str, ...]]) -> dict[NodeName, str]:
    found: dict[NodeName, str] = {}
    for place, lists in said.items():
        for text in lists:
            try:
                nodes = hostlist.expand_hostlist(text)
            except hostlist.BadHostlist as why:
                raise ConfigError(f"topology.{kind}.{place} = {text!r} is no host list: {why}") from why
            for node in nodes:
                if found.setdefault(NodeName(node), place) != place:
                    raise ConfigError(f"topology.{kind}: {node} is in both {found[NodeName(node)]!r} and {place!r}")
    return found
