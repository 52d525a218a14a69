# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Made-up lessons for the attribution model: families of failures with words of their own and words of their class."""

from __future__ import annotations

from models.attribution_features import LogFeatures
from models.attribution_model import AttributionSettings, Example

WORDS = {
    "hardware": "device uncorrectable memory fault on board",
    "network": "remote endpoint unreachable, link lost by peer",
    "storage": "filesystem refused to write, volume damaged",
}
SMALL = AttributionSettings(word_features=1 << 11, fact_features=1 << 6, iterations=60)


def case(name: str, failure_class: str, text: str, *, family: str, source: str = "", claim: str = "") -> Example:
    facts = {"stream:kernel": 1.0}
    if claim:
        facts |= {f"says:root:{claim}": 0.7, "role:root": 0.7}
    return Example(
        name=name,
        features=LogFeatures(words=text, facts=facts),
        failure_class=failure_class,
        failure=f"{failure_class}_{family}",
        family=family,
        source=source or f"made/up#{name}",
    )


def signature_line(name: str, failure_class: str, failure: str, text: str) -> Example:
    return Example(
        name=name,
        features=LogFeatures(words=text, facts={"stream:kernel": 1.0}),
        failure_class=failure_class,
        failure=failure,
        family="signature",
        source=name,
        is_case=False,
    )


def lessons(each: int = 3) -> list[Example]:
    """Four families a class, `each` cases a family: words of the class, of the family and of the case."""
    return [
        case(
            f"{kind}-{family}-{number}",
            kind,
            f"{text}\nthe {family} {family}ctl component stopped\n{family}{number} {kind[:3]}{family}{number} ended",
            family=f"{kind}{family}",
            claim=f"{kind}_{family}",
        )
        for kind, text in WORDS.items()
        for family in ("alpha", "bravo", "delta", "gamma")
        for number in range(each)
    ]
