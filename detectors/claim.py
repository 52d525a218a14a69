# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A claim at a line: what a signature or a traceback says there, with the writer, the time and the node."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import hostlist

from detectors.lines import MAX_TEXT, Lines
from detectors.log_text import LogText
from detectors.node_context import node_about
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
from rules.match import Hit

_RECORDS = frozenset({Stream.SCHEDULER, Stream.KUBERNETES})
_NODE_LISTS = frozenset({"node", "nodes", "peer"})
_MAX_NODES = 512
_GLUED_RANK = re.compile(r"\[rank(\d+)\]:")


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What is said, without where and by whom."""

    signature: SignatureId
    title: str
    failure: FailureName
    role: Role
    does_not_prove: str
    severity: Severity = Severity.ERROR
    captures: Captures = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
    action: Action | None = None
    accuses: str = "none"
    maturity: str = "stable"
    excuses: tuple[FailureName, ...] = ()
    excuses_earlier_only: bool = False


def claim_of(hit: Hit) -> Claim:
    signature = hit.signature
    return Claim(
        signature=SignatureId(hit.name),
        title=hit.title,
        failure=FailureName(hit.failure),
        role=hit.role,
        does_not_prove=hit.does_not_prove,
        severity=hit.severity,
        captures=hit.captures,
        span=hit.span,
        action=hit.action,
        accuses=signature.accuses,
        maturity=hit.maturity,
        excuses=tuple(FailureName(f) for f in signature.excuses),
        excuses_earlier_only=signature.excuses_when == "earlier",
    )


def evidence_at(log: LogText, lines: Lines, index: int, base: int, claim: Claim) -> Evidence:
    """The claim as evidence: placed at line `index`, its order counted from `base`."""
    prefix = lines.prefix(index)
    captures, node = claim.captures, log.node or prefix.host
    if log.stream in _RECORDS and not captures.keys() & {"node", "nodes", "peer"}:
        about = node_about(lines[index].body, lambda back: lines[index - back].body if back <= index else None)
        if about is not None:
            node = node or about
            captures = {**captures, "node": about}
    for key in _NODE_LISTS & captures.keys():
        captures = {**captures, key: _expanded(str(captures[key]))}
    if prefix.group is not None and "group" not in captures:
        captures = {**captures, "group": prefix.group}
    return Evidence(
        signature=claim.signature,
        title=claim.title,
        failure=claim.failure,
        role=claim.role,
        severity=claim.severity,
        where=LogRef(file=log.name, line=log.numbers[index]),
        order=base + index,
        last_order=base + index,
        stream=log.stream,
        text=log.lines[index][:MAX_TEXT].decode("utf-8", "replace"),
        at=lines.near_time(index),
        rank=_writer(log, lines, index, claim),
        node=NodeName(node) if node is not None else None,
        captures=captures,
        span=claim.span,
        action=claim.action,
        accuses_node=claim.accuses,
        does_not_prove=claim.does_not_prove,
        maturity=claim.maturity,
        excuses=claim.excuses,
        excuses_earlier_only=claim.excuses_earlier_only,
    )


def _expanded(names: str) -> str:
    """A host list as names between commas: `n[01-03],x` is `n01,n02,n03,x`; what can't be one stays as it is."""
    if "[" not in names:
        return names
    try:
        return ",".join(hostlist.expand_hostlist(names)[:_MAX_NODES])
    except hostlist.BadHostlist:
        return names


def _writer(log: LogText, lines: Lines, index: int, claim: Claim) -> Rank | None:
    prefix = lines.prefix(index)
    if prefix.rank is not None:
        return prefix.rank
    glued = _GLUED_RANK.search(lines[index].body[: claim.span[0] + 1])
    if glued is not None:
        return Rank(int(glued.group(1)))
    if log.rank is not None:
        return log.rank
    # srun --label with one task a rank, or one rank a node
    return Rank(prefix.task) if prefix.task is not None and claim.captures.get("local_rank", 0) == 0 else None
