# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Everything that the audit log can say: a closed union of events, each with a kind and a schema number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from relight.events.attempts import (
    AnomalyDetected,
    AttemptObserved,
    AttributionMade,
    IncidentAdvanced,
    IncidentOpened,
)
from relight.events.exclusions import (
    ExclusionAdded,
    ExclusionExpired,
    ExclusionPardoned,
)
from relight.events.operation import (
    AuditRepaired,
    DetectorFailed,
    ModeChanged,
    ModelPromoted,
    PackLoaded,
    PackRefused,
    PolicyChanged,
    Repair,
    ServiceStarted,
    ServiceStopped,
    SignalAccepted,
)
from relight.events.outcomes import (
    Disposition,
    FeedbackGiven,
    FeedbackVerdict,
    MilestonePhase,
    MilestoneRecorded,
    Outcome,
    OutcomeReported,
    ReconciliationReported,
    WatchdogReleased,
)
from relight.events.recommendations import (
    RecommendationApproved,
    RecommendationClaimed,
    RecommendationExpired,
    RecommendationIssued,
    RecommendationRejected,
    RecommendationRequested,
    RecommendationSuperseded,
)
from relight.events.silences import SilenceAdded, SilenceEnded
from relight.events.stages import StageChanged
from relight.jsonform import MalformedJson, decode, encode

__all__ = [
    "EVENT_TYPES",
    "AnomalyDetected",
    "AttemptObserved",
    "AttributionMade",
    "AuditRepaired",
    "DetectorFailed",
    "Disposition",
    "Event",
    "ExclusionAdded",
    "ExclusionExpired",
    "ExclusionPardoned",
    "FeedbackGiven",
    "FeedbackVerdict",
    "IncidentAdvanced",
    "IncidentOpened",
    "MilestonePhase",
    "MilestoneRecorded",
    "ModeChanged",
    "ModelPromoted",
    "Outcome",
    "OutcomeReported",
    "PackLoaded",
    "PackRefused",
    "PolicyChanged",
    "RecommendationApproved",
    "RecommendationClaimed",
    "RecommendationExpired",
    "RecommendationIssued",
    "RecommendationRejected",
    "RecommendationRequested",
    "RecommendationSuperseded",
    "ReconciliationReported",
    "Repair",
    "ServiceStarted",
    "ServiceStopped",
    "SignalAccepted",
    "SilenceAdded",
    "SilenceEnded",
    "StageChanged",
    "UnknownEvent",
    "WatchdogReleased",
    "from_json",
    "to_json",
]

Event = (
    AttemptObserved
    | AnomalyDetected
    | AttributionMade
    | IncidentOpened
    | IncidentAdvanced
    | RecommendationIssued
    | RecommendationRequested
    | RecommendationApproved
    | RecommendationRejected
    | RecommendationClaimed
    | RecommendationSuperseded
    | RecommendationExpired
    | OutcomeReported
    | ReconciliationReported
    | MilestoneRecorded
    | WatchdogReleased
    | FeedbackGiven
    | ExclusionAdded
    | ExclusionPardoned
    | ExclusionExpired
    | ModeChanged
    | StageChanged
    | SilenceAdded
    | SilenceEnded
    | PolicyChanged
    | PackLoaded
    | PackRefused
    | ModelPromoted
    | DetectorFailed
    | SignalAccepted
    | ServiceStarted
    | ServiceStopped
    | AuditRepaired
)

EVENT_TYPES: Mapping[str, type[Event]] = {one.kind: one for one in get_args(Event)}


class UnknownEvent(MalformedJson):
    """An event of a kind or schema that this version of Relight does not know."""


def to_json(event: Event) -> dict[str, Any]:
    """The event as a JSON object: `kind` and `schema`, then its fields."""
    body: dict[str, Any] = encode(event)
    return {"kind": event.kind, "schema": event.schema, **body}


def from_json(said: Mapping[str, Any]) -> Event:
    """The event that `to_json` wrote.

    Errors: UnknownEvent for a kind or a schema number of a newer Relight; MalformedJson for fields
    that are unknown, missing or of the wrong type.
    """
    kind, schema = said.get("kind"), said.get("schema")
    known = EVENT_TYPES.get(kind) if isinstance(kind, str) else None
    if known is None:
        raise UnknownEvent(f"unknown event kind {kind!r}; a newer Relight may have written it: upgrade to read it")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise MalformedJson(f"{kind}: need a schema number of at least 1, got {schema!r}")
    if schema > known.schema:
        raise UnknownEvent(f"{kind}: schema {schema} is newer than the {known.schema} known here; upgrade Relight")
    return decode(known, {name: value for name, value in said.items() if name not in ("kind", "schema")})
