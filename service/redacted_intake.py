# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The intake behind a redactor: no secret of a log line gets as far as a detector, a record or an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from relight.types import LogLine, NodeEvent
from service.config import Ingest
from service.holding import Addressee, Holding
from service.journal import Journal
from service.line_intake import Held
from service.loop import Loop
from service.observing import Intake, ItemFate, Signal
from service.redaction import Redactor


class RedactedIntake(Intake):
    """Everything that arrives with words in it is redacted first, whichever door it came through."""

    def __init__(
        self, journal: Journal, loop: Loop, settings: Ingest, redactor: Redactor, holding: Holding | None = None
    ) -> None:
        super().__init__(journal, loop, settings, holding)
        self._redactor = redactor

    def accept_lines(self, lines: Sequence[LogLine], batch: bytes, source: str, actor: str) -> tuple[int, int]:
        return super().accept_lines(self._redactor.lines(lines), batch, source, actor)

    def hold_lines(
        self, lines: Mapping[Addressee, Sequence[LogLine]], batch: bytes, source: str, actor: str
    ) -> dict[Addressee, Held]:
        clean = {to: self._redactor.lines(own) for to, own in lines.items()}
        return super().hold_lines(clean, batch, source, actor)

    def accept_signals(self, signals: Sequence[Signal], actor: str) -> list[ItemFate]:
        return super().accept_signals([self._without_secrets(signal) for signal in signals], actor)

    def _without_secrets(self, signal: Signal) -> Signal:
        match signal.observation:
            case LogLine() as seen:
                return replace(signal, observation=self._redactor.lines([seen])[0])
            case NodeEvent() as seen if seen.text:
                return replace(signal, observation=replace(seen, text=self._redactor.text(seen.text)))
            case _:
                return signal
