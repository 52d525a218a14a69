# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The background thread that empties the queue into a sink, and outlives the sink's failures."""

from __future__ import annotations

import logging
import math
import random
import threading
import time
from collections.abc import Callable

from relight.client.settings import Settings
from relight.client.signals import Counts, Envelope, SignalQueue
from relight.client.sinks import NotDelivered, Refused, Sink

_LOG = logging.getLogger("relight.client")
_MAX_BACKOFF_S = 60.0
_MAX_TRIES = 20
_COMPLAIN_EVERY_S = 300.0


class Sender:
    """Sends batches every `flush_s`; while the sink fails it waits longer and longer, up to a minute.

    `beat` is called before each flush, so that whoever owns the queue can add what only needs saying then.
    The sender holds at most one batch beside the queue, already sealed: a batch sent twice has the same keys.
    """

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        queue: SignalQueue,
        counts: Counts,
        beat: Callable[[], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._sink = sink
        self._queue = queue
        self._counts = counts
        self._beat = beat
        self._clock = clock
        self._envelope = Envelope(settings)
        self._held: list[str] = []
        self._tries = 0
        self._not_before = -math.inf
        self._complained_at = -math.inf
        self._is_closing = False
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relight-client", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self, within_s: float) -> None:
        """Send what can be sent in `within_s`; the rest counts as dropped."""
        self._is_closing = True
        self._wake.set()
        self._thread.join(within_s)
        left = len(self._held) + len(self._queue)
        self._counts.dropped += left
        if left:
            _LOG.warning("%d signals were left unsent", left)

    def _run(self) -> None:
        while not self._is_closing:
            self._wake.wait(self._settings.flush_s)
            self._wake.clear()
            self.turn()
        self._not_before = -math.inf
        self.turn()

    def turn(self) -> None:
        """What is done at each flush: add the beat, and send unless the sink is being given a rest."""
        self._beat()
        if self._clock() >= self._not_before:
            self._empty()

    def _empty(self) -> None:
        """Send until nothing is left or the sink fails."""
        while self._held or len(self._queue):
            if not self._held:
                self._held = [self._envelope.seal(said) for said in self._queue.take(self._settings.batch)]
            if not self._deliver():
                return

    def _deliver(self) -> bool:
        try:
            failed = self._sink.deliver(self._held).failed
        except NotDelivered as why:
            self._back_off(str(why), why.retry_after_s)
            return False
        except Refused as why:
            self._complain(f"{len(self._held)} signals refused: {why}")
            self._counts.refused += len(self._held)
            self._held, self._tries = [], 0
            return True
        # An attempt may be announced a moment after its ranks began: those items are worth another try.
        later = {index for index, why in failed.items() if why.startswith("unknown attempt")}
        if self._tries >= _MAX_TRIES:
            later = set()
        self._counts.sent += len(self._held) - len(failed)
        self._counts.refused += len(failed) - len(later)
        if len(failed) > len(later):
            reason = next(text for index, text in failed.items() if index not in later)
            self._complain(f"{len(failed) - len(later)} signals refused: {reason}")
        self._held = [item for index, item in enumerate(self._held) if index in later]
        if later:
            self._back_off(f"{len(later)} signals of an attempt that is not known yet", None)
            return False
        self._tries = 0
        return True

    def _back_off(self, why: str, retry_after_s: float | None) -> None:
        self._counts.errors += 1
        self._tries += 1
        longest = min(self._settings.flush_s * 2 ** min(self._tries, 16), _MAX_BACKOFF_S)
        wait = retry_after_s if retry_after_s is not None else longest
        # Thousands of ranks must not come back at the same moment.
        self._not_before = self._clock() + wait * (0.5 + random.random() / 2)
        self._complain(f"not delivered, will try again: {why}")

    def _complain(self, text: str) -> None:
        now = self._clock()
        if now - self._complained_at >= _COMPLAIN_EVERY_S:
            self._complained_at = now
            _LOG.warning("%s", text)
