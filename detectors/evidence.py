# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the lines of one log to evidence: signatures, tracebacks, and whether training went on afterwards."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from detectors.claim import claim_of, evidence_at
from detectors.exception_claims import traceback_claims, written_not_read
from detectors.last_words import last_words
from detectors.lines import Lines
from detectors.log_text import LogText
from detectors.memory_table import with_memory_holder
from detectors.training_steps import Step, training_steps, with_progress
from relight.types import Evidence, FailureName, Role
from rules.match import Hit, RuleSet

MAX_HITS_PER_SIGNATURE = 400
MAX_SOURCE = 400
# A program's own text, shown in a traceback: it says what would be raised, not what was.
_SOURCE = re.compile(rb"(?:^|[\]:>|] ?)\s{4,}raise [A-Za-z_][\w.]*\(")
# Captures that make two claims by one writer different ones.
_DISTINGUISH = (
    "node", "nodes", "peer", "pci", "exit_code", "local_rank", "rank", "ranks", "op", "tasks", "previous_xid", "comm",
    "device",
)  # fmt: skip
_OUT_OF_MEMORY = FailureName("host_oom_killed")
_WRITE_FAILED = FailureName("checkpoint_write_failed")


@dataclass(slots=True)
class LogEvidence:
    """What one log says: evidence in order, and the training events seen near it.

    `base` is added to line indexes to give the order of evidence; lines before `first` belong to an earlier attempt.
    """

    log: LogText
    evidence: list[Evidence]
    steps: list[Step]
    base: int = 0
    first: int = 0

    @property
    def last_step(self) -> int | None:
        return max((s.step for s in self.steps if s.step is not None), default=None)

    @property
    def is_completed(self) -> bool:
        return any(s.event == "completed" for s in self.steps)


def read_evidence(
    log: LogText, signatures: RuleSet, progress: RuleSet, *, base: int = 0, first: int = 0
) -> LogEvidence:
    """Everything that a log says about a failure.

    Shapes: `base` is added to line indexes to give `Evidence.order`; lines before `first` are left out.
    Errors: none: any bytes may be a log.
    """
    lines = Lines(log)
    at_line = _hits(log, signatures, first)
    claims = [(index, claim_of(hit)) for index, hits in at_line.items() for hit in hits]
    claims += traceback_claims(log, lines, at_line, first)
    if all(claim.role in {Role.BENIGN, Role.CONFIRMATION} for _, claim in claims):
        unknown = last_words(log, lines, at_line)
        claims += [unknown] if unknown is not None and unknown[0] >= first else []
    claims.sort(key=lambda pair: pair[0])
    found = [(index, evidence_at(log, lines, index, base, claim)) for index, claim in claims]
    writes = written_not_read(lines, at_line)
    found = [(i, replace(e, failure=_WRITE_FAILED) if i in writes else e) for i, e in found]
    found = [(i, with_memory_holder(e, log.lines, i) if e.failure == _OUT_OF_MEMORY else e) for i, e in found]
    steps = training_steps(log, progress, [i for i, _ in found], first)
    marked = [with_progress(i, e, steps, at_line) for i, e in found]
    return LogEvidence(log, _counted(_folded(marked), signatures), steps, base, first)


def _hits(log: LogText, signatures: RuleSet, first: int) -> dict[int, tuple[Hit, ...]]:
    """What the signatures say, line by line; one that matches endlessly is heard the first 400 times."""
    heard: dict[int, int] = {}
    out: dict[int, tuple[Hit, ...]] = {}
    for index, indexes in signatures.scan(log.lines):
        if index < first:
            continue
        wanted = [i for i in indexes if heard.get(i, 0) < MAX_HITS_PER_SIGNATURE]
        for i in indexes:
            heard[i] = heard.get(i, 0) + 1
        is_source = _SOURCE.search(log.lines[index][:MAX_SOURCE]) is not None
        hits = signatures.hits(log.lines[index], wanted, log.stream) if wanted and not is_source else ()
        if hits:
            out[index] = hits
    return out


def _folded(found: Sequence[Evidence]) -> list[Evidence]:
    """Repeats of one claim by one writer become a count on the first."""
    first: dict[tuple[object, ...], Evidence] = {}
    for e in found:
        captured = tuple(e.captures.get(k) for k in _DISTINGUISH)
        key = (e.signature, e.failure, e.rank, e.node, e.is_survived, e.role, captured)
        known = first.get(key)
        first[key] = e if known is None else replace(known, count=known.count + 1, last_order=e.order)
    return sorted(first.values(), key=lambda e: e.order)


def _counted(evidence: list[Evidence], signatures: RuleSet) -> list[Evidence]:
    """Claims whose number says what one alone does not."""
    repeats = {s.id: s.repeats for s in signatures.signatures if s.repeats is not None}
    out = []
    for e in evidence:
        rule = repeats.get(e.signature)
        is_many = rule is not None and e.count >= rule.at_least
        out.append(replace(e, failure=FailureName(rule.failure), role=rule.role) if rule and is_many else e)
    return out
