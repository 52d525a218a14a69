# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What an attribution model must answer before it may speak: form, range and steadiness, whatever it was taught."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator

from models.attribution_features import LogFeatures
from models.attribution_model import AttributionModel, Hint

# An empty log, an ordinary one, one long line, bytes of no language: what a service is handed sooner or later.
_PROBES = (
    LogFeatures(words="", facts={}),
    LogFeatures(words="cuda error on device\nprocess ended", facts={"stream:application": 1.0}),
    LogFeatures(words="x" * 20_000, facts={"stream:kernel": 1.0, "never:seen": 1.0}),
    LogFeatures(words="\x00\x1b[31m\ufffd\U0001f525 \u202e", facts={"stream:application": 0.5}),
)
_SLACK = 1e-6


def contract_faults(model: AttributionModel, classes: Container[str]) -> tuple[str, ...]:
    """Why the model must not be used; empty if it may.

    Shapes: `classes` are the names that a class may have.
    Errors: none; what the model raises is a fault of its own.
    """
    try:
        first, second = model.hints(_PROBES), model.hints(_PROBES)
    except (ValueError, TypeError, KeyError, AttributeError, IndexError, ArithmeticError) as why:
        return (f"it fails on a probe: {why!r}"[:300],)
    found = [fault for hint in first for fault in _faults(hint, classes)]
    if len(first) != len(_PROBES):
        found.append(f"it gives {len(first)} answers to {len(_PROBES)} probes")
    if first != second:
        found.append("it answers the same question in two ways")
    return tuple(dict.fromkeys(found))


def _faults(hint: Hint, classes: Container[str]) -> Iterator[str]:
    for name, _ in hint.classes:
        if name not in classes:
            yield f"it names class {name!r}, which no failure has"
    shares = [share for _, share in hint.classes]
    if not shares or not all(math.isfinite(s) and -_SLACK <= s <= 1 + _SLACK for s in shares):
        yield f"a probability is not between 0 and 1: {shares}"
    elif sum(shares) > 1 + _SLACK:
        yield f"probabilities of its classes add up to {sum(shares):.3f}"
    elif (hint.failure_class, hint.confidence) != hint.classes[0]:
        yield "its guess is not the likeliest of its classes"
