# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From labelled examples to a sealed artefact, and what speaks against it beside the model in use."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from models.artefact import CARD, FEATURES, GUESSES, MODEL, ArtefactRefused, Manifest, Sealed, seal
from models.attribution_model import (
    NAME,
    AttributionModel,
    AttributionSettings,
    Example,
    libraries,
    settings_from_json,
)
from models.attribution_scores import FOLDS, Guess, Scores, data_digest, evaluate, metrics_of, sureness
from relight.jsonform import MalformedJson, decode, encode

# Each view of the same cases: what it withholds, and what its figures are good for.
VIEWS: dict[str, tuple[str, dict[str, bool]]] = {
    "unseen_family": ("no case of its family was learnt, no signature knew its lines", {}),
    "unseen_failure": ("as above, and no line of its failure was learnt either", {"without_failure": True}),
    "unseen_report": ("cases of its family were learnt, its own report was not", {"by_family": False}),
    "claims_known": ("as the first, with what signatures claim: flattered, they were written for these cases",
                     {"with_claims": True}),
}  # fmt: skip
JUDGED_BY = "unseen_family"
_KEPT = 0.02


def python_version() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def train(
    examples: Sequence[Example],
    *,
    version: str,
    at: datetime,
    settings: AttributionSettings | None = None,
    views: Sequence[str] = tuple(VIEWS),
    done: Callable[[], object] = lambda: None,
) -> Sealed:
    """Cross-validate, fit on everything, write the card and seal it all; `done` is called after each of `rounds`.

    Errors: ValueError for too few cases or classes; ArtefactRefused for a version of another form.
    """
    chosen = settings or AttributionSettings()
    scores = {
        view: evaluate(examples, chosen, **VIEWS[view][1], done=done) for view in dict.fromkeys((JUDGED_BY, *views))
    }
    judged = scores[JUDGED_BY]
    for one in scores.values():
        one.metrics["at_threshold"] = sureness(one.guesses, judged.threshold)
    model = AttributionModel.fit(examples, chosen)
    done()
    manifest = Manifest(
        name=NAME,
        version=version,
        created_at=at,
        python=python_version(),
        libraries=libraries(),
        data_digest=data_digest(examples),
        examples=len(examples),
        threshold=judged.threshold,
        metrics={view: one.metrics for view, one in scores.items()},
        files={},
    )
    files = {
        MODEL: model.to_bytes(),
        FEATURES: _json(chosen.as_json()),
        GUESSES: _json({"guesses": [encode(one) for one in judged.guesses]}),
        CARD: card(manifest, scores).encode("utf-8"),
    }
    return seal(manifest, files)


def rounds(views: Sequence[str] = tuple(VIEWS)) -> int:
    """How often a model is fitted in `train`, with cases enough: the folds of each view, and once on everything."""
    return FOLDS * len(dict.fromkeys((JUDGED_BY, *views))) + 1


def model_of(sealed: Sealed) -> AttributionModel:
    """UNPICKLES: only for an artefact that a person has promoted or named.

    Errors: ModelUnreadable for bytes or features that are not this program's.
    """
    return AttributionModel.from_bytes(sealed.files[MODEL], settings_from_json(json.loads(sealed.files[FEATURES])))


def guesses_in(sealed: Sealed) -> tuple[Guess, ...]:
    """The guesses of the cross-validation that the artefact was judged by. Errors: ArtefactRefused."""
    try:
        return tuple(decode(Guess, one) for one in json.loads(sealed.files[GUESSES])["guesses"])
    except (KeyError, TypeError, ValueError, MalformedJson) as why:
        raise ArtefactRefused(f"{sealed.manifest.reference}: {GUESSES} can't be read ({why}); train it anew") from why


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Champion and challenger on the cases that both were asked about, each unseen when it was asked."""

    cases: int
    champion: Mapping[str, Any]
    challenger: Mapping[str, Any]
    won: tuple[str, ...]
    lost: tuple[str, ...]


def compare(champion: Sealed, challenger: Sealed) -> Comparison:
    """Errors: ArtefactRefused if they share no case with the same label."""
    before = {one.case: one for one in guesses_in(champion)}
    after = {one.case: one for one in guesses_in(challenger)}
    shared = sorted(case for case in before.keys() & after.keys() if before[case].truth == after[case].truth)
    if not shared:
        raise ArtefactRefused(
            f"{champion.manifest.reference} and {challenger.manifest.reference} share no case; train both on some"
        )
    was = {case: before[case].guess == before[case].truth for case in shared}
    is_now = {case: after[case].guess == after[case].truth for case in shared}
    return Comparison(
        cases=len(shared),
        champion=metrics_of([before[case] for case in shared], champion.manifest.threshold),
        challenger=metrics_of([after[case] for case in shared], challenger.manifest.threshold),
        won=tuple(case for case in shared if is_now[case] and not was[case]),
        lost=tuple(case for case in shared if was[case] and not is_now[case]),
    )


def objections(challenger: Sealed, champion: Sealed | None) -> tuple[str, ...]:
    """What speaks against a promotion: no better than a constant, or worse than what is in use."""
    own = challenger.manifest.metrics[JUDGED_BY]
    out = []
    if own["accuracy"] <= own["majority_accuracy"]:
        out.append(f"accuracy {own['accuracy']} is not above the commonest class's {own['majority_accuracy']}")
    if champion is None:
        return tuple(out)
    both = compare(champion, challenger)
    if both.challenger["macro_f1"] < both.champion["macro_f1"]:
        out.append(
            f"macro-F1 falls from {both.champion['macro_f1']} to {both.challenger['macro_f1']} on {both.cases} cases"
        )
    was, now = (_hardware_precision(m) for m in (both.champion, both.challenger))
    if was is not None and now is not None and now < was - _KEPT:
        out.append(f"precision for hardware falls from {was} to {now}")
    return tuple(out)


def _hardware_precision(metrics: Mapping[str, Any]) -> float | None:
    found = metrics["classes"].get("hardware")
    return None if found is None else float(found["precision"])


def card(manifest: Manifest, scores: Mapping[str, Scores]) -> str:
    """The model card: what it is for, what it is not for, and what was measured."""
    judged = scores[JUDGED_BY].metrics
    rows = [
        f"| {view} | {m['accuracy']} | {m['top3']} | {m['macro_f1']} | {m['failure_top3']} "
        f"| {m['at_threshold']['precision']} of {m['at_threshold']['share']} | {VIEWS[view][0]} |"
        for view, m in ((view, one.metrics) for view, one in scores.items())
    ]
    classes = [f"| {name} | {m['cases']} | {m['precision']} | {m['recall']} |" for name, m in judged["classes"].items()]
    return "\n".join(
        [
            f"# {manifest.reference}",
            "",
            "A second opinion on logs that no signature explains: class of failure, and failures that look alike.",
            "",
            "**Never** a reason to restart, stop or exclude: it is shown beside a diagnosis, and moves no action.",
            "",
            f"Taught with {judged['cases']} labelled cases and {judged['signature_lines']} lines of signatures' own "
            f"tests; data {manifest.data_digest[:16]}; made {manifest.created_at:%Y-%m-%d}, Python {manifest.python}, "
            + ", ".join(f"{name} {version}" for name, version in sorted(manifest.libraries.items()))
            + ".",
            "",
            f"Cross-validated in {judged['folds']} folds over {judged['groups']} groups; always saying the commonest "
            f"class would reach {judged['majority_accuracy']}.",
            "",
            "The threshold is chosen on the first view; the second shows what it is worth for a failure never seen.",
            "",
            "| view | accuracy | class among 3 | macro-F1 | failure among 3 | above the threshold | withheld |",
            "|---|---|---|---|---|---|---|",
            *rows,
            "",
            f"From a confidence of {manifest.threshold:.3f} on a hint is called confident: "
            f"{judged['confident_share']} of cases, {judged['confident_precision']} of them right, "
            "each fold judged by the threshold of the others.",
            "",
            "| class | cases | precision | recall |",
            "|---|---|---|---|",
            *classes,
            "",
        ]
    )


def _json(value: object) -> bytes:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=True, allow_nan=False).encode("ascii")
