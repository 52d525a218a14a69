# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From logs, evidence and signatures to what the attribution model is asked about and taught with."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from detectors.attempts import last_attempt_start
from detectors.log_text import LogText
from detectors.masks import Masker, shape_of
from models.attribution_features import LogFeatures, features_of, features_of_line
from models.attribution_model import Example
from relight.types import Evidence, FailureName, Role, Taxonomy
from rules.schema import Signature

MAX_TAIL_LINES = 2_000
RULE_GROUP = "signature"
# A line of these roles tells that something ended, not what.
_TELLS_NO_CAUSE = frozenset({Role.TEARDOWN, Role.CONFIRMATION})


def attempt_features(logs: Sequence[LogText], evidence: Sequence[Evidence], taxonomy: Taxonomy) -> LogFeatures:
    """The features of the last attempt that these logs hold.

    Errors: none; of each log the last 2,000 lines of the attempt count.
    """
    masker = Masker()
    masked: list[str] = []
    for log in logs:
        first = max(last_attempt_start(log), len(log.lines) - MAX_TAIL_LINES)
        masked += [masker.mask(shape_of(line)) for line in log.lines[first:]]
    return features_of(evidence, masked, (log.stream for log in logs), taxonomy)


def case_example(name: str, features: LogFeatures, label: Mapping[str, object]) -> Example:
    """A labelled case. Errors: KeyError for a label without `class` or `failure`."""
    return Example(
        name=name,
        features=features,
        failure_class=str(label["class"]),
        failure=str(label["failure"]),
        family=str(label.get("family", name)),
        source=str(label.get("source", name)),
    )


def signature_examples(signatures: Iterable[Signature], taxonomy: Taxonomy) -> Iterator[Example]:
    """The lines that signatures say they fire on: text that a library really prints, with the failure it means."""
    masker = Masker()
    for signature in signatures:
        if signature.role in _TELLS_NO_CAUSE:
            continue
        for number, test in enumerate(signature.tests.fires):
            known = taxonomy.get(FailureName(test.failure or signature.failure))
            if known is None:
                continue
            masked = masker.mask(shape_of(test.line))
            yield Example(
                name=f"{signature.id}#{number}",
                features=features_of_line(masked, signature.streams[0]),
                failure_class=known.failure_class.value,
                failure=known.name,
                family=RULE_GROUP,
                source=str(signature.id),
                is_case=False,
            )
