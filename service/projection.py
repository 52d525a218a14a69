# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""State as a fold over the audit log: what is known now is what the events say, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import assert_never

from relight.events import (
    AnomalyDetected,
    AttemptObserved,
    AttributionMade,
    AuditRepaired,
    DetectorFailed,
    Event,
    ExclusionAdded,
    ExclusionExpired,
    ExclusionPardoned,
    FeedbackGiven,
    IncidentAdvanced,
    IncidentOpened,
    MilestoneRecorded,
    ModeChanged,
    ModelPromoted,
    OutcomeReported,
    PackLoaded,
    PackRefused,
    PolicyChanged,
    RecommendationApproved,
    RecommendationClaimed,
    RecommendationExpired,
    RecommendationIssued,
    RecommendationRejected,
    RecommendationRequested,
    RecommendationSuperseded,
    ReconciliationReported,
    ServiceStarted,
    ServiceStopped,
    SignalAccepted,
    SilenceAdded,
    SilenceEnded,
    StageChanged,
    WatchdogReleased,
)
from relight.incidents import IncidentState, RecommendationState
from relight.promotion import Stage
from relight.shape import stated_from
from relight.types import (
    AttemptId,
    ClusterId,
    FailureClass,
    IncidentId,
    Mode,
    NodeName,
    RecommendationId,
    WorkloadId,
)
from service.past import Past
from service.recommendation_fold import AboutRecommendation, advanced
from service.records import (
    TRAINS_WITH,
    AnomalyRecord,
    AttemptRecord,
    AttributionRecord,
    Counted,
    ExclusionKey,
    ExclusionRecord,
    IncidentRecord,
    ModeEntry,
    PolicyText,
    RecommendationRecord,
    RequestRecord,
    SilenceRecord,
    StageEntry,
)
from service.told_lines import OWED, TOLD, ToldLines


def exclusion_key(cluster: ClusterId, scope: str, workload: WorkloadId | None, node: NodeName) -> ExclusionKey:
    """Cluster-wide exclusions belong to no workload, whoever asked for them."""
    return (cluster, scope, (workload or "") if scope == "workload" else "", node)


class Projection:
    """The present, folded from events in the order of their positions.

    Not thread-safe: `service.journal.Journal` holds the lock. Folding is idempotent by position, and an
    event about something unknown changes nothing, so a partly exported log still folds.
    """

    def __init__(self) -> None:
        self.position = 0
        self.attempts: dict[AttemptId, AttemptRecord] = {}
        self.numbers: dict[AttemptId, dict[str, int]] = {}
        self.told = ToldLines()
        self.workloads: dict[WorkloadId, list[AttemptId]] = {}
        self.jobs: dict[tuple[ClusterId, str], list[AttemptId]] = {}
        self.anomalies: list[AnomalyRecord] = []
        self.anomalies_of: dict[AttemptId, list[AnomalyRecord]] = {}
        self.attributions: dict[AttemptId, list[AttributionRecord]] = {}
        self.incidents: dict[IncidentId, IncidentRecord] = {}
        self.incidents_of: dict[AttemptId, list[IncidentId]] = {}
        self.recommendations: dict[RecommendationId, RecommendationRecord] = {}
        self.by_attempt: dict[AttemptId, list[RecommendationId]] = {}
        self.requests: dict[tuple[str, str], RequestRecord] = {}
        self.exclusions: dict[ExclusionKey, ExclusionRecord] = {}
        self.modes: dict[tuple[str, str, str], ModeEntry] = {}
        self.stages: dict[tuple[ClusterId, FailureClass], list[StageEntry]] = {}
        self.silences: dict[str, SilenceRecord] = {}
        self.policy: PolicyText | None = None
        self.milestone_keys: dict[tuple[RecommendationId, str], MilestoneRecorded] = {}
        self.outcomes: dict[AttemptId, list[OutcomeReported]] = {}
        self.past = Past()
        self.counted = Counted()

    # -------------------------------------------------------------- questions

    def latest_recommendation(self, attempt: AttemptId) -> RecommendationRecord | None:
        ids = self.by_attempt.get(attempt)
        return self.recommendations[ids[-1]] if ids else None

    def open_incident(self, attempt: AttemptId) -> IncidentRecord | None:
        names = self.incidents_of.get(attempt)
        latest = self.incidents[names[-1]] if names else None
        return latest if latest is not None and latest.is_open else None

    def attribution(self, attempt: AttemptId) -> AttributionRecord | None:
        made = self.attributions.get(attempt)
        return made[-1] if made else None

    def standing_exclusions(self, cluster: ClusterId, at: datetime) -> list[ExclusionRecord]:
        return [one for one in self.exclusions.values() if one.cluster == cluster and one.stands(at)]

    def mode_for(self, cluster: str, partition: str, failure_class: str, workload: str) -> list[Mode]:
        """Every mode that was set for these; the lowest is to win."""
        wanted = {("cluster", cluster), ("partition", partition), ("class", failure_class),
                  ("workload", workload)}  # fmt: skip
        return [
            entry.mode
            for (_, scope, target), entry in self.modes.items()
            if (scope, target) in wanted and entry.cluster in (None, cluster)
        ]

    def stage_of(self, cluster: ClusterId, failure_class: FailureClass, start: Stage) -> Stage:
        """How far a class is trusted now; `start` where nobody said."""
        entries = self.stages.get((cluster, failure_class))
        return entries[-1].stage if entries else start

    def stage_at(self, cluster: ClusterId, failure_class: FailureClass, at: datetime, start: Stage) -> Stage:
        """How far it was trusted at that moment."""
        before = [one for one in self.stages.get((cluster, failure_class), ()) if one.changed_at <= at]
        return before[-1].stage if before else start

    def attempt_of_job(self, cluster: ClusterId, job: str, restart: int | None) -> AttemptId | None:
        """The attempt that a scheduler's job id means: that of the restart named, else the newest."""
        known = [self.attempts[name].seen for name in self.jobs.get((cluster, job), ())]
        wanted = [
            one for one in known
            if restart is None or one.scheduler.get("restart_count", one.attempt_index) == restart
        ]  # fmt: skip
        newest = max(wanted, key=lambda one: (one.attempt_index, one.at), default=None)
        return newest.attempt if newest is not None else None

    # -------------------------------------------------------------- the fold

    def apply(self, position: int, event: Event) -> None:
        """Fold one event; a position that was folded before is ignored."""
        if position <= self.position:
            return
        self.position = position
        self.counted.add(event.kind)
        match event:
            case AttemptObserved() | SignalAccepted():
                self._attempt(position, event)
            case AnomalyDetected() | AttributionMade() | OutcomeReported():
                self._judge(position, event)
            case IncidentOpened() | IncidentAdvanced():
                self._incident(position, event)
            case RecommendationIssued() | RecommendationRequested():
                self._issue(position, event)
            case (
                RecommendationApproved()
                | RecommendationRejected()
                | RecommendationClaimed()
                | RecommendationSuperseded()
                | RecommendationExpired()
                | ReconciliationReported()
                | MilestoneRecorded()
                | FeedbackGiven()
            ):
                self._advance(position, event)
            case ExclusionAdded() | ExclusionPardoned() | ExclusionExpired():
                self._exclude(position, event)
            case ModeChanged() | PolicyChanged() | StageChanged():
                self._operate(event)
            case SilenceAdded() | SilenceEnded():
                self._mute(position, event)
            case (
                WatchdogReleased()
                | PackLoaded()
                | PackRefused()
                | ModelPromoted()
                | DetectorFailed()
                | ServiceStarted()
                | ServiceStopped()
                | AuditRepaired()
            ):
                pass
            case _ as unhandled:
                assert_never(unhandled)
        self.past.apply(event, self)

    def _attempt(self, position: int, event: AttemptObserved | SignalAccepted) -> None:
        if isinstance(event, AttemptObserved):
            self._observe(position, event)
        else:
            self._progress(position, event)

    def _judge(self, position: int, event: AnomalyDetected | AttributionMade | OutcomeReported) -> None:
        match event:
            case AnomalyDetected():
                found = AnomalyRecord(event=event, position=position)
                self.anomalies.append(found)
                self.anomalies_of.setdefault(event.attempt, []).append(found)
            case AttributionMade():
                record = AttributionRecord(event=event, position=position)
                self.attributions.setdefault(event.attempt, []).append(record)
            case OutcomeReported():
                self.outcomes.setdefault(event.attempt, []).append(event)
            case _ as unhandled:
                assert_never(unhandled)

    def _observe(self, position: int, event: AttemptObserved) -> None:
        known = self.attempts.get(event.attempt)
        ended = event.at if event.state.is_terminal else None
        if known is None:
            self.attempts[event.attempt] = AttemptRecord(
                seen=event, position=position, revision=position, first_seen_at=event.at, ended_at=ended
            )
            self.workloads.setdefault(event.workload, []).append(event.attempt)
            if (job := event.scheduler.get("job_id")) is not None:
                self.jobs.setdefault((event.cluster, str(job)), []).append(event.attempt)
            return
        self.attempts[event.attempt] = replace(
            known, seen=event, revision=position, ended_at=(known.ended_at or ended) if ended else None
        )

    def _progress(self, position: int, event: SignalAccepted) -> None:
        self.counted.add_signals({"accepted": event.accepted, "duplicate": event.duplicates, "refused": event.refused})
        known = self.attempts.get(event.attempt) if event.attempt is not None else None
        if known is None:
            return
        counts = event.counts
        checkpoint = _furthest(known.last_checkpoint, counts.get("checkpoint_step"))
        numbers = self.numbers.setdefault(known.id, {})
        for file, number in dict(counts.get("files") or {}).items():
            numbers[str(file)] = max(int(number), numbers.get(str(file), 0))
        if said := counts.get(TOLD):
            self.told.add(known.id, said, int(counts.get(OWED, 0)))
        self.attempts[known.id] = replace(
            known,
            revision=position,
            last_step=_furthest(known.last_step, counts.get("step")),
            last_checkpoint=checkpoint,
            checkpoint_at=event.at if checkpoint != known.last_checkpoint else known.checkpoint_at,
            lines=known.lines + int(counts.get("lines", 0)),
            logged_steps=known.logged_steps + int(counts.get("logged_steps", 0)),
            is_relative=known.is_relative or bool(counts.get("is_relative")),
            has_gaps=known.has_gaps or bool(counts.get("gaps")),
            shape={**known.shape, **stated_from(known.id, counts.get(TRAINS_WITH) or {}).as_json()},
        )

    def _incident(self, position: int, event: IncidentOpened | IncidentAdvanced) -> None:
        if isinstance(event, IncidentOpened):
            self.incidents_of.setdefault(event.attempt, []).append(event.incident)
            self.incidents[event.incident] = IncidentRecord(
                opened=event,
                position=position,
                revision=position,
                state=IncidentState.OPEN,
                changed_at=event.at,
            )
        elif (known := self.incidents.get(event.incident)) is not None:
            self.incidents[event.incident] = replace(
                known,
                revision=position,
                state=IncidentState(event.state),
                changed_at=event.at,
                reason=event.reason,
                recommendation=event.recommendation or known.recommendation,
            )

    def _issue(self, position: int, event: RecommendationIssued | RecommendationRequested) -> None:
        if isinstance(event, RecommendationRequested):
            self.requests[event.cluster or "", event.idempotency_key] = RequestRecord(
                body_sha256=event.body_sha256, recommendation=event.recommendation
            )
            return
        state = RecommendationState.SHADOW if event.mode is Mode.MONITOR else RecommendationState.PROPOSED
        known = self.recommendations.get(event.recommendation)
        if known is None:
            self.by_attempt.setdefault(event.attempt, []).append(event.recommendation)
        self.recommendations[event.recommendation] = RecommendationRecord(
            issued=event,
            position=known.position if known else position,
            revision=position,
            created_at=known.created_at if known else event.at,
            state=state,
            feedback=known.feedback if known else (),
        )

    def _advance(
        self,
        position: int,
        event: AboutRecommendation,
    ) -> None:
        known = self.recommendations.get(event.recommendation)
        if known is None:
            return
        self.recommendations[known.id] = replace(advanced(known, event), revision=position)
        if isinstance(event, MilestoneRecorded):
            self.milestone_keys[event.recommendation, event.idempotency_key] = event

    def _exclude(self, position: int, event: ExclusionAdded | ExclusionPardoned | ExclusionExpired) -> None:
        scope = event.exclusion.scope if isinstance(event, ExclusionAdded) else event.scope
        key = exclusion_key(event.cluster or ClusterId(""), scope, event.workload, event.node)
        if not isinstance(event, ExclusionAdded):
            self.exclusions.pop(key, None)
            return
        known = self.exclusions.get(key)
        self.exclusions[key] = ExclusionRecord(
            exclusion=event.exclusion,
            cluster=event.cluster or ClusterId(""),
            workload=event.workload if scope == "workload" else None,
            position=known.position if known else position,
            added_at=event.at,
            actor=event.actor,
            evidence=event.evidence,
        )

    def _mute(self, position: int, event: SilenceAdded | SilenceEnded) -> None:
        if isinstance(event, SilenceAdded):
            self.silences[event.silence.id] = SilenceRecord(silence=event.silence, position=position)
        elif (known := self.silences.get(event.silence)) is not None and known.ended_at is None:
            self.silences[known.id] = replace(known, ended_at=event.at, ended_by=event.actor, end_reason=event.reason)

    def _operate(self, event: ModeChanged | PolicyChanged | StageChanged) -> None:
        if isinstance(event, StageChanged):
            self.stages.setdefault((event.cluster or ClusterId(""), event.failure_class), []).append(
                StageEntry(
                    failure_class=event.failure_class, stage=event.stage, previous=event.previous, actor=event.actor,
                    reason=event.reason, changed_at=event.at, record=event.record, cluster=event.cluster,
                )
            )  # fmt: skip
            return
        if isinstance(event, PolicyChanged):
            self.policy = PolicyText(
                text=event.text,
                version=event.version,
                actor=event.actor,
                reason=event.reason,
                changed_at=event.at,
            )
            return
        self.modes[event.cluster or "", event.scope, event.target] = ModeEntry(
            scope=event.scope,
            target=event.target,
            mode=event.mode,
            actor=event.actor,
            reason=event.reason,
            changed_at=event.at,
            cluster=event.cluster,
        )


def _furthest(known: int | None, said: object) -> int | None:
    if not isinstance(said, int) or isinstance(said, bool):
        return known
    return said if known is None else max(known, said)
