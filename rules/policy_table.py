# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From the texts of taxonomy.yaml and policy.yaml to the kernel's tables, with every fault in its place."""

from __future__ import annotations

import difflib
import hashlib
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from relight.policy_terms import (
    BackOff,
    BlackHole,
    Ceilings,
    ClassRule,
    Deadlines,
    Limits,
    PolicyEntry,
    PolicyTable,
    Terms,
)
from relight.types import Action, Failure, FailureClass, FailureName, Mode, Taxonomy
from relight.watching import TERM_RANGE_S, HangPolicy, HangTerms, SlowTerms
from rules.problems import Problem, RulesInvalid
from rules.source import Path, Source, read_source

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{1,63}$")]
Retries = Annotated[int, Field(strict=True, ge=0, le=10)]
Count = Annotated[int, Field(strict=True, ge=1, le=100_000)]
Budget = Annotated[int, Field(strict=True, ge=0, le=100_000)]
Ratio = Annotated[float, Field(strict=True, ge=0, le=1)]
Flag = Annotated[bool, Field(strict=True)]
Pause = Annotated[int, Field(strict=True, ge=TERM_RANGE_S[0], le=TERM_RANGE_S[1])]
Label = Annotated[str, StringConstraints(min_length=1, max_length=200)]
Seconds = Annotated[int, Field(strict=True, ge=1, le=604_800)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _FailureText(_Strict):
    failure_class: FailureClass = Field(alias="class")
    meaning: str = Field(min_length=3, max_length=400)
    action: Action
    retries: Retries
    depth: int = Field(strict=True, ge=0, le=99)
    notes: str = Field("", max_length=400)
    explains: tuple[Name, ...] = ()
    takes_place: Flag = False
    waits_for_place: Flag = False
    may_be_local: Flag = False


class _TaxonomyText(_Strict):
    version: Literal[1] = Field(alias="schema")
    failures: dict[Name, _FailureText] = Field(min_length=1)


class _CeilingsText(_Strict):
    same_root: Retries = 3
    no_progress: Retries = 3
    restarts_per_day: Budget = 20
    restarts_total: Budget = 500


class _LimitsText(_Strict):
    nodes_per_decision: Annotated[int, Field(strict=True, ge=0, le=16)] = 2
    hourly_ratio: Ratio = 0.05
    hourly_nodes: Budget = 2
    standing_ratio: Ratio = 0.10
    standing_nodes: Budget = 1
    correlated_nodes: Count = 3
    scarce_spares: Budget = 1
    cluster_witnesses: Annotated[int, Field(strict=True, ge=1, le=10)] = 2
    breaker_workloads: Annotated[int, Field(strict=True, ge=0, le=10_000)] = 3
    breaker_window_s: Seconds = 300
    cluster_restarts_per_hour: Budget = 60
    user_restarts_per_hour: Budget = 20


class _TermsText(_Strict):
    ttl_h: Annotated[int, Field(strict=True, ge=1, le=168)] = 24
    ttl_max_h: Annotated[int, Field(strict=True, ge=1, le=168)] = 168


class _BlackHoleText(_Strict):
    quick_s: Seconds = 60
    tries: Count = 2
    workloads: Count = 2


class _DeadlinesText(_Strict):
    decide_s: Seconds = 60
    hard_s: Seconds = 240
    stop_grace_s: Seconds = 1800


class _BackOffText(_Strict):
    first_s: Annotated[int, Field(strict=True, ge=0, le=86_400)] = 60
    max_s: Annotated[int, Field(strict=True, ge=0, le=86_400)] = 3600


class _SlownessText(_Strict):
    may_exclude: Flag = False
    restart_s: Seconds = 900
    margin: Annotated[float, Field(strict=True, ge=1, le=100)] = 2.0
    boundary_s: Seconds = 120


class _HangText(_Strict):
    at_least_s: Pause | None = None
    at_most_s: Pause | None = None
    start_s: Pause | None = None

    @property
    def terms(self) -> HangTerms:
        return HangTerms(at_least_s=self.at_least_s, at_most_s=self.at_most_s, start_s=self.start_s)


class _HangsText(_HangText):
    partitions: dict[Label, _HangText] = Field(default_factory=dict)
    workloads: dict[Label, _HangText] = Field(default_factory=dict)


class _ClassText(_Strict):
    action: Action | None = None
    retries: Retries | None = None


class _EntryText(_Strict):
    action: Action | None = None
    retries: Retries | None = None
    counts: Flag = True
    respects_user: Flag = False
    restart_after_progress: Flag = False
    restart_if_worked_before: Flag = False
    restart_unless_requeued: Flag = False
    stop_without_progress: Flag = False
    observes_only: Flag = False
    escalate_after: Annotated[int, Field(strict=True, ge=0, le=10)] = 0
    escalate_by: Literal["gpu", "node"] = "gpu"
    exclude_on_second_source: Flag = False
    is_black_hole: Flag = False
    is_domain_wide: Flag = False


class _PolicyText(_Strict):
    version: Literal[1] = Field(alias="schema")
    ceilings: _CeilingsText = _CeilingsText()
    limits: _LimitsText = _LimitsText()
    exclusions: _TermsText = _TermsText()
    black_hole: _BlackHoleText = _BlackHoleText()
    deadlines: _DeadlinesText = _DeadlinesText()
    back_off: _BackOffText = _BackOffText()
    slowness: _SlownessText = _SlownessText()
    hangs: _HangsText = _HangsText()
    mode_caps: dict[Action, Mode] = Field(default_factory=dict)
    classes: dict[FailureClass, _ClassText] = Field(default_factory=dict)
    failures: dict[Name, _EntryText] = Field(default_factory=dict)


def load_taxonomy(file: str, text: str) -> Taxonomy:
    """Every failure by name.

    Errors: RulesInvalid with every problem, each with file, line, column and a way to mend it.
    """
    source = read_source(file, text)
    parsed = _parsed(source, _TaxonomyText)
    for name, said in parsed.failures.items():
        for index, other in enumerate(said.explains):
            if other not in parsed.failures:
                path: Path = ("failures", name, "explains", index)
                source.problems.append(_unknown(source, path, other, parsed.failures))
    _raise_any(source)
    return {
        FailureName(name): Failure(
            name=FailureName(name),
            failure_class=said.failure_class,
            meaning=said.meaning,
            action=said.action,
            retries=said.retries,
            depth=said.depth,
            notes=said.notes,
            explains=tuple(FailureName(e) for e in said.explains),
            takes_place=said.takes_place,
            waits_for_place=said.waits_for_place,
            may_be_local=said.may_be_local,
        )
        for name, said in parsed.failures.items()
    }


def load_policy(file: str, text: str, taxonomy: Taxonomy) -> PolicyTable:
    """The operator's table over the taxonomy; `version` is the digest of the text.

    Errors: RulesInvalid with every problem, each with file, line, column and a way to mend it.
    """
    source = read_source(file, text)
    parsed = _parsed(source, _PolicyText)
    source.problems += _contradictions(source, parsed, taxonomy)
    _raise_any(source)
    classes = {c: ClassRule(action=said.action, retries=said.retries) for c, said in parsed.classes.items()}
    return PolicyTable(
        failures={
            name: _entry(failure, classes.get(failure.failure_class, ClassRule()), parsed.failures.get(name))
            for name, failure in taxonomy.items()
        },
        classes=classes,
        ceilings=Ceilings(**parsed.ceilings.model_dump()),
        limits=Limits(**parsed.limits.model_dump()),
        terms=Terms(
            ttl=timedelta(hours=parsed.exclusions.ttl_h),
            ttl_max=timedelta(hours=parsed.exclusions.ttl_max_h),
        ),
        black_hole=BlackHole(**parsed.black_hole.model_dump()),
        deadlines=Deadlines(**parsed.deadlines.model_dump()),
        back_off=BackOff(**parsed.back_off.model_dump()),
        mode_caps=dict(parsed.mode_caps),
        slowness=SlowTerms(**parsed.slowness.model_dump()),
        hangs=HangPolicy(
            default=parsed.hangs.terms,
            partitions={name: said.terms for name, said in parsed.hangs.partitions.items()},
            workloads={name: said.terms for name, said in parsed.hangs.workloads.items()},
        ),
        version="sha256:" + hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16],
    )


def _entry(failure: Failure, rule: ClassRule, said: _EntryText | None) -> PolicyEntry:
    """Taxonomy, then class, then failure: the later wins where it says anything."""
    flags = (said or _EntryText()).model_dump(exclude={"action", "retries"})
    entry = PolicyEntry(action=failure.action, retries=failure.retries, **flags)
    for over in (rule, said):
        if over is not None:
            entry = replace(
                entry,
                action=entry.action if over.action is None else over.action,
                retries=entry.retries if over.retries is None else over.retries,
            )
    return entry


def _contradictions(source: Source, parsed: _PolicyText, taxonomy: Taxonomy) -> list[Problem]:
    problems = [
        _unknown(source, ("failures", name), name, taxonomy)
        for name in parsed.failures
        if FailureName(name) not in taxonomy
    ]
    ceiling = parsed.ceilings.same_root
    groups = (("failures", parsed.failures), ("classes", parsed.classes))
    problems += [
        source.problem(
            (group, str(name), "retries"),
            f"retries {said.retries} exceed ceilings.same_root {ceiling}",
            f"use at most {ceiling}, or raise the ceiling",
        )
        for group, entries in groups
        for name, said in entries.items()
        if said.retries is not None and said.retries > ceiling
    ]
    for path, small, large, what in (
        (("exclusions", "ttl_h"), parsed.exclusions.ttl_h, parsed.exclusions.ttl_max_h, "ttl_max_h"),
        (("deadlines", "decide_s"), parsed.deadlines.decide_s, parsed.deadlines.hard_s, "hard_s"),
        (("back_off", "first_s"), parsed.back_off.first_s, parsed.back_off.max_s, "max_s"),
    ):
        if small > large:
            problems.append(
                source.problem(path, f"{path[-1]} {small} is above {what} {large}", f"lower it or raise {what}")
            )
    return problems + _hang_contradictions(source, parsed.hangs)


def _hang_contradictions(source: Source, said: _HangsText) -> list[Problem]:
    levels: list[tuple[Path, _HangText]] = [(("hangs",), said)]
    levels += [(("hangs", "partitions", name), one) for name, one in said.partitions.items()]
    levels += [(("hangs", "workloads", name), one) for name, one in said.workloads.items()]
    return [
        source.problem((*path, "at_least_s"), fault, "lower it or raise at_most_s")
        for path, one in levels
        for fault in one.terms.faults()
    ]


def _unknown(source: Source, path: Path, name: str, known: Taxonomy | dict[str, _FailureText]) -> Problem:
    near = difflib.get_close_matches(name, [str(k) for k in known], 1)
    fix = f"did you mean {near[0]!r}?" if near else "use a name of taxonomy.yaml"
    return source.problem(path, f"no failure is called {name!r}", fix)


# ------------------------------------------------------------------ faults in words

_Text = TypeVar("_Text", bound=BaseModel)


def _parsed(source: Source, model: type[_Text]) -> _Text:
    if source.value is None:
        raise RulesInvalid(tuple(source.problems))
    if not isinstance(source.value, dict):
        source.problems.append(source.problem((), "the file must be a mapping", "start it with `schema: 1`"))
        raise RulesInvalid(tuple(source.problems))
    try:
        return model.model_validate(source.value)
    except ValidationError as error:
        for fault in error.errors():
            path = tuple(p for p in fault["loc"] if p != "[key]")
            what, fix = _in_words(fault["type"], fault["msg"], path, fault.get("input"), model)
            source.problems.append(source.problem(path, what, fix))
        raise RulesInvalid(tuple(sorted(source.problems))) from None


def _in_words(kind: str, message: str, path: Path, value: object, model: type[BaseModel]) -> tuple[str, str]:
    key = str(path[-1]) if path else "-"
    if kind == "extra_forbidden":
        near = difflib.get_close_matches(key, _keys(model), 1)
        return f"unknown key {key!r}", f"did you mean {near[0]!r}?" if near else "remove it"
    if kind == "missing":
        return f"{key!r} is missing", "add it"
    if kind in {"enum", "literal_error"}:
        return f"{value!r} is not allowed", message.replace("Input should be ", "use ")
    if kind == "string_pattern_mismatch":
        return f"{value!r} is not a name", "use lower-case letters, digits and underscores"
    if kind.startswith(("greater_than", "less_than")):
        return f"{value!r} is out of range", message.replace("Input should be ", "use a value ")
    return f"{value!r}"[:80] + " does not fit", message[:1].lower() + message[1:]


def _keys(model: type[BaseModel]) -> list[str]:
    """Every key that the file may hold, at any depth."""
    found: dict[str, None] = {}
    for one in (model, *(m for m in _Strict.__subclasses__() if m is not model)):
        found |= dict.fromkeys(f.alias or n for n, f in one.model_fields.items())
    return list(found)


def _raise_any(source: Source) -> None:
    if source.problems:
        raise RulesInvalid(tuple(sorted(source.problems)))
