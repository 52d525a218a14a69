# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From log lines to training progress, by the signatures of kind `progress`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from detectors.line_prefix import read_prefix
from relight.types import AttemptId, Captures, CaptureValue, LogLine, LogRef, Phase, Rank, StepProgress, Stream
from rules.match import Hit, RuleSet

_PHASES = {
    "step": Phase.STEP,
    "checkpoint_begun": Phase.CHECKPOINT,
    "checkpoint_completed": Phase.CHECKPOINT,
    "evaluation": Phase.EVALUATION,
    "initialising": Phase.START,
    "data_stall": Phase.DATA,
    "completed": Phase.END,
}
_ORDER = tuple(_PHASES)
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_OWN_RANK = re.compile(r"\[[Rr]ank[ :=]?(\d{1,6})\]")
_RANK_WITHIN = 200
_TRAINING = frozenset({"loss", "grad_norm", "epoch", "step_ms"})
_FOREIGN_BARS = 2_000
_FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_NUMBER = re.compile(r"^([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?)\s*([kKmMgGbBtT]?)")

# Signatures leave NaN lines to those that report NaN. A job that trains on with NaN is nevertheless no hang,
# so such a value is masked as a number that no loss has, and turned back after the match.
_NOT_FINITE = re.compile(
    rb"(?i)((?:loss|norm)['\"]?(?:\s?(?:[:=|]|is))?\s*(?:tensor\()?['\"]?)[-+]?(nan|inf(?:inity)?)\b"
)
_MASKS = {b"nan": b"987654321.25", b"inf": b"987654321.75"}
_MASKED = {987654321.25: math.nan, 987654321.75: math.inf}


@dataclass(slots=True)
class _File:
    """What is remembered of one file: its training bar, and where a checkpoint that is being written stands."""

    step: int | None = None
    checkpoint: int | None = None
    total: int | None = None
    foreign: int = 0

    def is_foreign(self, total: int) -> bool:
        """True for a bar without a name that is drawn while the training bar is not at its end: an evaluation.

        Its counter is none of training. A training bar that does not come back was replaced after all.
        """
        is_other = self.total is not None and total != self.total and (self.step or 0) < self.total
        if is_other and self.foreign < _FOREIGN_BARS:
            self.foreign += 1
            return True
        self.total, self.foreign = total, 0
        return False


@dataclass(frozen=True, slots=True)
class Reading:
    """One progress hit of a line: the observation, and the signature that read it."""

    progress: StepProgress
    hit: Hit


@dataclass(slots=True)
class _Files:
    files: dict[str, _File] = field(default_factory=dict)


class ProgressReader:
    """Reads steps, checkpoints and other phases out of log lines.

    Shapes: lines of any attempts, files and ranks, interleaved; rewrites of a progress bar within one line
            (carriage returns) count as far as the last one. Steps are handed on as they are printed: they
            may repeat, be late or go back, which is for the detectors to judge.
    Units:  seconds; a counter that starts anew each epoch is continued if the line names epoch and total.
    Errors: none: any bytes may be a log line.
    """

    def __init__(self, progress: RuleSet) -> None:
        self._progress = progress
        self._attempts: dict[AttemptId, _Files] = {}

    def use_rules(self, progress: RuleSet) -> None:
        self._progress = progress

    def read(self, line: LogLine, received_at: datetime) -> tuple[StepProgress, ...]:
        """What a line says of progress; `received_at` is our own clock, for a line's stamp may be wrong."""
        return tuple(reading.progress for reading in self.readings(line, received_at))

    def read_all(self, lines: Iterable[LogLine], received_at: datetime) -> Iterator[StepProgress]:
        for line in lines:
            yield from self.read(line, received_at)

    def readings(self, line: LogLine, received_at: datetime) -> tuple[Reading, ...]:
        raw = line.text.encode("utf-8", "surrogateescape")
        found: dict[str, Hit] = {}
        for part in _parts(raw):
            found.update(self._best(part, line.stream))  # a later rewrite wins
        events = sorted(found, key=_ORDER.index)
        return tuple(Reading(self._progressed(line, received_at, found[event]), found[event]) for event in events)

    def _best(self, text: bytes, stream: Stream) -> dict[str, Hit]:
        """For each event the reading that says most."""
        best: dict[str, Hit] = {}
        for hit in self._progress.match_line(_masked(text), stream):
            known = best.get(hit.signature.event)
            if known is None or _richness(hit) > _richness(known):
                best[hit.signature.event] = hit
        return best

    def forget(self, attempt: AttemptId) -> None:
        self._attempts.pop(attempt, None)

    def _progressed(self, line: LogLine, at: datetime, hit: Hit) -> StepProgress:
        event, said = hit.signature.event, hit.captures
        file = self._attempts.setdefault(line.attempt, _Files()).files.setdefault(line.file, _File())
        step = _step(said)
        checkpoint: int | None = None
        if event == "step" and _is_bare_bar(said) and file.is_foreign(int(said["total"])):
            return StepProgress(attempt=line.attempt, at=at, phase=Phase.EVALUATION, rank=_rank(line))
        if event == "initialising":
            file.total = None
        if event == "step":
            file.step = step if step is not None else file.step
        elif event == "checkpoint_begun":
            checkpoint = file.checkpoint = step if step is not None else file.step
        elif event == "checkpoint_completed":
            checkpoint = step if step is not None else file.checkpoint if file.checkpoint is not None else file.step
            file.checkpoint = None
        step_ms = number(said.get("step_ms"))
        return StepProgress(
            attempt=line.attempt, at=at, step=step if event == "step" else None, checkpoint_step=checkpoint,
            is_completed=event != "checkpoint_begun", phase=_PHASES[event], rank=_rank(line),
            loss=number(said.get("loss")), grad_norm=number(said.get("grad_norm")),
            step_s=step_ms / 1000.0 if step_ms is not None else number(said.get("step_s")),
            throughput=number(said.get("throughput")), tokens=_whole(number(said.get("tokens"))),
            where=LogRef(file=line.file, line=line.number),
        )  # fmt: skip


def _parts(raw: bytes) -> Iterator[bytes]:
    """The line, or its rewrites; colours are taken out, since they stand between words and numbers."""
    text = _ANSI.sub(b"", raw) if b"\x1b" in raw else raw
    if b"\r" not in text:
        yield text
        return
    for part in text.split(b"\r"):
        if part.strip():
            yield part


def _masked(text: bytes) -> bytes:
    lowered = text.lower()
    if b"nan" not in lowered and b"inf" not in lowered:
        return text
    return _NOT_FINITE.sub(lambda m: m[1] + _MASKS[m[2][:3].lower()], text)


def _richness(hit: Hit) -> tuple[bool, int]:
    return "step" in hit.captures, len(hit.captures)


def _is_bare_bar(said: Captures) -> bool:
    """A counter with a total but with nothing that only training has."""
    return isinstance(said.get("step"), int) and isinstance(said.get("total"), int) and not _TRAINING & said.keys()


def _step(captures: Captures) -> int | None:
    step, epoch, total = captures.get("step"), captures.get("epoch"), captures.get("total")
    if not isinstance(step, int):
        return None
    if isinstance(epoch, int) and isinstance(total, int) and 0 <= epoch < 1_000_000 and step <= total:
        return epoch * total + step
    return step


def _rank(line: LogLine) -> Rank | None:
    """The writer: by the line's own prefix, else by the file. A launcher's task number is no global rank."""
    prefix = read_prefix(line.text[:_RANK_WITHIN])
    if prefix.rank is not None:
        return prefix.rank
    if line.rank is not None:
        return line.rank
    own = _OWN_RANK.search(line.text, 0, _RANK_WITHIN)
    return Rank(int(own[1])) if own is not None else None


def number(text: CaptureValue | None) -> float | None:
    """A captured number: `8,101`, `8.15K`, `3.1E+00`, `0.15s`; None if it is none."""
    if text is None or isinstance(text, int):
        return None if text is None else float(text)
    found = _NUMBER.match(text.strip())
    if found is None:
        return None
    value = float(found[1].replace(",", "")) * _FACTORS.get(found[2].lower(), 1.0)
    return _MASKED.get(value, value)


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and math.isfinite(value) and value > 0 else None
