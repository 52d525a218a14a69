# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How good the attribution model is on failures of a kind that it has not seen: grouped cross-validation."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sklearn.metrics import precision_recall_fscore_support
from sklearn.model_selection import GroupKFold

from models.attribution_model import AttributionModel, AttributionSettings, Example, hashed_words
from relight.jsonform import canonical_json, encode

ALIKE = 0.8
LEAKS = 0.5
FOLDS = 8
WANTED_PRECISION = 0.9
_FEWEST = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """What a model that had not seen the case, nor any of its group, said of it."""

    case: str
    truth: str
    guess: str
    confidence: float
    truth_rank: int | None
    failure_rank: int | None
    fold: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """The figures of one cross-validation and the guesses behind them."""

    metrics: dict[str, Any]
    guesses: tuple[Guess, ...]
    threshold: float


def evaluate(
    examples: Sequence[Example],
    settings: AttributionSettings | None = None,
    *,
    by_family: bool = True,
    with_claims: bool = False,
    without_failure: bool = False,
    folds: int = FOLDS,
    done: Callable[[], object] = lambda: None,
) -> Scores:
    """Train on some groups of cases, ask about the others, until each was asked about once.

    Groups are whole families of failures (`by_family`) or single reports; cases of one source, or whose words
    agree by more than 0.8, are one group. Lines of signatures whose words agree by more than 0.5 with a line of
    an asked case are not learnt from; with `without_failure`, no line is that means the same failure.
    Without claims, the asked cases look as if no signature knew them. `done` is called after each fold.
    Errors: ValueError for fewer groups than two.
    """
    chosen = settings or AttributionSettings()
    ordered = sorted(examples, key=lambda one: (not one.is_case, one.name))
    cases = [one for one in ordered if one.is_case]
    lines = [(i, one, _words(one.features.words)) for i, one in enumerate(ordered) if not one.is_case]
    groups = group_cases(cases, by_family=by_family)
    kinds = len(set(groups))
    if kinds < 2:
        raise ValueError(f"need at least two groups of cases, got {kinds}; add cases of other families")
    counted = hashed_words(ordered, chosen)
    guesses: list[Guess] = []
    for fold, (learnt, asked) in enumerate(GroupKFold(min(folds, kinds)).split(cases, groups=groups)):
        questions = [cases[i] for i in asked]
        secret = {one.failure for one in questions} if without_failure else set()
        rows = [*learnt.tolist(), *_without_leaks(lines, questions, secret)]
        model = AttributionModel.fit([ordered[i] for i in rows], chosen, counted[rows])
        guesses += [replace(one, fold=fold) for one in guesses_of(model, questions, with_claims=with_claims)]
        done()
    threshold = confident_from(guesses)
    metrics = metrics_of(guesses, threshold)
    metrics.update(_confidence_elsewhere(guesses))
    metrics.update(cases=len(cases), signature_lines=len(lines), groups=kinds, folds=min(folds, kinds))
    return Scores(metrics=metrics, guesses=tuple(guesses), threshold=threshold)


def guesses_of(model: AttributionModel, cases: Sequence[Example], *, with_claims: bool = False) -> list[Guess]:
    """What a model says of labelled cases."""
    asked = [one.features if with_claims else one.features.without_claims() for one in cases]
    out = []
    for one, hint in zip(cases, model.hints(asked), strict=True):
        classes, failures = [name for name, _ in hint.classes], [name for name, _ in hint.failures]
        out.append(
            Guess(
                case=one.name,
                truth=one.failure_class,
                guess=hint.failure_class,
                confidence=hint.confidence,
                truth_rank=classes.index(one.failure_class) + 1 if one.failure_class in classes else None,
                failure_rank=failures.index(one.failure) + 1 if one.failure in failures else None,
            )
        )
    return out


def group_cases(cases: Sequence[Example], *, by_family: bool = True) -> list[int]:
    """A group number for each case: what shares a family, a source or nearly all words shares the number."""
    leader = list(range(len(cases)))

    def lead(i: int) -> int:
        while leader[i] != i:
            i = leader[i]
        return i

    first: dict[tuple[str, str], int] = {}
    words = [_words(one.features.words) for one in cases]
    for i, one in enumerate(cases):
        keys = [("source", one.source)] if "#" in one.source or "/" in one.source else []
        for key in [*keys, *([("family", one.family)] if by_family else [])]:
            leader[lead(i)] = lead(first.setdefault(key, i))
        for j in range(i):
            if _overlap(words[i], words[j]) > ALIKE:
                leader[lead(i)] = lead(j)
    return [lead(i) for i in range(len(cases))]


def confident_from(guesses: Sequence[Guess], precision: float = WANTED_PRECISION) -> float:
    """The lowest confidence down to which the guesses were right often enough all the way; above 1 if there is none.

    Stopping at the first cut that fails, and not at the last that holds, spares it a lucky stretch further down.
    """
    best, right = 1.01, 0
    for count, one in enumerate(sorted(guesses, key=lambda g: -g.confidence), 1):
        right += one.guess == one.truth
        if count < min(_FEWEST, len(guesses)):
            continue
        if right / count < precision:
            break
        best = one.confidence
    return best


def sureness(guesses: Sequence[Guess], threshold: float) -> dict[str, float | None]:
    """The share of guesses at or above a confidence, and how many of those were right."""
    sure = [one for one in guesses if one.confidence >= threshold]
    return {
        "share": _ratio(len(sure), len(guesses)),
        "precision": _ratio(sum(one.guess == one.truth for one in sure), len(sure)),
    }


def _confidence_elsewhere(guesses: Sequence[Guess]) -> dict[str, Any]:
    """The threshold's worth where it was not chosen: each fold is judged by that of the other folds."""
    sure = []
    for fold in {one.fold for one in guesses}:
        threshold = confident_from([one for one in guesses if one.fold != fold])
        sure += [one for one in guesses if one.fold == fold and one.confidence >= threshold]
    return {
        "confident_share": _ratio(len(sure), len(guesses)),
        "confident_precision": _ratio(sum(one.guess == one.truth for one in sure), len(sure)),
    }


def data_digest(examples: Sequence[Example]) -> str:
    """SHA-256 over all that the model is taught, in any order of the examples."""
    rows = sorted(canonical_json(encode(one)) for one in examples)
    return hashlib.sha256("\n".join(rows).encode("ascii")).hexdigest()


def metrics_of(guesses: Sequence[Guess], threshold: float) -> dict[str, Any]:
    """Accuracy, macro-F1 and the rest, beside what always saying the commonest class would reach.

    Errors: ValueError for no guesses at all.
    """
    if not guesses:
        raise ValueError("need at least one labelled case to score, got none")
    truths, said = [g.truth for g in guesses], [g.guess for g in guesses]
    labels = sorted(set(truths))
    precision, recall, f1, support = precision_recall_fscore_support(truths, said, labels=labels, zero_division=0)
    total = len(guesses)
    commonest = Counter(truths).most_common(1)[0][1]
    return {
        "accuracy": _ratio(sum(g.guess == g.truth for g in guesses), total),
        "top3": _ratio(sum(g.truth_rank is not None and g.truth_rank <= 3 for g in guesses), total),
        "macro_f1": round(float(f1.mean()), 3),
        "majority_accuracy": _ratio(commonest, total),
        "failure_top1": _ratio(sum(g.failure_rank == 1 for g in guesses), total),
        "failure_top3": _ratio(sum(g.failure_rank is not None and g.failure_rank <= 3 for g in guesses), total),
        "at_threshold": sureness(guesses, threshold),
        "classes": {
            label: {"precision": round(float(p), 3), "recall": round(float(r), 3), "cases": int(n)}
            for label, p, r, n in zip(labels, precision, recall, support, strict=True)
        },
    }


def _without_leaks(
    lines: Sequence[tuple[int, Example, frozenset[str]]], asked: Sequence[Example], secret: Collection[str]
) -> list[int]:
    """The rows of the lines that may be learnt: none like a line of an asked case, none of a secret failure."""
    by_word: dict[str, set[int]] = defaultdict(set)
    spoken = [_words(line) for one in asked for line in one.features.words.split("\n")]
    for number, words in enumerate(spoken):
        for word in words:
            by_word[word].add(number)
    kept = []
    for row, one, words in lines:
        near = {number for word in words for number in by_word.get(word, ())}
        if one.failure not in secret and not any(_overlap(words, spoken[number]) > LEAKS for number in near):
            kept.append(row)
    return kept


def _words(text: str) -> frozenset[str]:
    return frozenset(text.lower().split())


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    both = len(a & b)
    return both / (len(a) + len(b) - both) if both else 0.0


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 3) if whole else None
