# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How ranks find each other: all of them call rank 0, which tells them the whole ring."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

from examples.ddp_numpy.ring import Ring
from examples.job_options import JobOptions

_RETRY_S = 0.05
_MAX_LINE = 1 << 20


class RendezvousError(RuntimeError):
    """The ranks did not all come together in time."""


def join_ring(options: JobOptions) -> Ring:
    """Meet the other ranks. Errors: RendezvousError after `start_timeout_s`."""
    if options.world == 1:
        return Ring(0, 1, None, None, options.timeout_s)
    deadline = time.monotonic() + options.start_timeout_s
    try:
        return _met(options, deadline)
    except (OSError, EOFError, ValueError) as error:
        raise RendezvousError(
            f"rank {options.rank} of {options.world} found no ring at {options.host}:{options.port} "
            f"within {options.start_timeout_s:g}s: {error}"
        ) from error


def _met(options: JobOptions, deadline: float) -> Ring:
    if options.rank == 0:
        desk = _desk(options)
        with desk:
            listener = _listener(desk.getsockname()[0])
            table = _collect(desk, listener.getsockname()[1], options.world, deadline)
    else:
        desk = _called((options.host, options.port), deadline)
        with desk:
            listener = _listener(desk.getsockname()[0])
            _say(desk, {"rank": options.rank, "port": listener.getsockname()[1]})
            table = _heard(desk, deadline)
    with listener:
        host, port = table[(options.rank + 1) % options.world]
        onward = _called((host or options.host, port), deadline)
        listener.settimeout(_left(deadline))
        back, _ = listener.accept()
    return Ring(options.rank, options.world, onward, back, options.timeout_s)


def _collect(desk: socket.socket, own_port: int, world: int, deadline: float) -> list[tuple[str, int]]:
    """Rank 0's side: wait for every other rank, then tell each where all of them listen."""
    callers: dict[int, socket.socket] = {}
    table: dict[int, tuple[str, int]] = {0: ("", own_port)}
    while len(callers) < world - 1:
        desk.settimeout(_left(deadline))
        caller, (host, *_) = desk.accept()
        said = _heard(caller, deadline)
        rank = int(said["rank"])
        if not 0 < rank < world or rank in callers:
            caller.close()
            raise ValueError(f"a second rank {rank}, or one outside 1..{world - 1}")
        callers[rank] = caller
        table[rank] = (host, int(said["port"]))
    ring = [table[rank] for rank in range(world)]
    for caller in callers.values():
        _say(caller, ring)
        caller.close()
    return ring


def _desk(options: JobOptions) -> socket.socket:
    if options.listen_fd is not None:
        return socket.socket(fileno=options.listen_fd)
    return socket.create_server((options.host, options.port), backlog=options.world)


def _listener(host: str) -> socket.socket:
    return socket.create_server((host, 0), backlog=1)


def _called(address: tuple[str, int], deadline: float) -> socket.socket:
    """Call until somebody answers: rank 0 may start last."""
    while True:
        try:
            return socket.create_connection(address, timeout=_left(deadline))
        except ConnectionRefusedError:
            if time.monotonic() + _RETRY_S >= deadline:
                raise
            time.sleep(_RETRY_S)


def _say(end: socket.socket, what: Any) -> None:
    end.sendall(json.dumps(what).encode() + b"\n")


def _heard(end: socket.socket, deadline: float) -> Any:
    end.settimeout(_left(deadline))
    with end.makefile("rb") as lines:
        line = lines.readline(_MAX_LINE)
    if not line.endswith(b"\n"):
        raise EOFError("the other side hung up")
    return json.loads(line)


def _left(deadline: float) -> float:
    return max(deadline - time.monotonic(), 0.01)
