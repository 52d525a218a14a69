# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The crash detector: collects what an attempt's logs say and names the failure when asked."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from detectors.allocation import HINTS as ALLOCATION_HINTS
from detectors.allocation import allocated_nodes
from detectors.attempts import last_attempt_start
from detectors.evidence import LogEvidence, read_evidence
from detectors.lines import Lines, year_of
from detectors.log_text import LogText
from detectors.placement import HINT as PLACEMENT_HINT
from detectors.placement import Placement, reported_processes, reported_tasks
from detectors.silence import silence_before_order
from relight.attribute import AttemptFacts, attribute
from relight.exclusions import short_name
from relight.ports import Attributor
from relight.types import (
    NO_FAILURE,
    Anomaly,
    AnomalyKind,
    AttemptId,
    Attribution,
    Evidence,
    LogLine,
    LogRef,
    NodeName,
    Rank,
    Role,
    SchedulerState,
    Stream,
    Taxonomy,
)
from rules.match import RuleSet

_FILE_STRIDE = 10_000_000
HEAD_LINES = 200
TAIL_LINES = 2_000
CONTEXT_LINES = 60
MAX_KEPT_LINES = 20_000
_BLOCK_LINES = 64
_LOOK_LINES = 100
_MAX_SESSION_LINES = 2_000
_PROMPT = re.compile(rb"^\[?[a-z_][\w-]*@([A-Za-z0-9][\w.-]*)(?::| )[^\s\]]*\]?[#$] ")


def diagnose(
    logs: Sequence[LogText],
    signatures: RuleSet,
    progress: RuleSet,
    taxonomy: Taxonomy,
    *,
    scheduler: SchedulerState | None = None,
    rank_to_node: Mapping[Rank, NodeName] | None = None,
    attributor: Attributor | None = None,
    placement: Placement | None = None,
) -> tuple[Attribution, tuple[Evidence, ...]]:
    """Judge the last attempt that a set of logs holds, by the built-in attributor unless another is given.

    Shapes: any number of logs of one attempt; the evidence comes back in order of arrival. `placement` is what was
            read of lines that are no longer kept; without one it is read from the logs.
    Errors: none for any content of the logs.
    """
    years = [log.year if log.year is not None else year_of(log.lines) for log in logs]
    known = next((y for y in years if y is not None), None)
    for log, year in zip(logs, years, strict=True):
        log.year = year if year is not None else known
    _place_by_content(logs)
    read = [
        read_evidence(log, signatures, progress, base=number * _FILE_STRIDE, first=last_attempt_start(log))
        for number, log in enumerate(logs)
    ]
    silence = silence_before_order(read)
    evidence = tuple(e for r in read for e in r.evidence) + ((silence,) if silence is not None else ())
    facts = _facts(read, scheduler, rank_to_node or {}, placement or _placed(read))
    if attributor is not None:
        return attributor.attribute(evidence, facts), evidence
    return attribute(evidence, taxonomy, facts), evidence


def _place_by_content(logs: Sequence[LogText]) -> None:
    """Where each log turns out to be one rank's or one host's own, say so: names of files need not tell it."""
    own: dict[int, Rank] = {}
    for index, log in enumerate(logs):
        if log.node is None:
            log.node = _prompted(log)
        if log.rank is None and log.stream is Stream.APPLICATION:
            lines = Lines(log)
            looked_at = {
                *range(min(len(lines), _LOOK_LINES)),
                *range(max(0, len(lines) - _LOOK_LINES), len(lines)),
            }
            ranks = {r for i in looked_at if (r := lines.prefix(i).rank) is not None}
            if len(ranks) == 1:
                own[index] = ranks.pop()
    if len(set(own.values())) < 2:
        return
    for index, rank in own.items():
        logs[index].rank = rank
    on_node: dict[NodeName, set[Rank]] = {}
    for log in logs:
        if log.node is not None and log.rank is not None:
            on_node.setdefault(log.node, set()).add(log.rank)
    for log in logs:
        if log.rank is None and log.node is not None and len(on_node.get(log.node, ())) == 1:
            (log.rank,) = on_node[log.node]


def _prompted(log: LogText) -> NodeName | None:
    """The host of a pasted terminal session, by its prompt, if it is one host's all the way."""
    if len(log.lines) > _MAX_SESSION_LINES:
        return None
    hosts = {m.group(1) for line in log.lines if (m := _PROMPT.match(line[:200])) is not None}
    return NodeName(hosts.pop().decode("ascii", "replace")) if len(hosts) == 1 else None


def _placed(read: Sequence[LogEvidence]) -> Placement:
    placement = Placement()
    for one in read:
        if one.log.stream is Stream.APPLICATION and PLACEMENT_HINT not in one.log.absent:
            placement.read(one.log.lines[one.first :])
    return placement


def _facts(
    read: Sequence[LogEvidence],
    scheduler: SchedulerState | None,
    rank_to_node: Mapping[Rank, NodeName],
    placement: Placement,
) -> AttemptFacts:
    jobs = [r for r in read if r.log.stream is Stream.APPLICATION]
    telling = [r for r in jobs if not r.log.absent.issuperset(ALLOCATION_HINTS)]
    stated = next((nodes for r in telling if (nodes := allocated_nodes(r.log.lines[r.first :]))), frozenset())
    own = {r.log.rank: r.log.node for r in read if r.log.rank is not None}
    known = {rank: node for rank, node in own.items() if node is not None}
    seen = {**placement.rank_to_node, **known}
    reported = {place: rank for one in read for place, rank in reported_processes(one).items()}
    tasks = {task: node for r in jobs for task, node in reported_tasks(r).items()}
    given = rank_to_node if _holds(rank_to_node, seen, own) else {}
    return AttemptFacts(
        rank_to_node={**seen, **given},
        own_places={**known, **given},
        nodes=stated or frozenset({**placement.rank_to_node, **given}.values()),
        reported_places={
            **placement.reported_places,
            **tasks,
            **{rank: node for (node, _), rank in reversed(reported.items())},
        },
        process_ranks={
            **placement.process_ranks,
            **{(node, pid): rank for (node, pid), rank in reported.items() if pid is not None},
        },
        device_ranks=placement.device_ranks,
        logged_ranks=frozenset(own),
        last_step=max((r.last_step for r in read if r.last_step is not None), default=None),
        is_completed=any(r.is_completed for r in read),
        scheduler=scheduler,
    )


def _holds(rank_to_node: Mapping[Rank, NodeName], seen: Mapping[Rank, NodeName], logged: Iterable[Rank]) -> bool:
    """Whether the logs don't belie a published map: a scheduler knows tasks, and a task may start several workers.

    They do by a rank beyond a map that names 0 to n-1 as all there are, and by one that spoke on another node of it.
    """
    is_whole = set(rank_to_node) == set(range(len(rank_to_node)))
    if is_whole and not {*seen, *logged} <= set(rank_to_node):
        return False
    names = {rank: short_name(node) for rank, node in rank_to_node.items()}
    spoke = {rank: short_name(node) for rank, node in seen.items() if rank in names}
    return all(node == names[rank] or node not in names.values() for rank, node in spoke.items())


@dataclass(slots=True)
class _File:
    """The lines of one growing file that may still matter; what is dropped is counted."""

    head: list[LogLine] = field(default_factory=list)
    marked: list[LogLine] = field(default_factory=list)
    tail: deque[LogLine] = field(default_factory=lambda: deque(maxlen=TAIL_LINES))
    context_left: int = 0
    dropped: int = 0
    last_number: int = 0


class CrashDetector:
    """Keeps of each attempt's logs what a verdict needs, in bounded memory, and judges on demand.

    Shapes: `observe` takes lines in order of their number within a file; a number seen before is ignored,
            so a batch that is sent twice changes nothing.
    Units:  at most 20,000 lines a file are kept: the head, the tail, and matched lines with their context.
    Errors: none for any content; memory is freed by `forget`.
    """

    name = "crash"

    def __init__(
        self, signatures: RuleSet, progress: RuleSet, taxonomy: Taxonomy, attributor: Attributor | None = None
    ) -> None:
        self._signatures, self._progress, self._taxonomy = signatures, progress, taxonomy
        self._claiming = _claiming(signatures)
        self._attributor = attributor
        self._files: dict[AttemptId, dict[str, _File]] = {}
        self._scheduler: dict[AttemptId, SchedulerState] = {}
        self._placed: dict[AttemptId, Mapping[Rank, NodeName]] = {}
        self._placements: dict[AttemptId, Placement] = {}

    def use_rules(self, signatures: RuleSet, progress: RuleSet) -> None:
        """Swap in a reloaded rule set; lines already kept are judged by the new one."""
        self._signatures, self._progress = signatures, progress
        self._claiming = _claiming(signatures)

    def place_ranks(self, attempt: AttemptId, rank_to_node: Mapping[Rank, NodeName]) -> None:
        self._placed[attempt] = dict(rank_to_node)

    def observe_scheduler(self, seen: SchedulerState) -> None:
        self._scheduler[seen.attempt] = seen

    def marks(self, raw: Sequence[bytes]) -> dict[int, bool]:
        """The places of lines that a signature matches or that belong to a traceback; true where they may claim."""
        claiming = self._claiming
        found = {index: any(i in claiming for i in said) for index, said in self._signatures.scan(raw)}
        found |= {i: True for i, line in enumerate(raw) if b"Traceback (" in line or b'File "' in line}
        return found

    def observe_lines(
        self, attempt: AttemptId, lines: Sequence[LogLine], marks: Mapping[int, bool] | None = None
    ) -> int:
        """Take in a batch, with its `marks` if they are known; returns how many lines were new."""
        files = self._files.setdefault(attempt, {})
        raw = [line.text.encode("utf-8", "surrogateescape") for line in lines]
        marked = self.marks(raw) if marks is None else marks
        placement = self._placements.setdefault(attempt, Placement())
        fresh = 0
        for index, line in enumerate(lines):
            file = files.get(line.file)
            if file is None:
                file = files[line.file] = _File()
            if line.number <= file.last_number:
                continue
            file.last_number = line.number
            fresh += 1
            if line.stream is Stream.APPLICATION and PLACEMENT_HINT in raw[index]:
                placement.read([raw[index]])
            self._keep(file, line, index in marked)
        return fresh

    def _keep(self, file: _File, line: LogLine, is_matched: bool) -> None:
        if is_matched:
            file.marked += [earlier for earlier in list(file.tail)[-CONTEXT_LINES:]]
            file.context_left = CONTEXT_LINES
        if is_matched or file.context_left > 0:
            file.context_left = max(0, file.context_left - (not is_matched))
            file.marked.append(line)
        elif len(file.head) < HEAD_LINES:
            file.head.append(line)
        if len(file.marked) > MAX_KEPT_LINES:
            half = MAX_KEPT_LINES // 2
            file.dropped += len(file.marked) - 2 * half
            file.marked = file.marked[:half] + file.marked[-half:]
        file.tail.append(line)

    def attempts(self) -> tuple[AttemptId, ...]:
        return tuple(self._files)

    def matched(self, attempt: AttemptId) -> int:
        """Changes whenever a line of the attempt claimed something new: else its verdict stands."""
        return sum(len(f.marked) + f.dropped for f in self._files.get(attempt, {}).values())

    def logs(self, attempt: AttemptId) -> list[LogText]:
        """The lines that are kept of an attempt, file by file."""
        return [_as_log(name, file) for name, file in sorted(self._files.get(attempt, {}).items())]

    def attribution(self, attempt: AttemptId) -> tuple[Attribution, tuple[Evidence, ...]]:
        """What failed in an attempt, by all that was observed so far."""
        return diagnose(
            self.logs(attempt),
            self._signatures,
            self._progress,
            self._taxonomy,
            scheduler=self._scheduler.get(attempt),
            rank_to_node=self._placed.get(attempt),
            attributor=self._attributor,
            placement=self._placements.get(attempt),
        )

    def anomaly(self, attempt: AttemptId, at: datetime) -> Anomaly | None:
        """A crash anomaly if the logs now claim a failure; `onset_at` is the root line's own time."""
        said, _ = self.attribution(attempt)
        if said.failure == NO_FAILURE or said.root is None:
            return None
        onset = said.root.at if said.root.at is not None and said.root.at <= at else at
        return Anomaly(
            attempt=attempt,
            kind=AnomalyKind.CRASH,
            detector=self.name,
            onset_at=onset,
            detected_at=at,
            score=1.0,
            evidence=(LogRef(file=said.root.where.file, line=said.root.where.line),),
            summary=said.summary,
        )

    def forget(self, attempt: AttemptId) -> None:
        for store in (self._files, self._scheduler, self._placed, self._placements):
            store.pop(attempt, None)


def _frames(block: Sequence[bytes], start: int) -> set[int]:
    """Which of some lines belong to a traceback by their form; most blocks hold none."""
    joined = b"\n".join(block)
    if b"Traceback (" not in joined and b'File "' not in joined:
        return set()
    return {i for i, line in enumerate(block, start) if b"Traceback (" in line or b'File "' in line}


def _claiming(signatures: RuleSet) -> frozenset[int]:
    """The signatures, by index, that claim or support a failure, or excuse one."""
    return frozenset(i for i, one in enumerate(signatures.signatures) if one.role is not Role.BENIGN or one.excuses)


def _as_log(name: str, file: _File) -> LogText:
    kept: dict[int, LogLine] = {}
    for line in _in_order(file):
        kept[line.number] = line
    lines = [kept[n] for n in sorted(kept)]
    first = lines[0]
    return LogText(
        name,
        first.stream,
        [line.text.encode("utf-8", "surrogateescape") for line in lines],
        [line.number for line in lines],
        first.node,
        first.rank,
    )


def _in_order(file: _File) -> Iterable[LogLine]:
    yield from file.head
    yield from file.marked
    yield from file.tail
