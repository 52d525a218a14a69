# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Attributions, facts and histories for the policy tests, with defaults that change nothing."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from relight.policy import Facts, History, PolicyTable, Verdict, decide
from relight.progress import Ledger
from relight.types import (
    Attribution,
    Evidence,
    EvidenceStatus,
    FailureName,
    LogRef,
    Mode,
    NodeName,
    Progress,
    Role,
    Severity,
    SignatureId,
    Stream,
    Suspect,
)
from rules.policy_table import load_policy, load_taxonomy

RULES = Path(__file__).resolve().parents[2] / "rules"
TAXONOMY = load_taxonomy("rules/taxonomy.yaml", (RULES / "taxonomy.yaml").read_text("utf-8"))
TABLE: PolicyTable = load_policy("rules/policy.yaml", (RULES / "policy.yaml").read_text("utf-8"), TAXONOMY)

AT = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOUR = timedelta(hours=1)
ACT = {"cluster": Mode.ACT}


def nodes(*names: str) -> tuple[NodeName, ...]:
    return tuple(NodeName(n) for n in names)


def line(failure: FailureName, text: str, node: str | None = None) -> Evidence:
    return Evidence(
        signature=SignatureId("test.root"),
        title="a root",
        failure=failure,
        role=Role.ROOT,
        severity=Severity.ERROR,
        where=LogRef(file="job.log", line=1),
        order=1,
        stream=Stream.APPLICATION,
        text=text,
        node=NodeName(node) if node else None,
    )


def blame(failure: str, *suspects: Suspect, text: str = "it broke", **said: Any) -> Attribution:
    """An established attribution of the taxonomy's class."""
    name = FailureName(failure)
    fields: dict[str, Any] = {
        "failure_class": TAXONOMY[name].failure_class,
        "evidence_status": EvidenceStatus.ESTABLISHED,
        "root": line(name, text),
        **said,
    }
    return Attribution(failure=name, suspects=tuple(suspects), **fields)


def suspect(node: str, *, gpu: str | None = None, independent: bool = False, score: float = 1.0) -> Suspect:
    return Suspect(node=NodeName(node), gpu=gpu, is_independent=independent, score=score)


def judge(
    attribution: Attribution,
    *,
    history: History | None = None,
    facts: Facts | None = None,
    table: PolicyTable = TABLE,
    at: datetime = AT,
) -> Verdict:
    return decide(attribution, history or History(), facts or Facts(modes=ACT), table, at=at)


def failed_before(attribution: Attribution, times: int, progress: Progress = Progress.NO) -> Ledger:
    """The ledger of a workload that met this attribution `times` before, an hour apart."""
    ledger = Ledger()
    for n in range(times, 0, -1):
        ledger = ledger.after(attribution, progress, AT - n * HOUR)
    return ledger


def excluded(verdict: Verdict) -> tuple[str, ...]:
    return tuple(str(e.node) for e in verdict.exclusions)
