# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the lines of one log to evidence: signatures, tracebacks, and whether training went on afterwards."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import overload

from detectors.line_prefix import Prefix, own_time, read_prefix
from detectors.log_text import LogText
from detectors.node_context import node_about
from detectors.tracebacks import HEADER, Message, Traceback, cut_traceback, terminal_at
from relight.types import (
    Action,
    Captures,
    Evidence,
    FailureName,
    LogRef,
    NodeName,
    Rank,
    Role,
    Severity,
    SignatureId,
    Stream,
)
from rules.match import Hit, RuleSet

MAX_HITS_PER_SIGNATURE = 400
MAX_TEXT = 600
_AFTER_LINES = 400
_BEFORE_LINES = 200
_TAIL_LINES = 300
_SURVIVED_STEPS = 3
_SURVIVED_EVENTS = 6
_MAX_FRAMES = 3_000
_NEAR_LINES = 40
_RECORDS = frozenset({Stream.SCHEDULER, Stream.KUBERNETES})
_MESSAGE_LINES = 8
_CUT_TAIL_LINES = 60
_YEAR = re.compile(rb"\b(20[0-4]\d)[-/]\d\d[-/]\d\d|\b\d\d:\d\d:\d\d (20[0-4]\d)\]|[-/](20[0-4]\d) \d\d:")

# What an exception's class alone says, where no signature knows the message.
_EXCEPTIONS: dict[str, tuple[str, Role, Action | None]] = {
    "KeyboardInterrupt": ("user_cancelled", Role.SYMPTOM, None),
    "BrokenPipeError": ("remote_peer_exited", Role.SYMPTOM, None),
    "ConnectionResetError": ("remote_peer_exited", Role.SYMPTOM, None),
    "ConnectionAbortedError": ("remote_peer_exited", Role.SYMPTOM, None),
    "ConnectionRefusedError": ("rendezvous_unreachable", Role.SYMPTOM, None),
    "PermissionError": ("permission_denied", Role.ROOT, None),
    "FileNotFoundError": ("input_missing", Role.ROOT, None),
    "BlockingIOError": ("process_limit_reached", Role.ROOT, None),
}
_SECONDARY = frozenset(
    [
        "ChildFailedError",
        "SignalException",
        "ProcessExitedException",
        "ProcessRaisedException",
        "CalledProcessError",
        "SystemExit",
        "RayTaskError",
        "ActorDiedError",
        "RayActorError",
        "BrokenProcessPool",
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "TrainingFailedError",
        "RuntimeWarning",
        "UserWarning",
        "FutureWarning",
        "DeprecationWarning",
        "ResourceWarning",
        "TemplatedWarning",
    ]
)
_VAGUE = frozenset(["TimeoutError", "InternalError", "XlaRuntimeError", "JaxRuntimeError", "AcceleratorError"])
_CUT: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"load_checkpoint|_load_from_checkpoint|dist_checkpointing/.*load|restore_checkpoint|load_state_dict|torch_load"
        ),
        "checkpoint_load_failed",
    ),
    (
        re.compile(r"save_checkpoint|_save_checkpoint|dist_checkpointing/.*save|save_model"),
        "checkpoint_write_failed",
    ),
    (
        re.compile(r"huggingface_hub/|datasets/load\.py|transformers/utils/hub\.py|cached_file|hf_hub_download"),
        "hub_unreachable",
    ),
)


class Lines(Sequence[Message]):
    """The lines of a log as prefix and message, parsed when asked for."""

    def __init__(self, log: LogText) -> None:
        self._log = log
        self._year = log.year if log.year is not None else year_of(log.lines)
        self._prefixes: dict[int, tuple[Prefix, Message]] = {}

    def __len__(self) -> int:
        return len(self._log.lines)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Message]: ...
    def __getitem__(self, index: int | slice) -> Message | Sequence[Message]:
        if isinstance(index, slice):
            return [self._parsed(i)[1] for i in range(*index.indices(len(self)))]
        return self._parsed(index)[1]

    def prefix(self, index: int) -> Prefix:
        return self._parsed(index)[0]

    def near_time(self, index: int) -> datetime | None:
        """The time of a line, or of the next stamped line behind it, else of the last one before it."""
        ahead = range(index, min(len(self), index + _NEAR_LINES))
        behind = range(index - 1, max(-1, index - _NEAR_LINES), -1)
        stated = own_time(self._log.lines[index][:MAX_TEXT].decode("utf-8", "replace"), self._year)
        return stated or next((at for i in (*ahead, *behind) if (at := self.prefix(i).at) is not None), None)

    def _parsed(self, index: int) -> tuple[Prefix, Message]:
        known = self._prefixes.get(index)
        if known is None:
            text = self._log.lines[index][:8_000].decode("utf-8", "replace")
            prefix = read_prefix(text, self._year)
            known = self._prefixes[index] = (prefix, Message(text[: prefix.start], text[prefix.start :]))
        return known


def year_of(lines: Sequence[bytes]) -> int | None:
    for line in [*lines[:300], *lines[-300:]]:
        found = _YEAR.search(line)
        if found is not None:
            return int(next(g for g in found.groups() if g))
    return None


@dataclass(frozen=True, slots=True)
class _Step:
    index: int
    step: int | None
    event: str


@dataclass(slots=True)
class LogEvidence:
    """What one log says: evidence in order, and the training events seen near it."""

    log: LogText
    evidence: list[Evidence]
    steps: list[_Step]
    hits: int = 0

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
    found: list[tuple[int, Evidence]] = []
    seen: dict[int, int] = {}
    at_line: dict[int, tuple[Hit, ...]] = {}
    for index, indexes in signatures.scan(log.lines):
        if index < first:
            continue
        wanted = [i for i in indexes if seen.get(i, 0) < MAX_HITS_PER_SIGNATURE]
        for i in indexes:
            seen[i] = seen.get(i, 0) + 1
        hits = signatures.hits(log.lines[index], wanted, log.stream) if wanted else ()
        if hits:
            at_line[index] = hits
            found += [(index, _from_hit(log, lines, index, hit, base)) for hit in hits]
    found += _from_tracebacks(log, lines, at_line, base, first)
    found.sort(key=lambda pair: pair[0])
    steps = _steps(log, progress, [i for i, _ in found], first)
    marked = [(i, _with_progress(i, e, steps, at_line)) for i, e in found]
    return LogEvidence(log, _counted(_folded(marked), signatures), steps, sum(seen.values()))


def _counted(evidence: list[Evidence], signatures: RuleSet) -> list[Evidence]:
    """Claims whose number says what one alone does not."""
    repeats = {s.id: s.repeats for s in signatures.signatures if s.repeats is not None}
    out = []
    for e in evidence:
        rule = repeats.get(e.signature)
        if rule is not None and e.count >= rule.at_least:
            e = replace(e, failure=FailureName(rule.failure), role=rule.role)
        out.append(e)
    return out


def _from_hit(log: LogText, lines: Lines, index: int, hit: Hit, base: int) -> Evidence:
    signature = hit.signature
    return _evidence(
        log,
        lines,
        index,
        base,
        signature=SignatureId(hit.name),
        title=hit.title,
        failure=FailureName(hit.failure),
        role=hit.role,
        severity=hit.severity,
        captures=hit.captures,
        span=hit.span,
        action=hit.action,
        accuses=signature.accuses,
        does_not_prove=hit.does_not_prove,
        maturity=signature.maturity,
        excuses=tuple(FailureName(f) for f in signature.excuses),
        excuses_earlier_only=signature.excuses_when == "earlier",
    )


def _evidence(
    log: LogText,
    lines: Lines,
    index: int,
    base: int,
    *,
    signature: SignatureId,
    title: str,
    failure: FailureName,
    role: Role,
    severity: Severity,
    captures: Captures,
    span: tuple[int, int],
    action: Action | None,
    accuses: str,
    does_not_prove: str,
    maturity: str = "stable",
    excuses: tuple[FailureName, ...] = (),
    excuses_earlier_only: bool = False,
) -> Evidence:
    prefix = lines.prefix(index)
    rank = prefix.rank if prefix.rank is not None else log.rank
    if rank is None and prefix.task is not None and captures.get("local_rank", 0) == 0:
        rank = Rank(prefix.task)  # srun --label with one task a rank, or one rank a node
    glued = re.search(r"\[rank(\d+)\]:", lines[index].body[: span[0] + 1]) if prefix.rank is None else None
    if glued is not None:
        rank = Rank(int(glued.group(1)))
    node = log.node or prefix.host
    if log.stream in _RECORDS and not captures.keys() & {"node", "nodes", "peer"}:
        about = node_about(lines[index].body, lambda back: lines[index - back].body if back <= index else None)
        if about is not None:
            node = node or about
            captures = {**captures, "node": about}
    if prefix.group is not None and "group" not in captures:
        captures = {**captures, "group": prefix.group}
    return Evidence(
        signature=signature,
        title=title,
        failure=failure,
        role=role,
        severity=severity,
        where=LogRef(file=log.name, line=log.numbers[index]),
        order=base + index,
        last_order=base + index,
        stream=log.stream,
        text=log.lines[index][:MAX_TEXT].decode("utf-8", "replace"),
        at=lines.near_time(index),
        rank=rank,
        node=node,
        captures=captures,
        span=span,
        action=action,
        accuses_node=accuses,
        does_not_prove=does_not_prove,
        maturity=maturity,
        excuses=excuses,
        excuses_earlier_only=excuses_earlier_only,
    )


# ------------------------------------------------------------------ tracebacks


def _from_tracebacks(
    log: LogText, lines: Lines, at_line: dict[int, tuple[Hit, ...]], base: int, first: int
) -> Iterator[tuple[int, Evidence]]:
    frames = [i for i, line in enumerate(log.lines) if b'File "' in line or b"Traceback (" in line]
    frames = [i for i in frames if i >= first]
    if len(frames) > _MAX_FRAMES:
        frames = frames[: _MAX_FRAMES - 500] + frames[-500:]
    done: set[int] = set()
    for start in frames:
        for traceback in _tracebacks_near(lines, start, done):
            evidence = _from_traceback(log, lines, traceback, at_line, base)
            if evidence is not None:
                yield traceback.end, evidence


def _tracebacks_near(lines: Lines, start: int, done: set[int]) -> Iterator[Traceback]:
    """The traceback whose frames or header stand at `start`: up to its exception or its cut end."""
    is_header = HEADER in lines[start].body
    for index in range(start + 1, min(len(lines), start + 80)):
        body = lines[index].body
        if body[:1].isspace() or not body.strip():
            continue
        if index in done:
            return
        traceback = terminal_at(lines, index)
        if traceback is not None:
            done.add(index)
            yield traceback
            return
    if is_header and len(lines) - start < _CUT_TAIL_LINES + 80:
        cut = cut_traceback(lines, start)
        if cut is not None and len(lines) - cut.end <= _CUT_TAIL_LINES and cut.end not in done:
            done.add(cut.end)
            yield cut


def _from_traceback(
    log: LogText, lines: Lines, traceback: Traceback, at_line: dict[int, tuple[Hit, ...]], base: int
) -> Evidence | None:
    end = traceback.end
    explained = [h for i in range(end, end + _MESSAGE_LINES) for h in at_line.get(i, ())]
    if at_line.get(end) or any(h.role in {Role.ROOT, Role.SYMPTOM} for h in explained):
        return None
    named = traceback.exception.split("(")[0].rsplit(".", 1)[-1]
    if traceback.is_cut:
        return _cut_evidence(log, lines, traceback, base)
    failure, role, action = _EXCEPTIONS.get(named, ("python_exception", Role.ROOT, None))
    if named in _SECONDARY or traceback.is_launcher:
        failure, role = "cause_not_in_log", Role.TEARDOWN
    elif named in _VAGUE:
        role, action = Role.SYMPTOM, Action.RESTART
    elif traceback.is_caused:
        role = Role.SYMPTOM
    title = f"{traceback.exception}: {traceback.message}"[:200].strip(": ")
    return _evidence(
        log,
        lines,
        end,
        base,
        signature=SignatureId("python.exception"),
        title=title,
        failure=FailureName(failure),
        role=role,
        severity=Severity.ERROR,
        captures={"exception": named, "message": traceback.message[:300]},
        span=(0, len(log.lines[end])),
        action=action,
        accuses="none",
        does_not_prove="that the program is at fault: an exception may repeat what a device or a peer did",
    )


def _cut_evidence(log: LogText, lines: Lines, traceback: Traceback, base: int) -> Evidence | None:
    if traceback.is_launcher:
        failure, role, title = "cause_not_in_log", Role.TEARDOWN, "a launcher's traceback, cut off"
    else:
        failure, role = "python_exception", Role.CONFIRMATION  # only what is left when nothing else speaks
        title = "a traceback whose exception is cut off"
        frames = "\n".join(f"{f.path} {f.function}" for f in reversed(traceback.frames))
        for pattern, known in _CUT:
            if pattern.search(frames):
                failure, role = known, Role.SYMPTOM
                break
    return _evidence(
        log,
        lines,
        traceback.end,
        base,
        signature=SignatureId("python.traceback_cut"),
        title=title,
        failure=FailureName(failure),
        role=role,
        severity=Severity.ERROR,
        captures={},
        span=(0, 0),
        action=Action.RESTART,
        accuses="none",
        does_not_prove="what was raised: the text ends before the exception",
    )


# ------------------------------------------------------------------ progress around evidence


def _steps(log: LogText, progress: RuleSet, at: Sequence[int], first: int) -> list[_Step]:
    """Training events near evidence, at the head and at the tail: the rest of a long log is not looked at."""
    total = len(log.lines)
    windows = [(first, first + _BEFORE_LINES), (max(first, total - _TAIL_LINES), total)]
    windows += [(max(first, i - _BEFORE_LINES), i + _AFTER_LINES) for i in at]
    out: list[_Step] = []
    for low, high in _merged(windows, total):
        for offset, indexes in progress.scan(log.lines[low:high]):
            for hit in progress.hits(log.lines[low + offset], indexes, log.stream)[:1]:
                step = hit.captures.get("step")
                out.append(_Step(low + offset, step if isinstance(step, int) else None, hit.signature.event))
    return out


def _merged(windows: Iterable[tuple[int, int]], total: int) -> Iterator[tuple[int, int]]:
    low, high = 0, 0
    for start, end in sorted(windows):
        if start > high:
            if high > low:
                yield low, min(high, total)
            low = start
        high = max(high, end)
    if high > low:
        yield low, min(high, total)


def _with_progress(
    index: int, evidence: Evidence, steps: Sequence[_Step], at_line: dict[int, tuple[Hit, ...]]
) -> Evidence:
    """Mark whether training went on after a line, and how far it had come."""
    positions = [s.index for s in steps]
    before = [s.step for s in steps[: bisect_left(positions, index)] if s.event == "step"]
    done = [s for s in before if s is not None]
    spread = (max(done) - min(done) if done else 0) or (max(done) if done else 0)
    after = [
        s
        for s in steps[bisect_right(positions, index) :]
        if s.event == "step" and not any(h.failure == evidence.failure for h in at_line.get(s.index, ()))
    ]
    numbered = {s.step for s in after if s.step is not None}
    survived = len(numbered) >= _SURVIVED_STEPS or (len(after) - len(numbered) >= _SURVIVED_EVENTS and not numbered)
    return replace(
        evidence,
        is_survived=survived,
        steps_before=max(spread, max(done, default=0), len(before) - len(done)),
    )


def _folded(found: Sequence[tuple[int, Evidence]]) -> list[Evidence]:
    """Repeats of one claim by one writer become a count on the first."""
    first: dict[tuple[object, ...], Evidence] = {}
    for _, e in found:
        key = (e.signature, e.failure, e.rank, e.node, e.is_survived, e.role, _captured(e))
        known = first.get(key)
        first[key] = e if known is None else replace(known, count=known.count + 1, last_order=e.order)
    return sorted(first.values(), key=lambda e: e.order)


def _captured(e: Evidence) -> tuple[object, ...]:
    """Captures that make two claims different ones."""
    keys = (
        "node",
        "nodes",
        "peer",
        "pci",
        "exit_code",
        "local_rank",
        "rank",
        "op",
        "tasks",
        "previous_xid",
        "comm",
        "device",
    )
    return tuple(e.captures.get(k) for k in keys)


def writer_of(evidence: Evidence) -> tuple[Rank | None, NodeName | None]:
    return evidence.rank, evidence.node
