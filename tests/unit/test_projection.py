# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The fold: every event of the union is taken, in order, and once."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from relight.events import (
    EVENT_TYPES,
    AttemptObserved,
    Disposition,
    Event,
    ExclusionAdded,
    ExclusionPardoned,
    MilestonePhase,
    MilestoneRecorded,
    ModeChanged,
    RecommendationApproved,
    RecommendationClaimed,
    RecommendationIssued,
    ReconciliationReported,
    SignalAccepted,
)
from relight.incidents import RecommendationState
from relight.testing.audit import samples
from relight.types import (
    Action,
    AttemptId,
    AttemptState,
    ClusterId,
    EvidenceStatus,
    Exclusion,
    FailureClass,
    FailureName,
    Mode,
    NodeName,
    RecommendationId,
    WorkloadId,
)
from service.projection import Projection

NOW = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
ATTEMPT, WORKLOAD, CLUSTER = AttemptId("a-1"), WorkloadId("w-1"), ClusterId("c-1")
ADVICE = RecommendationId("r-1")


def folded(*events: Event) -> Projection:
    state = Projection()
    for position, event in enumerate(events, 1):
        state.apply(position, event)
    return state


def observed(state: AttemptState = AttemptState.RUNNING, **over: object) -> AttemptObserved:
    said = AttemptObserved(at=NOW, attempt=ATTEMPT, workload=WORKLOAD, cluster=CLUSTER, state=state)
    return replace(said, **over)  # type: ignore[arg-type]


def issued(mode: Mode = Mode.ACT, generation: int = 1) -> RecommendationIssued:
    return RecommendationIssued(
        at=NOW,
        recommendation=ADVICE,
        attempt=ATTEMPT,
        action=Action.RESTART,
        generation=generation,
        mode=mode,
        is_actionable=mode is Mode.ACT,
        failure=FailureName("x"),
        failure_class=FailureClass.UNKNOWN,
        evidence_status=EvidenceStatus.UNKNOWN,
        decide_deadline=NOW,
        expires_at=NOW + timedelta(minutes=15),
        workload=WORKLOAD,
        cluster=CLUSTER,
    )


def claimed(token: str = "t") -> RecommendationClaimed:
    return RecommendationClaimed(
        at=NOW, recommendation=ADVICE, generation=1, actor="c", lease_expires_at=NOW, claim_token_sha256=token
    )


def reported(disposition: Disposition) -> ReconciliationReported:
    return ReconciliationReported(at=NOW, recommendation=ADVICE, generation=1, disposition=disposition, actor="c")


def milestone(phase: MilestonePhase) -> MilestoneRecorded:
    return MilestoneRecorded(at=NOW, recommendation=ADVICE, step="release", phase=phase, idempotency_key=f"k-{phase}")


APPROVED = RecommendationApproved(at=NOW, recommendation=ADVICE, generation=1, actor="ada")


@pytest.mark.parametrize(
    ("events", "state"),
    [
        ([issued()], RecommendationState.PROPOSED),
        ([issued(Mode.APPROVE)], RecommendationState.PROPOSED),
        ([issued(Mode.MONITOR)], RecommendationState.SHADOW),
        ([issued(), APPROVED], RecommendationState.APPROVED),
        ([issued(), APPROVED, issued(generation=2)], RecommendationState.PROPOSED),
        ([issued(), claimed()], RecommendationState.CLAIMED),
        ([issued(), claimed(), milestone(MilestonePhase.INTENT)], RecommendationState.ACTING),
        ([issued(), claimed(), milestone(MilestonePhase.DONE)], RecommendationState.CLAIMED),
        ([issued(), claimed(), reported(Disposition.PENDING), claimed("u")], RecommendationState.ACTING),
        ([issued(), claimed(), reported(Disposition.FAILED)], RecommendationState.FAILED),
    ],
)
def test_a_recommendation_is_where_its_events_put_it(events: list[Event], state: RecommendationState) -> None:
    assert folded(*events).recommendations[ADVICE].state is state


def test_the_newest_claim_is_the_one_that_counts() -> None:
    claim = folded(issued(), claimed("old"), claimed("new")).recommendations[ADVICE].claim
    assert claim is not None and claim.token_sha256 == "new"


def test_folding_a_position_twice_changes_nothing() -> None:
    state = folded(observed(), issued())
    state.apply(2, issued(generation=9))
    assert state.recommendations[ADVICE].generation == 1


def test_progress_only_ever_rises() -> None:
    steps = [
        SignalAccepted(at=NOW, source="s", accepted=1, attempt=ATTEMPT, counts={"step": step}) for step in (5, 9, 7)
    ]
    assert folded(observed(), *steps).attempts[ATTEMPT].last_step == 9


def test_an_attempt_ended_when_it_first_was_seen_ended() -> None:
    late = NOW + timedelta(minutes=5)
    state = folded(observed(), observed(AttemptState.FAILED), observed(AttemptState.FAILED, at=late))
    assert state.attempts[ATTEMPT].ended_at == NOW
    assert folded(observed(AttemptState.FAILED), observed()).attempts[ATTEMPT].ended_at is None


def test_exclusions_of_a_workload_and_of_its_cluster_are_two() -> None:
    def excluded(scope: str) -> ExclusionAdded:
        exclusion = Exclusion(node=NodeName("n1"), reason="r", score=1.0, expires_at=NOW, scope=scope)
        return ExclusionAdded(at=NOW, exclusion=exclusion, workload=WORKLOAD, cluster=CLUSTER)

    pardoned = ExclusionPardoned(at=NOW, node=NodeName("n1"), actor="ada", scope="cluster", cluster=CLUSTER)
    assert len(folded(excluded("workload"), excluded("cluster")).exclusions) == 2
    (left,) = folded(excluded("workload"), excluded("cluster"), pardoned).exclusions.values()
    assert left.exclusion.scope == "workload"


def test_a_mode_set_for_one_cluster_says_nothing_of_another() -> None:
    event = ModeChanged(
        at=NOW, scope="class", target="hardware", mode=Mode.MONITOR, actor="a", reason="r", cluster=CLUSTER
    )
    state = folded(event)
    assert state.mode_for("c-1", "", "hardware", "") == [Mode.MONITOR]
    assert state.mode_for("c-2", "", "hardware", "") == []


def test_any_part_of_a_log_folds() -> None:
    events = samples()
    for begin in range(len(events)):
        assert folded(*events[begin:]).position == len(events) - begin


def test_every_kind_of_event_is_counted() -> None:
    state = folded(*samples())
    assert set(state.counted.events) <= set(EVENT_TYPES)
    assert sum(state.counted.events.values()) == len(samples())


def test_a_jobs_own_restart_count_finds_its_attempt_in_a_workload_of_several_jobs() -> None:
    first = observed(attempt=AttemptId("w-0"), attempt_index=0, scheduler={"job_id": "7", "restart_count": 0})
    later = [
        observed(attempt=AttemptId(f"w-{n}"), attempt_index=n, scheduler={"job_id": "9", "restart_count": n - 1})
        for n in (1, 2)
    ]
    state = folded(first, *later)
    cluster = first.cluster
    assert [state.attempt_of_job(cluster, "9", n) for n in (0, 1, 2, None)] == ["w-1", "w-2", None, "w-2"]
    assert state.attempt_of_job(cluster, "7", 0) == "w-0"
