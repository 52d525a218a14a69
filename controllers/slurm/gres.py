# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How many GPUs a job has on each node, from what Slurm writes of its trackable resources."""

from __future__ import annotations

import re

_PER_NODE = re.compile(r"gpu(?::[\w.-]+)*:(\d+)")
_TOTAL = re.compile(r"gres/gpu=(\d+)")


def gpus_per_node(per_node: str, totals: str, nodes: int | None) -> int | None:
    """From `gres:gpu:8` (or `gres/gpu:a100:8`), else from a total such as `cpu=64,gres/gpu=32`; None if untold."""
    if (stated := _PER_NODE.search(per_node)) is not None:
        return int(stated[1])
    total = _TOTAL.search(totals)
    return int(total[1]) // nodes if total and nodes else None
