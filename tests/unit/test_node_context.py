# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which node a scheduler's record is about, and which names are no nodes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from detectors.node_context import node_about


def above(*lines: str) -> Callable[[int], str | None]:
    return lambda back: lines[-back] if back <= len(lines) else None


@pytest.mark.parametrize(
    ("line", "earlier", "node"),
    [
        ("   Reason=Kill task failed [root@x]", ("NodeName=n07 Arch=x86_64", "   State=DOWN*+DRAIN"), "n07"),
        ('{"host":"kube10","msg":"evicted"}', (), "kube10"),
        ("Exec host: gpu-2-17/11", (), "gpu-2-17"),
        ("  MemoryPressure  True", ("Name:               worker-3", "Roles:  <none>", "Conditions:"), "worker-3"),
        ("    Reason: OOMKilled", ("Name:  trainer-0", "Namespace:  ml", "Node:  gn7/10.0.0.7"), "gn7"),
        ("    Reason: OOMKilled", ("Name:  trainer-0", "Namespace:  ml", "Node:  gn7/fe80::1"), "gn7"),
        ("    Reason: OOMKilled", ("Name:  trainer-0", "Namespace:  ml", "Node:  xen15-142/"), "xen15-142"),
        ("    Reason: OOMKilled", ("Name:  trainer-0", "Namespace:  ml", "Node:  <none>"), None),
        ("    Reason: OOMKilled", ("Name:  trainer-0", "Namespace:  ml"), None),
        ("nothing here", (), None),
    ],
)
def test_the_node_of_a_record(line: str, earlier: tuple[str, ...], node: str | None) -> None:
    assert node_about(line, above(*earlier)) == node
