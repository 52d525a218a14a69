# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""One training step as the loop passes through it: its local part, then the first collective, then the rest."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from types import TracebackType

_FORGET = 0.05
_STALL_FACTOR = 10.0


class Step:
    """Times a step and the local work before its first collective; one object serves all steps of a loop.

    Only that local part tells a slow rank from those that wait for it: in synchronous training the step
    takes equally long on every rank, and time after the first collective holds the waiting.

    Units:  seconds of `perf_counter`.
    Source: runs with a known slow rank, where forward time accused ranks 0 and 2 alike and local time only 2.
    """

    __slots__ = ("_ended", "_has_mark", "_local_s", "_number", "_opened", "_usual_s", "began", "local_since")

    def __init__(self, ended: Callable[[int, float, float | None], None]) -> None:
        self._ended = ended
        self._number = 0
        self._local_s: float | None = None
        self._opened: float | None = None
        self._has_mark = False
        self._usual_s = 0.0
        self.began = 0.0
        self.local_since: float | None = None

    def at(self, number: int) -> Step:
        self._number = int(number)
        return self

    @property
    def compute(self) -> Compute:
        """`with step.compute:` around the local work; it ends at the first collective of the step."""
        return Compute(self)

    def collective(self) -> None:
        """The first collective begins now; further calls in the same step change nothing."""
        if self.local_since is not None:
            now = perf_counter()
            self._local_s = now - (self._opened or self.began)
            self.local_since = None

    def open_local(self) -> None:
        """Local time counts from here instead of from the step's begin, unless it counts already."""
        if self._opened is None and self.local_since is not None:
            self._opened = perf_counter()

    def __enter__(self) -> Step:
        self._local_s = None
        self._opened = None
        self.began = self.local_since = perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is not None:  # an aborted step is no progress, and its rank is not at work any more
            self.local_since = None
            return
        self.end(perf_counter())

    def end(self, now: float) -> None:
        self.local_since = None
        local = self._local_s
        self._has_mark = local is not None
        if local is not None:
            self._usual_s += (local - self._usual_s) * (_FORGET if self._usual_s else 1.0)
        self._ended(self._number, now - self.began, local)

    def is_stalled(self, now: float, stall_s: float) -> bool:
        """Whether this rank has been at its own work far longer than usual, so that others wait for it.

        Never claimed for a rank that waits in a collective, stands between steps, or marks no collectives.
        """
        since = self.local_since
        if not self._has_mark or since is None:
            return False
        return now - since > max(stall_s, _STALL_FACTOR * self._usual_s)


class Compute:
    """The block of local work; leaving it is the first collective."""

    __slots__ = ("_step",)

    def __init__(self, step: Step) -> None:
        self._step = step

    def __enter__(self) -> None:
        self._step.open_local()

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        if kind is None:
            self._step.collective()
