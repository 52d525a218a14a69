# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What the attribution model looks at: masked words of a log, and named numbers of what signatures claim there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from relight.types import Evidence, Failure, FailureName, Role, Stream

FEATURES_VERSION = 1
MAX_LINES = 300
_CLAIMED = ("says:", "role:", "severity:", "depth:", "survived:", "count:")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFeatures:
    """One attempt as the model sees it.

    Shapes: `words` are masked lines, one a line; `facts` map a name to a number of at least zero.
    Units:  counts are ln(1 + n), so that a claim made a thousand times is no thousand claims.
    """

    words: str = ""
    facts: Mapping[str, float] = field(default_factory=dict)

    def without_claims(self) -> LogFeatures:
        """The same attempt as if no signature had known any of its lines."""
        kept = {name: value for name, value in self.facts.items() if not name.startswith(_CLAIMED)}
        return LogFeatures(words=self.words, facts=kept)


def features_of(
    evidence: Sequence[Evidence],
    masked_lines: Sequence[str],
    streams: Iterable[Stream],
    depths: Mapping[FailureName, Failure] | None = None,
) -> LogFeatures:
    """The features of one attempt: its evidence, its masked lines, the streams at hand, the taxonomy for depths.

    The verdict of the rules is no feature: a model that is told the answer learns to repeat it.
    Errors: none; no evidence and no lines give empty features.
    """
    counts: Counter[str] = Counter()
    for e in evidence:
        counts[f"role:{e.role}"] += e.count
        counts[f"says:{e.role}:{e.failure}"] += e.count
        counts[f"severity:{e.severity}"] += e.count
        counts[f"survived:{e.is_survived or e.is_after_completion}"] += 1
        if depths is not None and e.failure in depths and e.role is not Role.BENIGN:
            counts[f"depth:{depths[e.failure].depth}"] += 1
    counts["count:ranks"] = len({e.rank for e in evidence if e.rank is not None})
    counts["count:nodes"] = len({e.node for e in evidence if e.node is not None})
    counts["count:failures"] = len({e.failure for e in evidence})
    facts = {name: math.log1p(number) for name, number in sorted(counts.items()) if number}
    facts.update({f"stream:{stream}": 1.0 for stream in sorted(set(streams))})
    return LogFeatures(words=_text(masked_lines), facts=facts)


def features_of_line(masked_line: str, stream: Stream) -> LogFeatures:
    """One line alone, as an example of a signature is."""
    return LogFeatures(words=masked_line, facts={f"stream:{stream}": 1.0})


def _text(masked_lines: Sequence[str]) -> str:
    """Each different line once, the last ones kept: an end is told at the end."""
    latest = dict.fromkeys(reversed([line for line in masked_lines if line.strip()]))
    return "\n".join(reversed(list(latest)[:MAX_LINES]))
