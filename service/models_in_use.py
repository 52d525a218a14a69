# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The attribution model of a running service: promoted without a stop, swapped whole, asked and never obeyed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from relight.events import ModelPromoted
from relight.types import AttemptId, Taxonomy
from service.journal import Journal
from service.loop import Loop
from service.refusals import Refused

if TYPE_CHECKING:  # scikit-learn costs a second and 100 MB: nobody pays before a model is promoted or asked for
    from models.artefact import Sealed
    from models.attribution_model import AttributionModel, Hint
    from service.model_hints import ModelHints
    from service.model_promotion import Shelf, ShelvedModel


@dataclass(frozen=True, slots=True)
class Promoted:
    """What a promotion did; `position` is None if the artefact was in use already and nothing was recorded."""

    event: ModelPromoted
    position: int | None
    objections: tuple[str, ...]


class ModelsInUse:
    """One model speaks at a time; who asks while another comes into use gets the old one or the new one, whole.

    Errors: Refused for an artefact that must not or should not come into use; AuditUnavailable if it could not be
            recorded, and then it is not in use either.
    """

    def __init__(self, journal: Journal, loop: Loop, store: Callable[[], Shelf], taxonomy: Taxonomy) -> None:
        self._journal = journal
        self._loop = loop
        self._store = store
        self._taxonomy = taxonomy
        self._promoting = threading.Lock()
        self._hints: ModelHints | None = None

    @property
    def hints(self) -> ModelHints:
        """The model in use, or why there is none; read from the record once, and again after a promotion."""
        known = self._hints
        if known is None:
            from service.model_hints import ModelHints, promotions

            with self._promoting:
                known = self._hints = self._hints or ModelHints.of(self._store(), promotions(self._journal.audit))
        return known

    def listed(self) -> tuple[tuple[ShelvedModel, ...], frozenset[str]]:
        """Every artefact at hand, and the digests in use."""
        from service.model_hints import promotions

        used = frozenset(one.digest for one in promotions(self._journal.audit).values())
        return self._store().listed(), used

    def promote(self, reference: str, actor: str, reason: str, *, even_if_worse: bool = False) -> Promoted:
        """Check, record, then swap: in this order, so that nothing unrecorded and nothing unchecked ever speaks."""
        from models.artefact import ArtefactRefused
        from service.model_promotion import candidate, check_contract

        with self._promoting:
            shelf = self._store()
            try:
                found = candidate(shelf, reference, self._journal.audit)
                if found.is_in_use and found.current is not None:
                    self._speak(found.sealed, check_contract(shelf, found.sealed))
                    return Promoted(found.current, None, ())
                if found.objections and not even_if_worse:
                    raise Refused("worse_model", f"{reference}: {'; '.join(found.objections)}")
                model = check_contract(shelf, found.sealed)
            except (ArtefactRefused, OSError) as why:
                raise Refused("model_refused", str(why)) from why
            event = found.event(self._journal.now(), actor, reason)
            (position,) = self._journal.record(event)
            self._speak(found.sealed, model)
            return Promoted(event, position, found.objections)

    def _speak(self, sealed: Sealed, model: AttributionModel) -> None:
        from service.model_hints import ModelHints

        manifest = sealed.manifest
        self._hints = ModelHints(model=model, reference=manifest.reference, threshold=manifest.threshold)

    def hint(self, attempt: AttemptId) -> tuple[Hint | None, str]:
        """What the model guesses of an attempt where the rules name no cause, or the reason why nothing is said."""
        asked = self.hints
        if asked.model is None:
            return None, asked.reason
        with self._loop.lock:
            logs, evidence, said = self._loop.examined(attempt)
        if not logs:
            return None, "no line of this attempt is kept (any more)"
        hint = asked.hint(logs, evidence, said, self._taxonomy)
        if hint is None:
            return None, f"the rules name the cause: {said.failure}"
        return hint, ""
