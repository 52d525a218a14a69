# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How a model's state is written as versioned JSON, and refused when it is of another kind."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any


def pack(name: str, version: int, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The state of a model with its name and version in front."""
    return {"model": name, "version": version, **fields}


def unpack(state: Mapping[str, Any], name: str, version: int, fields: Sequence[str]) -> tuple[Any, ...]:
    """The named fields of a packed state; ValueError if it is of another model or version, or lacks one."""
    found = (state.get("model"), state.get("version"))
    if found != (name, version):
        raise ValueError(
            f"need the state of {name} version {version}, got {found[0]} version {found[1]}; "
            "rebuild it by replaying the observations"
        )
    if missing := sorted(set(fields) - set(state)):
        raise ValueError(f"the state of {name} version {version} lacks {missing}; rebuild it by replay")
    return tuple(state[field] for field in fields)


def is_number(value: float | None) -> bool:
    """True for a finite number: the only thing that a model learns from."""
    return value is not None and math.isfinite(value)
