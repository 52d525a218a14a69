# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From log lines to training progress, by the signatures of kind `progress`."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

import re2

from detectors.line_prefix import read_prefix
from detectors.stated_shapes import SHAPE, StatedShapes, as_one
from relight.quick import quickly
from relight.shape import StatedShape
from relight.types import AttemptId, Captures, CaptureValue, LogLine, LogRef, Phase, Rank, StepProgress
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
Said = StepProgress | StatedShape
_TRAINING = frozenset({"loss", "grad_norm", "epoch", "step_ms"})
_FOREIGN_BARS = 2_000
_FACTORS = {"k": 1e3, "m": 1e6, "g": 1e9, "b": 1e9, "t": 1e12}
_NUMBER = re.compile(r"^([-+]?[\d,]*\.?\d+(?:[eE][-+]?\d+)?)\s*([kKmMgGbBtT]?)")

# Signatures leave NaN lines to those that report NaN. A job that trains on with NaN is nevertheless no hang,
# so such a value is masked as a number that no loss has, and turned back after the match.
_NOT_FINITE = re.compile(
    rb"(?i)((?:loss|norm)['\"]?(?:\s?(?:[:=|]|is))?\s*(?:tensor\()?['\"]?)[-+]?(nan|inf(?:inity)?)\b"
)
# The same words, asked of many lines at once and in linear time: most logs never say them.
_MAYBE_NOT_FINITE = re2.compile(
    rb"(?i)(?:loss|norm)['\"]?(?:[\s\v]?(?:[:=|]|is))?[\s\v]*(?:tensor\()?['\"]?[-+]?(?:nan|inf)"
)
# Without one of these no prefix names a rank: `[rank3]`, `[PG 0 Rank 3]`, `[1,3]<stdout>`, `[trainer3|3]`.
_MAYBE_RANK = re.compile(r"[Rr]ank|\]<std|\[(?:trainer|worker|role)\d")
_BLOCK = 64
_DIGITS = frozenset("0123456789")
_step_progress, _log_ref = quickly(StepProgress), quickly(LogRef)
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
        self._attempts: dict[AttemptId, _Files] = {}
        self._shapes = StatedShapes(number)
        self.use_rules(progress)

    def use_rules(self, progress: RuleSet) -> None:
        self._progress = progress
        self._of_shape = progress.patterns_of(SHAPE)

    def read(self, line: LogLine, received_at: datetime) -> tuple[Said, ...]:
        """What a line says of progress; `received_at` is our own clock, for a line's stamp may be wrong.

        A shape that is stated with a step, as Megatron-LM states the batch, stands before the step.
        """
        return self._said(line, received_at, self._found(line))

    def read_all(self, lines: Iterable[LogLine], received_at: datetime) -> Iterator[StepProgress]:
        """Progress alone."""
        for line in lines:
            yield from (said for said in self.read(line, received_at) if isinstance(said, StepProgress))

    def read_batch(
        self, lines: Sequence[LogLine], raw: Sequence[bytes], received_at: datetime
    ) -> dict[int, tuple[Said, ...]]:
        """What `read` says of each line, by its place, for those that say something; `raw` are their bytes."""
        uneven = _uneven(raw)
        candidates = {index: may for index, may in self._progress.candidates(raw) if index not in uneven}
        found: dict[int, tuple[Said, ...]] = {}
        for index in sorted(uneven | candidates.keys()):
            line = lines[index]
            if index in uneven:
                said = self._said(line, received_at, self._found(line))
            else:
                said = self._matched(line, raw[index], candidates[index], received_at)
            if said:
                found[index] = said
        return found

    def _matched(self, line: LogLine, raw: bytes, patterns: list[int], received_at: datetime) -> tuple[Said, ...]:
        """What a line says by the patterns that match it; a shape that is spelled as before is not read again."""
        shapes = [number for number in patterns if number in self._of_shape]
        again = self._shapes.again(line.attempt, shapes[0], raw) if len(shapes) == 1 else None
        if again is not None:
            patterns = [number for number in patterns if number != shapes[0]]
        best = _best_of(self._progress.confirmed(raw, patterns, line.stream))
        span = best[SHAPE].span if SHAPE in best and len(shapes) == 1 else None
        said = self._said(line, received_at, best)
        if span is not None:
            self._shapes.spelled(line.attempt, shapes[0], raw, span)
        return said if again is None else (again, *said)

    def readings(self, line: LogLine, received_at: datetime) -> tuple[Reading, ...]:
        """Progress with the signatures that read it."""
        found = self._found(line)
        self._stated(line, found)
        return self._ordered(line, received_at, found)

    def shape(self, attempt: AttemptId) -> StatedShape | None:
        """All that the lines of an attempt stated of its shape."""
        return self._shapes.known(attempt)

    def _said(self, line: LogLine, received_at: datetime, found: dict[str, Hit]) -> tuple[Said, ...]:
        stated = self._stated(line, found)
        events = list(found) if len(found) < 2 else sorted(found, key=_ORDER.index)
        progress = [self._progressed(line, received_at, found[event]) for event in events]
        return tuple(progress) if stated is None else (stated, *progress)

    def _stated(self, line: LogLine, found: dict[str, Hit]) -> StatedShape | None:
        """What the line states of the shape, which is taken out of what was found."""
        hit = found.pop(SHAPE, None)
        return None if hit is None else self._shapes.hear(line, hit, is_step="step" in found)

    def _found(self, line: LogLine) -> dict[str, Hit]:
        raw = line.text.encode("utf-8", "surrogateescape")
        found: dict[str, Hit] = {}
        for part in _parts(raw):
            found.update(_best_of(self._progress.match_line(_masked(part), line.stream)))  # a later rewrite wins
        return found

    def _ordered(self, line: LogLine, received_at: datetime, found: Mapping[str, Hit]) -> tuple[Reading, ...]:
        events = sorted(found, key=_ORDER.index)
        return tuple(Reading(self._progressed(line, received_at, found[event]), found[event]) for event in events)

    def forget(self, attempt: AttemptId) -> None:
        self._attempts.pop(attempt, None)
        self._shapes.forget(attempt)

    def _file(self, line: LogLine) -> _File:
        files = self._attempts.get(line.attempt)
        if files is None:
            files = self._attempts[line.attempt] = _Files()
        known = files.files.get(line.file)
        if known is None:
            known = files.files[line.file] = _File()
        return known

    def _progressed(self, line: LogLine, at: datetime, hit: Hit) -> StepProgress:
        event, said = hit.signature.event, hit.captures
        file = self._file(line)
        step = _step(said)
        checkpoint: int | None = None
        if event == "step" and _is_bare_bar(said) and file.is_foreign(int(said["total"])):
            return _step_progress(attempt=line.attempt, at=at, phase=Phase.EVALUATION, rank=_rank(line))
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
        return _step_progress(
            attempt=line.attempt, at=at, step=step if event == "step" else None, checkpoint_step=checkpoint,
            is_completed=event != "checkpoint_begun", phase=_PHASES[event], rank=_rank(line),
            loss=number(said.get("loss")), grad_norm=number(said.get("grad_norm")),
            step_s=step_ms / 1000.0 if step_ms is not None else number(said.get("step_s")),
            throughput=number(said.get("throughput")), tokens=_whole(number(said.get("tokens"))),
            where=_log_ref(file=line.file, line=line.number),
        )  # fmt: skip


def _best_of(hits: Iterable[Hit]) -> dict[str, Hit]:
    """For each event the reading that says most."""
    best: dict[str, Hit] = {}
    for hit in hits:
        known = best.get(hit.signature.event)
        if known is not None and hit.signature.event == SHAPE:
            best[SHAPE] = as_one(known, hit)
        elif known is None or _richness(hit) > _richness(known):
            best[hit.signature.event] = hit
    return best


def _uneven(raw: Sequence[bytes]) -> set[int]:
    """The lines that must be changed before they are matched: coloured, rewritten, or with what is no number."""
    found: set[int] = set()
    for start in range(0, len(raw), _BLOCK):
        block = raw[start : start + _BLOCK]
        joined = b"\n".join(block)
        if b"\x1b" in joined or b"\r" in joined or _MAYBE_NOT_FINITE.search(joined) is not None:
            found |= {i for i, line in enumerate(block, start) if _is_uneven(line)}
    return found


def _is_uneven(line: bytes) -> bool:
    return b"\x1b" in line or b"\r" in line or _MAYBE_NOT_FINITE.search(line) is not None


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
    if _MAYBE_NOT_FINITE.search(text) is None:
        return text
    return _NOT_FINITE.sub(lambda m: m[1] + _MASKS[m[2][:3].lower()], text)


def _richness(hit: Hit) -> tuple[bool, int]:
    return "step" in hit.captures, len(hit.captures)


def _is_bare_bar(said: Captures) -> bool:
    """A counter with a total but with nothing that only training has."""
    is_counter = isinstance(said.get("step"), int) and isinstance(said.get("total"), int)
    return is_counter and _TRAINING.isdisjoint(said)


def _step(captures: Captures) -> int | None:
    step, epoch, total = captures.get("step"), captures.get("epoch"), captures.get("total")
    if not isinstance(step, int):
        return None
    if isinstance(epoch, int) and isinstance(total, int) and 0 <= epoch < 1_000_000 and step <= total:
        return epoch * total + step
    return step


def _rank(line: LogLine) -> Rank | None:
    """The writer: by the line's own prefix, else by the file. A launcher's task number is no global rank."""
    head = line.text[:_RANK_WITHIN]
    if _MAYBE_RANK.search(head) is None:
        return line.rank
    prefix = read_prefix(head)
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
    if text[-1:] in _DIGITS and "_" not in text and text.isascii():
        try:
            value = float(text)  # most often it is as plain as that
        except ValueError:
            pass
        else:
            return _MASKED.get(value, value)
    found = _NUMBER.match(text.strip())
    if found is None:
        return None
    value = float(found[1].replace(",", "")) * _FACTORS.get(found[2].lower(), 1.0)
    return _MASKED.get(value, value)


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and math.isfinite(value) and value > 0 else None
