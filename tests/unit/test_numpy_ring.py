# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The example's own arithmetic: sums over a ring, and gradients."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest

from examples.ddp_numpy import network
from examples.ddp_numpy.ring import CollectiveError, Ring


@contextmanager
def rings(world: int, timeout_s: float = 10) -> Iterator[list[Ring]]:
    pairs = [socket.create_server(("127.0.0.1", 0)) for _ in range(world)]
    onward = [socket.create_connection(pairs[(rank + 1) % world].getsockname()) for rank in range(world)]
    back = [pair.accept()[0] for pair in pairs]
    made = [Ring(rank, world, onward[rank], back[rank], timeout_s) for rank in range(world)]
    try:
        yield made
    finally:
        for ring in made:
            ring.close()
        for pair in pairs:
            pair.close()


@pytest.mark.parametrize("world", [1, 2, 3, 5])
@pytest.mark.parametrize("length", [0, 1, 4, 7, 600_000])
def test_every_rank_ends_with_bit_for_bit_the_same_sum(world: int, length: int) -> None:
    """The longest vector is more than sockets buffer, where sending before receiving would block."""
    given = [np.random.default_rng(rank).normal(size=length) for rank in range(world)]
    wanted = np.sum(given, axis=0)
    with rings(world) as ring, ThreadPoolExecutor(world) as pool:
        sums = list(pool.map(lambda pair: pair[0].all_reduce(pair[1].copy()), zip(ring, given, strict=True)))
    np.testing.assert_allclose(sums[0], wanted, atol=1e-12)
    assert all(np.array_equal(sums[0], other) for other in sums)


def test_a_silent_neighbour_is_a_timeout_and_a_gone_one_an_error() -> None:
    with rings(2, timeout_s=0.05) as (one, _), pytest.raises(CollectiveError, match="Timed out waiting 50ms"):
        one.all_reduce(np.zeros(4))
    with rings(2) as (one, other):
        other.close()
        with pytest.raises(CollectiveError, match=r"127\.0\.0\.1"):
            one.all_reduce(np.zeros(4))


def test_the_gradient_is_that_of_the_loss() -> None:
    weights = network.first_weights(1)
    inputs, labels = network.samples(1, 1, 0, 8)
    _, gradient = network.loss_and_gradient(weights, inputs, labels)
    for place in (0, 500, network.SIZE - network.CLASSES, network.SIZE - 1):
        nudge = np.zeros(network.SIZE)
        nudge[place] = 1e-6
        above, _ = network.loss_and_gradient(weights + nudge, inputs, labels)
        below, _ = network.loss_and_gradient(weights - nudge, inputs, labels)
        assert gradient[place] == pytest.approx((above - below) / 2e-6, abs=1e-6)
