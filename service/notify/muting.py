# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which messages are not sent: those under a silence, and those of classes that are only recorded."""

from __future__ import annotations

from datetime import datetime

from relight.promotion import Stage
from relight.types import ClusterId, FailureClass, IncidentId
from service.journal import Journal
from service.notify.notice import Notice
from service.records import IncidentRecord
from service.silencing import silences_on

_QUIET = frozenset({Stage.OFF, Stage.RECORD})


class Muting:
    """Asked of every message; what is no incident's matter (modes, detectors, the log itself) is always told.

    The end of an incident is told unless nobody was told of its beginning: an alert that was raised must clear.
    """

    def __init__(self, journal: Journal, start: Stage) -> None:
        self._journal = journal
        self._start = start

    def __call__(self, notice: Notice) -> bool:
        with self._journal.view:
            incident = self._journal.state.incidents.get(IncidentId(notice.incident))
            if incident is None:
                return False
            moments = (incident.opened.at, notice.at) if notice.is_over else (notice.at,)
            return all(self._is_quiet(incident, at) for at in moments)

    def _is_quiet(self, incident: IncidentRecord, at: datetime) -> bool:
        return bool(silences_on(self._journal.state, incident, at)) or self._is_only_recorded(incident, at)

    def _is_only_recorded(self, incident: IncidentRecord, at: datetime) -> bool:
        """By the class that is known now; before any is known, it is told."""
        state, opened = self._journal.state, incident.opened
        made = state.attribution(opened.attempt)
        if made is None:
            return False
        cluster, failure_class = opened.cluster or ClusterId(""), FailureClass(made.event.failure_class)
        return state.stage_at(cluster, failure_class, at, self._start) in _QUIET
