# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Whether an artefact may come into use, and the event that says it did: the same for a server and for a command."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from models.artefact import ArtefactRefused, Manifest, Sealed
from models.attribution_contract import contract_faults
from models.attribution_model import AttributionModel
from models.attribution_training import JUDGED_BY, objections
from relight.events import ModelPromoted
from relight.ports import AuditFilter, AuditLog
from relight.types import FailureClass

_BATCH = 1_000


class ShelvedModel(Protocol):
    """One folder of the store."""

    @property
    def digest(self) -> str: ...
    @property
    def manifest(self) -> Manifest | None: ...
    @property
    def problem(self) -> str: ...


class Shelf(Protocol):
    """What a promotion needs of the store of artefacts; all of it raises ArtefactRefused."""

    def listed(self) -> tuple[ShelvedModel, ...]: ...
    def find(self, reference: str) -> ShelvedModel: ...
    def read(self, digest: str) -> Sealed: ...
    def check_usable(self, sealed: Sealed) -> None: ...
    def open(self, digest: str, promoted: Container[str]) -> tuple[AttributionModel, Sealed]: ...


@dataclass(frozen=True, slots=True)
class Candidate:
    """An artefact beside what is in use; `was_in_use` makes its promotion a way back."""

    sealed: Sealed
    current: ModelPromoted | None
    was_in_use: bool
    objections: tuple[str, ...]

    @property
    def is_in_use(self) -> bool:
        return self.current is not None and self.current.digest == self.sealed.digest

    def event(self, at: datetime, actor: str, reason: str) -> ModelPromoted:
        manifest = self.sealed.manifest
        return ModelPromoted(
            at=at,
            model=manifest.name,
            version=manifest.version,
            digest=self.sealed.digest,
            actor=actor,
            reason=reason,
            previous=self.current.digest if self.current is not None else "",
            metrics={
                **manifest.metrics.get(JUDGED_BY, {}),
                "objections": list(self.objections),
                "is_way_back": self.was_in_use,
            },
        )


def promoted_before(log: AuditLog) -> tuple[ModelPromoted, ...]:
    """Every promotion on record, the first one first. Errors: AuditUnavailable."""
    found: list[ModelPromoted] = []
    after = 0
    while rows := log.read(after, _BATCH, AuditFilter(kinds=(ModelPromoted.kind,))):
        found += [row.event for row in rows if isinstance(row.event, ModelPromoted)]
        after = rows[-1].position
    return tuple(found)


def candidate(shelf: Shelf, reference: str, log: AuditLog) -> Candidate:
    """The artefact with what speaks against it; nothing of it is opened yet.

    A way back to what was in use before is not compared with what it replaces: it was when it came into use, and the
    reason to go back is what has been seen since.
    Errors: ArtefactRefused for one that is missing, changed or made by other libraries; AuditUnavailable.
    """
    sealed = shelf.read(shelf.find(reference).digest)
    shelf.check_usable(sealed)
    before = [one for one in promoted_before(log) if one.model == sealed.manifest.name]
    current = before[-1] if before else None
    was_in_use = any(one.digest == sealed.digest for one in before)
    against = objections(sealed, None) if was_in_use else _against(shelf, sealed, current)
    return Candidate(sealed, current, was_in_use, against)


def check_contract(shelf: Shelf, sealed: Sealed) -> AttributionModel:
    """The model, opened and asked a few questions. UNPICKLES: whoever promotes vouches for what is in it.

    Errors: ArtefactRefused if it can't be opened or does not answer as it must.
    """
    model, _ = shelf.open(sealed.digest, {sealed.digest})
    faults = contract_faults(model, {str(one) for one in FailureClass})
    if faults:
        raise ArtefactRefused(f"{sealed.manifest.reference} breaks its contract: {'; '.join(faults)}; train it anew")
    return model


def _against(shelf: Shelf, sealed: Sealed, current: ModelPromoted | None) -> tuple[str, ...]:
    if current is None:
        return objections(sealed, None)
    try:
        return objections(sealed, shelf.read(current.digest))
    except ArtefactRefused as why:
        return (*objections(sealed, None), f"can't be compared with {current.model}@{current.version}: {why}")
