# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A ring of TCP connections and the all-reduce on it."""

from __future__ import annotations

import select
import socket
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]


class CollectiveError(RuntimeError):
    """A neighbour is gone or silent; which rank is at fault can't be told from here."""


class Ring:
    """Sends to the next rank and receives from the one before.

    Shapes: vectors of any length, the same on all ranks, summed in place.
    Units:  `timeout_s` bounds the silence of a neighbour within one exchange.
    Errors: CollectiveError.
    Source: ring all-reduce: reduce-scatter then all-gather, 2 (world - 1) exchanges of 1/world each, after
            which every rank holds bit for bit the same sums.
    """

    def __init__(
        self, rank: int, world: int, onward: socket.socket | None, back: socket.socket | None, timeout_s: float
    ) -> None:
        self._rank, self._world = rank, world
        self._onward, self._back = onward, back
        self._timeout_s = timeout_s
        for end in (onward, back):
            if end is not None:
                end.setblocking(False)
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def all_reduce(self, vector: Vector) -> Vector:
        """The sum over all ranks, in place."""
        world, rank = self._world, self._rank
        edges = [len(vector) * part // world for part in range(world + 1)]
        parts = [vector[edges[part] : edges[part + 1]] for part in range(world)]
        for turn in range(world - 1):
            given, taken = parts[(rank - turn) % world], parts[(rank - turn - 1) % world]
            came = np.empty_like(taken)
            self._exchange(given, came)
            taken += came
        for turn in range(world - 1):
            self._exchange(parts[(rank - turn + 1) % world], parts[(rank - turn) % world])
        return vector

    def close(self) -> None:
        for end in (self._onward, self._back):
            if end is not None:
                end.close()

    def _exchange(self, given: Vector, into: Vector) -> None:
        """Send and receive at once: if all ranks sent first, full buffers would block the whole ring."""
        out, space = given.view(np.uint8).data, into.view(np.uint8).data
        deadline = time.monotonic() + self._timeout_s
        while out or space:
            reads, writes = self._ready(bool(space), bool(out), deadline)
            if reads:
                space = space[self._receive(space) :]
            if writes:
                out = out[self._send(out) :]
            if reads or writes:
                deadline = time.monotonic() + self._timeout_s

    def _ready(self, reads: bool, writes: bool, deadline: float) -> tuple[list[Any], list[Any]]:
        left = max(deadline - time.monotonic(), 0.0)
        back, onward = self._back if reads else None, self._onward if writes else None
        can_read, can_write, _ = select.select([back] if back else [], [onward] if onward else [], [], left)
        if not can_read and not can_write:
            what = "recv" if reads else "send"
            raise CollectiveError(
                f"[examples/ddp_numpy/ring.py] Timed out waiting {self._timeout_s * 1000:.0f}ms "
                f"for {what} operation to complete"
            )
        return can_read, can_write

    def _receive(self, space: memoryview) -> int:
        assert self._back is not None
        try:
            count = self._back.recv_into(space)
        except OSError as error:
            raise CollectiveError(f"Read error {_name(self._back)}: {error.strerror}") from error
        if count == 0:
            raise CollectiveError(
                f"Connection closed by peer {_name(self._back)}. This is typically caused by a remote worker crashing."
            )
        return count

    def _send(self, out: memoryview) -> int:
        assert self._onward is not None
        try:
            return self._onward.send(out)
        except OSError as error:
            raise CollectiveError(f"Write error {_name(self._onward)}: {error.strerror}") from error


def _name(end: socket.socket) -> str:
    try:
        host, port = end.getpeername()[:2]
    except OSError:
        return "[unknown]:0"
    return f"[{host}]:{port}"
