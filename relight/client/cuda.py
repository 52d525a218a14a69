# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Steps timed on the GPU itself, where the time until the first collective is apart from the waiting in it."""

from __future__ import annotations

from collections import deque
from importlib import import_module
from time import perf_counter
from types import TracebackType
from typing import Any, Protocol

from relight.client.reporter import Reporter

_MAX_PENDING = 64
_MS_PER_S = 1e3


class Event(Protocol):
    """What is used of `torch.cuda.Event`."""

    def record(self) -> None: ...
    def query(self) -> bool: ...
    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to `end_event`."""
        ...


class Events(Protocol):
    def __call__(self) -> Event: ...


def cuda_events() -> Events:
    """Makes timing events of the current device. Errors: RuntimeError without a CUDA device."""
    torch: Any = import_module("torch")
    if not torch.cuda.is_available():
        raise RuntimeError("no CUDA device; use Reporter.step, which times on the host")

    def event() -> Event:
        made: Event = torch.cuda.Event(enable_timing=True)
        return made

    return event


class CudaSteps:
    """`step` as of a Reporter, timed by events that are read some steps later, so that nothing waits for them.

    The host runs ahead of the GPU, so its clock tells neither when a step ended nor how long its local part
    took. Call `collective` on the stream that computes, where the first collective is enqueued.
    A step counts as completed once the GPU has passed its last event.

    Units:  seconds of the GPU. At most 64 steps are pending; older ones are given up.
    Errors: none in a step; see `cuda_events` for the construction.
    """

    def __init__(self, reporter: Reporter, events: Events | None = None) -> None:
        self._reporter = reporter
        self._event = events if events is not None else cuda_events()
        self._pending: deque[tuple[int, Event, Event | None, Event]] = deque(maxlen=_MAX_PENDING)
        self._number = 0
        self._first: Event | None = None
        self._began = self._event()

    def step(self, number: int) -> CudaSteps:
        self._number = int(number)
        return self

    def collective(self) -> None:
        """The first collective is enqueued now; further calls in the same step change nothing."""
        if self._first is None:
            self._first = self._event()
            self._first.record()

    def __enter__(self) -> CudaSteps:
        self._first = None
        self._began = self._event()
        self._began.record()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:
            return
        ended = self._event()
        ended.record()
        self._pending.append((self._number, self._began, self._first, ended))
        self.report(within_s=0.0)

    def report(self, within_s: float = 1.0) -> None:
        """Report the steps that the GPU has finished; after the last step, for at most `within_s`."""
        until = perf_counter() + within_s
        while self._pending:
            number, began, first, ended = self._pending[0]
            if not ended.query():
                if perf_counter() >= until:
                    return
                continue
            self._pending.popleft()
            local_s = None if first is None else began.elapsed_time(first) / _MS_PER_S
            self._reporter.timing(number, began.elapsed_time(ended) / _MS_PER_S, local_s)
