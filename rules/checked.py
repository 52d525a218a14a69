# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A rule set after every check: signatures as overlays left them, who changed what, and what is silenced until when."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from rules.match import RuleSet
from rules.schema import Signature


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """One thing that an overlay says of a signature. Not in force: overruled by a higher order, or already there.

    `target` is an id, or id#code for a row; `field` one of enabled, severity, action, maturity, any, unless, streams.
    """

    target: str
    field: str
    value: str
    before: str
    file: str
    line: int
    reason: str
    is_in_force: bool = True

    @property
    def signature(self) -> str:
        return self.target.partition("#")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quiet:
    """A silence and where it stands: matches of `target` are recorded and decide nothing from `since` to `until`."""

    target: str
    since: datetime
    until: datetime
    reason: str
    author: str
    file: str
    line: int

    @property
    def signature(self) -> str:
        return self.target.partition("#")[0]

    def holds(self, at: datetime) -> bool:
        return self.since <= at < self.until

    def __str__(self) -> str:
        return f"until {self.until:%Y-%m-%dT%H:%MZ} ({self.reason}; {self.file}:{self.line})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """Everything that was read, what is switched off included; `homes` says which file holds a signature."""

    signatures: tuple[Signature, ...]
    touches: tuple[Touch, ...] = ()
    silences: tuple[Quiet, ...] = ()
    homes: Mapping[str, str] = field(default_factory=dict)

    @property
    def disabled(self) -> frozenset[str]:
        """Targets, signatures or rows, that an overlay switched off."""
        return frozenset(
            t.target for t in self.touches if t.field == "enabled" and t.is_in_force and t.value == "false"
        )

    def silenced(self, at: datetime | None) -> dict[str, Quiet]:
        """The silences that hold at a moment, by target, of two the one that ends later; none without a moment."""
        found: dict[str, Quiet] = {}
        for one in sorted(self.silences, key=lambda q: q.until):
            if at is not None and one.holds(at):
                found[one.target] = one
        return found

    def turns(self) -> tuple[datetime, ...]:
        """When a silence begins or ends, in order: the moments at which what decides is another set."""
        return tuple(sorted({moment for one in self.silences for moment in (one.since, one.until)}))

    def compiled(self, at: datetime | None = None) -> tuple[RuleSet, RuleSet]:
        """(signatures, progress signatures) that are asked at a moment. Errors: re2.error, after lint none."""
        loaded = tuple(self._loaded())
        quiet = {target: str(one) for target, one in self.silenced(at).items()}
        return (
            RuleSet((s for s in loaded if s.kind == "signature"), quiet),
            RuleSet(s for s in loaded if s.kind == "progress" and s.id not in quiet),
        )

    def _loaded(self) -> Iterator[Signature]:
        off = self.disabled
        for signature in self.signatures:
            if signature.maturity == "deprecated" or signature.id in off:
                continue
            gone = [t.partition("#")[2] for t in off if t.startswith(f"{signature.id}#")]
            if gone and signature.table is not None:
                rows = {key: row for key, row in signature.table.rows.items() if key not in gone}
                table = signature.table.model_copy(update={"rows": rows})
                yield signature.model_copy(update={"table": table})
            else:
                yield signature
