# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a log tells of progress: which signatures read it, and what no line says."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from detectors.line_prefix import read_prefix
from detectors.log_text import LogText
from detectors.progress import ProgressReader
from relight.shape import StatedShape
from relight.types import AttemptId, LogLine, Phase, StepProgress
from rules.match import RuleSet

EXAMINED = AttemptId("examined")
_ENOUGH_STEPS = 10
_COUNTER = re.compile(r"(?i)\b(?:step|iter(?:ation)?|batch|update|epoch)s?\b\W{0,4}\d+")
_NUMBERS = re.compile(r"\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


@dataclass(slots=True)
class Reading:
    """A signature that matched, how often, and its last match."""

    signature: str
    count: int = 0
    line: int = 0
    text: str = ""
    values: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Findings:
    """The state of a log as a source of progress; `missing` names the gap and the way out."""

    lines: int
    steps: int = 0
    signatures: list[Reading] = field(default_factory=list)
    able: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    candidate: str = ""


def examine(logs: Sequence[LogText], progress: RuleSet, at: datetime) -> Findings:
    """Errors: none for any content."""
    reader = ProgressReader(progress)
    found = Findings(lines=sum(len(log.lines) for log in logs))
    by_name: dict[str, Reading] = {}
    seen: list[StepProgress] = []
    for log in logs:
        for raw, number in zip(log.lines, log.numbers, strict=True):
            text = raw.decode("utf-8", "replace")
            line = LogLine(
                attempt=EXAMINED, file=log.name, number=number, stream=log.stream, text=text,
                node=log.node, rank=log.rank,
            )  # fmt: skip
            for reading in reader.readings(line, at):
                known = by_name.setdefault(reading.hit.name, Reading(reading.hit.name))
                known.count, known.line, known.text = known.count + 1, number, text
                known.values = _values(reading.progress, reading.hit.captures)
                seen.append(reading.progress)
            if not found.candidate and _COUNTER.search(text):
                found.candidate = text
    found.signatures = sorted(by_name.values(), key=lambda r: -r.count)
    found.steps = sum(p.phase is Phase.STEP for p in seen)
    _judge(found, seen)
    if found.steps:
        _judge_shape(found, seen, reader.shape(EXAMINED))
    return found


def _values(progress: StepProgress, captures: Mapping[str, object]) -> dict[str, str]:
    named = {
        "step": progress.step, "checkpoint_step": progress.checkpoint_step, "rank": progress.rank,
        "loss": progress.loss,
        "grad_norm": progress.grad_norm, "step_s": progress.step_s, "throughput": progress.throughput,
        "tokens": progress.tokens, "total": captures.get("total"),
    }  # fmt: skip
    return {
        key: f"{value:g}" if isinstance(value, float) else str(value)
        for key, value in named.items()
        if value is not None
    }


def _judge(found: Findings, seen: Sequence[StepProgress]) -> None:
    steps = [p for p in seen if p.phase is Phase.STEP]
    numbered = {p.step for p in steps if p.step is not None}
    phases = {p.phase for p in seen}
    if not steps:
        found.missing.append(
            "no line tells a step: hangs and slowdowns can't be seen; write a progress signature (below)"
        )
        return
    if len(steps) < _ENOUGH_STEPS:
        found.missing.append(
            f"only {len(steps)} step lines: usual pauses are learned from {_ENOUGH_STEPS} on; log more often"
        )
    found.able.append("a hang, from the time between step lines")
    if numbered:
        found.able.append("progress between attempts, from step numbers")
    else:
        found.missing.append("no step number in the lines (capture `step`): a restart's progress stays unknown")
    if Phase.CHECKPOINT not in phases:
        found.missing.append(
            "no line tells of a checkpoint: its pause is learned from a period, at the price of slower verdicts"
        )
    if any(p.loss is not None for p in steps):
        found.able.append("divergence, from the loss")
    else:
        found.missing.append("no loss (capture `loss`): divergence can't be seen")
    if len({p.rank for p in steps if p.rank is not None}) > 1:
        found.able.append("the rank that a hang stops at, where it falls behind the others")
    else:
        found.missing.append(
            "steps of one writer only: the rank of a hang or straggler stays unknown; use relight.client"
        )


def _judge_shape(found: Findings, seen: Sequence[StepProgress], stated: StatedShape | None) -> None:
    """What is known of what the job trains with: of a changed batch, a slowdown must be told."""
    said = {} if stated is None else stated.as_json()
    if said:
        words = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in said.items())
        found.able.append(f"a changed shape as no slowdown, from {words}")
    has_batch = {"batch", "rank_batch"} & said.keys()
    if not has_batch and not any(one.tokens is not None for one in seen):
        found.missing.append(
            "no line states the global batch size (capture `batch` with `event: shape`): a larger one looks like a "
            "slowdown; print it, or state it by relight.client or in PUT /v1/attempts"
        )


def template(line: str) -> str:
    """A signature to adapt; with a candidate line its numbers become a pattern."""
    message = line[read_prefix(line).start :].strip()[:300] or "my step 40 of 1000 loss 2.31"
    regex = _pattern(message).replace("'", "''")
    quoted = message.replace("'", "''")
    return f"""# yaml-language-server: $schema=../../schema/signature.v1.json
id: site.my_progress
kind: progress
title: Step lines of my trainer
failure: none
role: benign
maturity: stable
severity: info
streams: [application]
source: [my trainer]
does_not_prove: that the work is right; it only shows that the program goes on
# event: or checkpoint_begun checkpoint_completed evaluation initialising data_stall completed shape
event: step
match:
  any:
    - regex: '{regex}'   # name what you have: step total loss grad_norm step_s step_ms throughput tokens
tests:
  fires:
    - line: '{quoted}'
  silent:
    - line: 'a line that must not count as a step'"""


def _pattern(message: str) -> str:
    """The message up to its counter, which becomes the step, and its loss if it has one."""
    counter = _COUNTER.search(message)
    number = _NUMBERS.search(message, counter.start()) if counter is not None else _NUMBERS.search(message)
    if number is None:
        return r"my step (?P<step>\d+)"
    words = message[max(0, number.start() - 24) : number.start()]
    pattern = re.escape(words).replace(r"\ ", " ").replace(r"\=", "=") + r"(?P<step>\d+)"
    loss = re.search(r"(?i)loss\W{1,3}(?=\d)", message[number.end() :])
    if loss is not None:
        pattern += r".*?" + re.escape(loss[0]).replace(r"\ ", " ").replace(r"\=", "=") + r"(?P<loss>[\d.eE+-]+)"
    return pattern
