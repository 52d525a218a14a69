# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How right a replay was, where a label stands beside a case; nothing that decides ever reads one."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

LABEL_FILE = "label.json"


class LabelUnreadable(ValueError):
    """A label that is there and can't be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What a person found out about a case. `gpus` scales the cost of a wrong word, 1 if unknown."""

    failure: str
    action: str
    acceptable: frozenset[str]
    nodes: frozenset[str] | None = None
    gpus: int = 1


def read_label(folder: Path) -> Label | None:
    """The label beside a case, or None. Errors: LabelUnreadable naming the file and the fault."""
    path = folder / LABEL_FILE
    if not path.is_file():
        return None
    try:
        said = orjson.loads(path.read_bytes())
        nodes = said.get("culprit_nodes")
        return Label(
            failure=str(said["failure"]),
            action=str(said["action"]),
            acceptable=frozenset({str(said["action"]), *map(str, said.get("also_acceptable") or ())}),
            nodes=frozenset(map(str, nodes)) if nodes is not None else None,
            gpus=int(said.get("gpus") or 1),
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
        raise LabelUnreadable(f"{path}: {type(why).__name__}: {why}; need failure and action") from why


@dataclass(slots=True)
class Tally:
    """Counts for one signature, or for all."""

    said: int = 0
    right: int = 0
    false_stops: int = 0
    missed_stops: int = 0
    false_exclusions: int = 0
    actions_right: int = 0
    delays: list[float] = field(default_factory=list)
    gpu_h_lost: float = 0.0

    @property
    def precision(self) -> float | None:
        return self.right / self.said if self.said else None

    def as_json(self) -> dict[str, Any]:
        low, high = interval(self.right, self.said)
        return {
            "cases": self.said, "right": self.right, "precision": self.precision, "precision_95": [low, high],
            "actions_right": self.actions_right, "false_stops": self.false_stops, "missed_stops": self.missed_stops,
            "false_exclusions": self.false_exclusions, "delay_s_median": median(self.delays),
            "gpu_hours_lost": round(self.gpu_h_lost, 3),
        }  # fmt: skip


@dataclass(slots=True)
class Score:
    """The labelled part of a replay: one tally for each signature that spoke, and one for all."""

    total: Tally = field(default_factory=Tally)
    by_signature: dict[str, Tally] = field(default_factory=lambda: defaultdict(Tally))
    actions: Counter[tuple[str, str]] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    def add(self, said: Mapping[str, Any], label: Label) -> None:
        """A false stop costs what a restart would have trained: at the least, the time of the run."""
        self.actions[label.action, said["action"]] += 1
        names = set(said["nodes"])
        is_right, is_fit = said["failure"] == label.failure, said["action"] in label.acceptable
        is_false_stop = said["action"] == "stop" and "stop" not in label.acceptable
        is_false_exclusion = bool(names) and label.nodes is not None and not names <= label.nodes
        for tally in (self.total, self.by_signature[said["signature"] or "(none)"]):
            tally.said += 1
            tally.right += is_right
            tally.actions_right += is_fit
            tally.false_stops += is_false_stop
            tally.missed_stops += label.acceptable == {"stop"} and said["action"] != "stop"
            tally.false_exclusions += is_false_exclusion
            if said["delay_s"] is not None:
                tally.delays.append(said["delay_s"])
            if not is_fit and said.get("runtime_s"):
                tally.gpu_h_lost += said["runtime_s"] / 3_600 * label.gpus
        if not is_fit or not is_right:
            wanted = f"{label.failure} → {label.action}"
            self.wrong.append((said["name"], f"{said['failure']} → {said['action']}, labelled {wanted}"))

    def as_json(self) -> dict[str, Any]:
        rows = sorted(self.by_signature.items(), key=lambda one: (-one[1].said, one[0]))
        return {
            "total": self.total.as_json(),
            "by_signature": {name: tally.as_json() for name, tally in rows},
            "actions": [{"labelled": a, "said": b, "cases": n} for (a, b), n in sorted(self.actions.items())],
            "wrong": [{"name": name, "what": what} for name, what in self.wrong],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A case on which two replays differ."""

    name: str
    before: str
    after: str


def changes(before: Iterable[Mapping[str, Any]], after: Iterable[Mapping[str, Any]]) -> list[Change]:
    """What differs in failure, action or nodes; a case that only one of them has is a difference too."""
    old, new = ({str(one["name"]): _said(one) for one in side} for side in (before, after))
    return [
        Change(name=name, before=old.get(name, "not there"), after=new.get(name, "not there"))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


def _said(one: Mapping[str, Any]) -> str:
    nodes = f" without {', '.join(sorted(one['nodes']))}" if one.get("nodes") else ""
    return f"{one['failure']} → {one['action']}{nodes}"


def interval(right: int, of: int) -> tuple[float | None, float | None]:
    """Wilson's 95 % interval of a share."""
    if not of:
        return None, None
    z, share = 1.96, right / of
    middle = (share + z * z / (2 * of)) / (1 + z * z / of)
    half = z / (1 + z * z / of) * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return round(max(middle - half, 0.0), 4), round(min(middle + half, 1.0), 4)


def median(values: Sequence[float]) -> float | None:
    ordered = sorted(values)
    if not ordered:
        return None
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
