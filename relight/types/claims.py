# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What is concluded: evidence, suspects, attributions, anomalies and exclusions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from relight.types.observations import LogRef
from relight.types.vocabulary import (
    Action,
    AnomalyKind,
    AttemptId,
    Captures,
    EvidenceStatus,
    FailureClass,
    FailureName,
    NodeName,
    Progress,
    Rank,
    Role,
    Scope,
    Severity,
    SignatureId,
    Stream,
    Tier,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A line that a signature (or a parsed traceback) explains.

    `order` is the position in the attempt's whole input: comparable within one file, and across files
    only where `at` is known. `is_survived`: training went on after it; `is_after_completion`: the run had
    said before that it was done; `steps_before`: how many
    steps the writer had completed by then, as far as the log shows. `rank` and `node` are those of the
    writer, `captures` hold what the line says of others. `count` is how many such lines were folded into
    this one, `last_order` where the last of them stood.
    """

    signature: SignatureId
    title: str
    failure: FailureName
    role: Role
    severity: Severity
    where: LogRef
    order: int
    stream: Stream
    text: str
    at: datetime | None = None
    rank: Rank | None = None
    node: NodeName | None = None
    captures: Captures = field(default_factory=dict)
    span: tuple[int, int] = (0, 0)
    count: int = 1
    last_order: int = 0
    action: Action | None = None
    accuses_node: str = "writer"
    does_not_prove: str = ""
    maturity: str = "stable"
    excuses: tuple[FailureName, ...] = ()
    excuses_earlier_only: bool = False
    is_survived: bool = False
    is_after_completion: bool = False
    steps_before: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """A node or rank accused of a failure, with the evidence that accuses it."""

    node: NodeName | None = None
    rank: Rank | None = None
    gpu: str | None = None
    score: float = 1.0
    is_independent: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loser:
    """A claim that did not become the root, and what it lost to."""

    signature: SignatureId
    failure: FailureName
    where: LogRef
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribution:
    """What failed, where, and how sure the evidence makes us.

    `suspects` are the nodes that the evidence accuses; `rank_nodes` are where the culprit ranks ran, which
    accuses nobody: a process that failed says little of its node.
    """

    failure: FailureName
    failure_class: FailureClass
    evidence_status: EvidenceStatus
    root: Evidence | None = None
    ranks: tuple[Rank, ...] = ()
    rank_nodes: tuple[NodeName, ...] = ()
    suspects: tuple[Suspect, ...] = ()
    losers: tuple[Loser, ...] = ()
    confirmations: tuple[LogRef, ...] = ()
    summary: str = ""
    action: Action | None = None
    attributor: str = "builtin"
    last_step: int | None = None
    made_progress: Progress = Progress.UNKNOWN

    @property
    def nodes(self) -> tuple[NodeName, ...]:
        return tuple(dict.fromkeys(s.node for s in self.suspects if s.node is not None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An entry of the taxonomy. `depth`: the lower explains the higher when both are in one log.

    `takes_place`: the node that the attempt ran on is gone or unusable after it; `waits_for_place`: nothing can be
    placed now, which such a loss explains; `may_be_local`: blames the program, but is the node's where all others
    got by (a mount, an image, a file).
    """

    name: FailureName
    failure_class: FailureClass
    meaning: str
    action: Action
    retries: int
    depth: int
    notes: str = ""
    explains: tuple[FailureName, ...] = ()
    takes_place: bool = False
    waits_for_place: bool = False
    may_be_local: bool = False


Taxonomy = Mapping[FailureName, Failure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Anomaly:
    """A claim of one detector; detection latency is `detected_at - onset_at`.

    `scope` is what is meant: `job` (culprit unknown), `rank`, `node` or `stage` (an imbalance of the
    workload, which accuses nobody). `detail` holds JSON values of the detector's own.
    """

    attempt: AttemptId
    kind: AnomalyKind
    detector: str
    onset_at: datetime
    detected_at: datetime
    score: float
    threshold: float | None = None
    baseline: float | None = None
    evidence: Sequence[LogRef] = ()
    summary: str = ""
    rank: Rank | None = None
    node: NodeName | None = None
    scope: str = Scope.JOB
    detail: Mapping[str, Any] = field(default_factory=dict)
    tier: Tier = Tier.CONFIRMED

    @property
    def latency_s(self) -> float:
        """Seconds from the onset to the claim; never below zero."""
        return max((self.detected_at - self.onset_at).total_seconds(), 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    """A node kept out of the next attempts until `expires_at`."""

    node: NodeName
    reason: str
    score: float
    expires_at: datetime
    scope: str = "workload"
    source: str = "policy"
