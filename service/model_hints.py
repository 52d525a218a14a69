# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The promoted attribution model as a voice beside the rules: asked only where they name no cause, and never obeyed."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from detectors.attribution_examples import attempt_features
from detectors.log_text import LogText
from models.artefact import ArtefactRefused, Sealed
from models.attribution_model import NAME, AttributionModel, Hint
from relight.events import ModelPromoted
from relight.ports import AuditFilter, AuditLog
from relight.types import CAUSE_NOT_IN_LOG, Attribution, Evidence, Taxonomy

_BATCH = 1_000


class Store(Protocol):
    def open(self, digest: str, promoted: Container[str]) -> tuple[AttributionModel, Sealed]: ...


def promotions(log: AuditLog) -> dict[str, ModelPromoted]:
    """The last promotion of each model, by name. Errors: AuditUnavailable."""
    last: dict[str, ModelPromoted] = {}
    after = 0
    while rows := log.read(after, _BATCH, AuditFilter(kinds=(ModelPromoted.kind,))):
        last.update({row.event.model: row.event for row in rows if isinstance(row.event, ModelPromoted)})
        after = rows[-1].position
    return last


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelHints:
    """A model that was promoted and could be opened, or the reason why the rules speak alone."""

    model: AttributionModel | None = None
    reference: str = ""
    threshold: float = 1.01
    reason: str = ""

    @classmethod
    def of(cls, store: Store, promoted: Mapping[str, ModelPromoted], name: str = NAME) -> ModelHints:
        chosen = promoted.get(name)
        if chosen is None:
            return cls(reason=f"no {name} model was promoted: rules alone")
        try:
            model, sealed = store.open(chosen.digest, {chosen.digest})
        except (ArtefactRefused, OSError) as why:
            return cls(reason=f"{why}: rules alone")
        return cls(model=model, reference=sealed.manifest.reference, threshold=sealed.manifest.threshold)

    def hint(
        self, logs: Sequence[LogText], evidence: Sequence[Evidence], attribution: Attribution, taxonomy: Taxonomy
    ) -> Hint | None:
        """What the model would guess where the rules name no cause; None where they do, or where there is no model."""
        if self.model is None or (attribution.root is not None and attribution.failure != CAUSE_NOT_IN_LOG):
            return None
        asked = attempt_features(logs, evidence, taxonomy)
        if not asked.words:
            return None
        return self.model.hint(asked, threshold=self.threshold, model=self.reference)
