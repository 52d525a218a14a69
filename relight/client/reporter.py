# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The reporter of one rank: says how its steps go, and never makes them wait."""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

from relight.client.sender import Sender
from relight.client.settings import Settings, SettingsError, own_settings
from relight.client.signals import Counts, Said, SignalQueue
from relight.client.sinks import FileSink, HttpSink, Sink
from relight.client.step import Step

_LOG = logging.getLogger("relight.client")


class Reporter:
    """Reports one rank's steps, checkpoints and heartbeats from a background thread.

        reporter = Reporter.from_env()
        with reporter.step(number) as step:
            with step.compute:                  # local work, until the first collective
                ...

    The training loop only appends to a bounded queue: no lock, no I/O, no exception. When the service is
    down the queue fills and the oldest timings are dropped and counted (`counts`). In a forked child, as in
    a data loader's worker, the reporter is silent. Without settings it does nothing at all.

    A heartbeat says: this process runs, and its loop is not stuck in its own work. It is withheld once
    the local part of a step lasts `stall_s` and ten times the usual, so that in a hang the ranks that wait
    keep beating and the one they wait for does not.
    """

    def __init__(self, settings: Settings | None, sink: Sink | None = None) -> None:
        self._counts = Counts()
        self._step = Step(self._ended)
        self._is_on = settings is not None
        self._sender: Sender | None = None
        if settings is None:
            return
        self._settings = settings
        self._queue = SignalQueue(settings.queue, self._counts)
        self._completed: tuple[int, float] | None = None
        self._told: tuple[int, float] | None = None
        self._shape: dict[str, int] = {}
        self._next_beat = 0.0
        self._next_timing = 0.0
        self._steps, self._step_s, self._local_s, self._locals = 0, 0.0, 0.0, 0
        self._sender = Sender(
            settings, sink if sink is not None else _sink_of(settings), self._queue, self._counts, self._beat
        )
        _silence_in_children(self)
        atexit.register(self.close)
        self._sender.start()

    @classmethod
    def from_env(cls) -> Reporter:
        """The reporter that the job's environment asks for; a silent one, and a warning, if it asks wrongly."""
        try:
            return cls(own_settings())
        except (SettingsError, OSError) as why:
            _LOG.warning("no reports: %s", why)
            return cls(None)

    @property
    def is_on(self) -> bool:
        return self._is_on

    @property
    def counts(self) -> Counts:
        return replace(self._counts)

    # -------------------------------------------------------------- what a loop says

    def step(self, number: int) -> Step:
        return self._step.at(number)

    def collective(self) -> None:
        """The first collective of the current step begins; for hooks that have no step at hand."""
        self._step.collective()

    @contextmanager
    def checkpoint(self, step: int) -> Iterator[None]:
        """Around the saving of a checkpoint; it counts as completed only if nothing is raised."""
        self.progress(checkpoint_step=step, kind="started")
        yield
        self.progress(checkpoint_step=step)

    def progress(self, *, step: int | None = None, checkpoint_step: int | None = None, kind: str = "completed") -> None:
        """Progress of the whole job, so only rank 0 says it; the others' calls change nothing."""
        if not self._is_on or self._settings.rank != 0:
            return
        fields = {"step": _whole(step), "checkpoint_step": _whole(checkpoint_step), "kind": kind}
        self._put("progress", fields, is_rare=True)
        if self._sender is not None:
            self._sender.wake()

    def timing(self, step: int, step_s: float, compute_s: float | None = None) -> None:
        """A step that was timed elsewhere; a time that is no number or negative is left out."""
        if not self._is_on or not 0 <= step_s < math.inf:
            return
        self._completed = (int(step), time.time())
        self._put_timing(int(step), step_s, compute_s)

    def throughput(self, *, tokens_per_s: float | None = None, samples_per_s: float | None = None) -> None:
        if self._is_on and self._settings.rank == 0:
            rates = {"tokens_per_s": tokens_per_s, "samples_per_s": samples_per_s}
            self._put("throughput", {k: None if v is None else float(v) for k, v in rates.items()})

    def shape(self, *, global_batch_size: int | None = None, sequence_length: int | None = None) -> None:
        """What the job trains with, at the start and where it changes: another shape has another usual pace.

        Only rank 0 says it. What is no positive whole number is left out; the same again is not sent again.
        """
        fields = {"global_batch_size": _measure(global_batch_size), "sequence_length": _measure(sequence_length)}
        said = {name: value for name, value in fields.items() if value is not None}
        if self._is_on and self._settings.rank == 0 and said and said != self._shape:
            self._shape = said
            self._put("shape", said, is_rare=True)

    def heartbeat(self) -> None:
        """A sign of life beside those of the background thread."""
        if self._is_on:
            self._put("heartbeat", {"rank": self._settings.rank})

    def close(self) -> None:
        """Send what is left, for at most `close_s`; further calls do nothing."""
        if not self._is_on or self._sender is None:
            return
        self._is_on = False
        atexit.unregister(self.close)
        if self._steps:
            self._flush_timing(self._completed[0] if self._completed else 0)
        self._sender.close(self._settings.close_s)

    # -------------------------------------------------------------- what becomes of it

    def _put(self, kind: str, fields: Mapping[str, object], *, is_rare: bool = False) -> None:
        self._queue.put(Said(kind, time.time(), fields), is_rare=is_rare)

    def _put_timing(self, step: int, step_s: float, compute_s: float | None) -> None:
        known = compute_s if compute_s is not None and compute_s >= 0 else None
        fields = {"rank": self._settings.rank, "step": step, "step_s": float(step_s), "compute_s": known}
        self._put("step_timing", fields)

    def _ended(self, number: int, step_s: float, local_s: float | None) -> None:
        if not self._is_on:
            return
        now = time.time()
        self._completed = (number, now)
        self._steps += 1
        self._step_s += step_s
        if local_s is not None:
            self._local_s += local_s
            self._locals += 1
        if now >= self._next_timing or now < self._next_timing - self._settings.timing_interval_s:
            self._next_timing = now + self._settings.timing_interval_s
            self._flush_timing(number)

    def _flush_timing(self, number: int) -> None:
        """The mean of the steps since the last one; of local times only if every step had one."""
        local = self._local_s / self._steps if self._locals == self._steps else None
        self._put_timing(number, self._step_s / self._steps, local)
        self._steps, self._step_s, self._local_s, self._locals = 0, 0.0, 0.0, 0

    def _beat(self) -> None:
        """Called by the sender: the newest completed step, and a heartbeat when one is due."""
        completed = self._completed
        if completed is not None and completed != self._told:
            self._told = completed
            if self._settings.rank == 0:
                fields = {"step": completed[0], "kind": "completed"}
                self._queue.put(Said("progress", completed[1], fields), is_rare=True)
        now = time.monotonic()
        if now >= self._next_beat and not self._step.is_stalled(perf_counter(), self._settings.stall_s):
            self._next_beat = now + self._settings.heartbeat_s
            self._put("heartbeat", {"rank": self._settings.rank})

    def _go_silent(self) -> None:
        """After a fork: the thread is the parent's, and so is this rank."""
        self._is_on = False
        self._sender = None
        atexit.unregister(self.close)


def _sink_of(settings: Settings) -> Sink:
    if settings.file is not None:
        return FileSink(settings.file, settings.max_file_bytes)
    return HttpSink(settings.url or "", settings.token_file, settings.cluster, settings.timeout_s)


def _silence_in_children(reporter: Reporter) -> None:
    known = weakref.ref(reporter)

    def silence() -> None:
        found = known()
        if found is not None:
            found._go_silent()

    os.register_at_fork(after_in_child=silence)


def _measure(value: object) -> int | None:
    """A framework may hand over a float, a tensor's number or nothing at all."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return int(value) if is_number and value >= 1 and value == int(value) else None  # type: ignore[call-overload, operator]


def _whole(value: int | None) -> int | None:
    return None if value is None else int(value)
