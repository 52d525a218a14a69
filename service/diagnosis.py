# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A verdict on the logs of one attempt: attribution, then policy, without any memory of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from detectors.crash import diagnose
from detectors.first_seen import FirstSeen, first_seen_before
from detectors.log_text import LogText
from relight.policy import Facts, History, PolicyTable, Verdict, decide
from relight.types import Action, Attribution, Evidence, FailureClass, Mode, Taxonomy
from rules.match import RuleSet

if TYPE_CHECKING:  # a diagnosis without a model must not pay for scikit-learn
    from models.attribution_model import Hint
    from service.model_hints import ModelHints

# Without a scheduler's word on it, a diagnosis assumes what a controller would have to check.
_ASSUMED_NODES = 1_000
_ALL = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What failed and what to do about it."""

    attribution: Attribution
    verdict: Verdict
    evidence: tuple[Evidence, ...]
    first_seen: tuple[FirstSeen, ...] = ()
    hint: Hint | None = None

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes to keep out of the next attempt: none unless the action is to exclude."""
        if self.verdict.action is not Action.RESTART_EXCLUDING:
            return ()
        return tuple(x.node for x in self.verdict.exclusions)

    @property
    def culprit_nodes(self) -> tuple[str, ...]:
        """Nodes to keep out, else the nodes on which the culprit ranks are known to have run."""
        return self.nodes or tuple(self.attribution.rank_nodes)


@dataclass(frozen=True, slots=True)
class Diagnostician:
    """Rules, taxonomy and policy, ready to judge any number of cases; `hints` speak where the rules are silent."""

    signatures: RuleSet
    progress: RuleSet
    taxonomy: Taxonomy
    policy: PolicyTable
    hints: ModelHints | None = None

    def judge(self, logs: tuple[LogText, ...], *, at: datetime) -> Diagnosis:
        """Judge the last attempt in these logs, as of `at`."""
        attribution, evidence = diagnose(logs, self.signatures, self.progress, self.taxonomy)
        facts = Facts(
            progress=attribution.made_progress,
            requested_nodes=1,
            modes={"diagnosis": Mode.ACT},
        )
        history = History(cluster_nodes=_ASSUMED_NODES, partition_nodes=_ASSUMED_NODES, eligible_nodes=_ASSUMED_NODES)
        verdict = decide(attribution, history, facts, _unlimited(self.policy), at=at)
        return Diagnosis(
            attribution=attribution,
            verdict=verdict,
            evidence=evidence,
            first_seen=_first_seen(attribution, logs),
            hint=self.hints.hint(logs, evidence, attribution, self.taxonomy) if self.hints is not None else None,
        )


def _first_seen(attribution: Attribution, logs: Sequence[LogText]) -> tuple[FirstSeen, ...]:
    """Where no cause is known, what the log began to say only then."""
    root = attribution.root
    if root is None or attribution.failure_class is not FailureClass.UNKNOWN:
        return ()
    log = next((log for log in logs if log.name == root.where.file), None)
    return first_seen_before(log, root.where.line) if log is not None else ()


def _unlimited(policy: PolicyTable) -> PolicyTable:
    """The site's policy without its blast radius, which protects a running cluster: a diagnosis names all nodes."""
    wide = replace(
        policy.limits, nodes_per_decision=_ALL, hourly_nodes=_ALL, standing_nodes=_ALL, correlated_nodes=_ALL + 1
    )
    return replace(policy, limits=wide)


def as_prediction(name: str, said: Diagnosis) -> Mapping[str, Any]:
    """One line of a scorer's predictions file."""
    root = said.attribution.root
    action = said.verdict.action
    return {
        "id": name,
        "failure": said.attribution.failure,
        "class": said.attribution.failure_class.value,
        "action": "continue" if action is Action.NO_DECISION else action.value,
        "root_cause": None if root is None else {"file": root.where.file, "line": root.where.line},
        "ranks": list(said.attribution.ranks),
        "nodes": list(said.culprit_nodes),
    }


def as_json(name: str, said: Diagnosis) -> Mapping[str, Any]:
    """The whole diagnosis, for programs."""
    a, v = said.attribution, said.verdict
    return {
        **as_prediction(name, said),
        "exclude_nodes": list(said.nodes),
        "evidence_status": a.evidence_status.value,
        "summary": a.summary,
        "root_text": a.root.text if a.root is not None else None,
        "signature": a.root.signature if a.root is not None else None,
        "does_not_prove": a.root.does_not_prove if a.root is not None else None,
        "suspects": [
            {
                "node": s.node,
                "rank": s.rank,
                "gpu": s.gpu,
                "score": s.score,
                "independent": s.is_independent,
                "reason": s.reason,
            }
            for s in a.suspects
        ],
        "last_step": a.last_step,
        "made_progress": a.made_progress.value,
        "reason": v.reason,
        "decision_basis": list(v.decision_basis),
        "retry_outlook": v.retry_outlook.value,
        "counterfactual": v.counterfactual,
        "first_seen": [
            {"file": x.where.file, "line": x.where.line, "count": x.count, "text": x.text} for x in said.first_seen
        ],
        "losers": [
            {
                "signature": x.signature,
                "failure": x.failure,
                "file": x.where.file,
                "line": x.where.line,
                "reason": x.reason,
            }
            for x in a.losers
        ],
        **({"hint": said.hint.as_json()} if said.hint is not None else {}),
    }
