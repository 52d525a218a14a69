# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Silences: which incidents nobody wants to be told of, for how long, and on whose word."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from relight.types import ClusterId, FailureName, NodeName, SignatureId, WorkloadId

LONGEST = timedelta(days=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Matchers:
    """What an incident must be about; every one given must hold, and none given is about nothing."""

    workload: WorkloadId | None = None
    node: NodeName | None = None
    failure: FailureName | None = None
    signature: SignatureId | None = None

    @property
    def given(self) -> tuple[tuple[str, str], ...]:
        """The matchers that were given, by name."""
        named = (("workload", self.workload), ("node", self.node), ("failure", self.failure),
                 ("signature", self.signature))  # fmt: skip
        return tuple((name, str(value)) for name, value in named if value is not None)

    def __str__(self) -> str:
        return " and ".join(f"{name} {value}" for name, value in self.given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """What an incident is about, as far as it is known; `nodes` are the accused and the failed ones."""

    cluster: ClusterId
    workload: WorkloadId | None = None
    nodes: frozenset[NodeName] = field(default_factory=frozenset)
    failure: FailureName | None = None
    signature: SignatureId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Mutes messages and nothing else: what it matches is recorded, shown, advised on and acted on as ever."""

    id: str
    cluster: ClusterId
    matchers: Matchers
    starts_at: datetime
    ends_at: datetime
    actor: str
    reason: str

    def stands(self, at: datetime) -> bool:
        return self.starts_at <= at < self.ends_at

    def covers(self, topic: Topic) -> bool:
        wanted = self.matchers
        return (
            bool(wanted.given)
            and topic.cluster == self.cluster
            and wanted.workload in (None, topic.workload)
            and (wanted.node is None or wanted.node in topic.nodes)
            and wanted.failure in (None, topic.failure)
            and (wanted.signature is None or _is_row_of(topic.signature, wanted.signature))
        )


def _is_row_of(found: SignatureId | None, wanted: SignatureId) -> bool:
    """A whole table of signatures is meant by its name, one row by the name with its key: `xid.catalogue#79`."""
    return found is not None and (found == wanted or found.startswith(f"{wanted}#"))


def about_something(matchers: Matchers) -> Matchers:
    """Errors: ValueError without any matcher: nobody means to silence everything."""
    if not matchers.given:
        raise ValueError("name at least one of workload, node, failure and signature")
    return matchers


def ending(starts_at: datetime, ends_at: datetime) -> datetime:
    """The end, if it may be one. Errors: ValueError unless it is ahead, and by thirty days at most."""
    if not starts_at < ends_at <= starts_at + LONGEST:
        raise ValueError(f"a silence ends after it began and within {LONGEST.days} days, got {ends_at.isoformat()}")
    return ends_at
