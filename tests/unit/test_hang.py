# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The hang detector: suspicion, confirmation, what forbids both, and which rank is named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from detectors.hang import HangDetector
from relight.ports import Detector, ProbeReading, ProbeSays
from relight.types import (
    Anomaly,
    AttemptId,
    AttemptState,
    Heartbeat,
    JobShape,
    LogLine,
    NodeEvent,
    NodeName,
    Observation,
    Phase,
    Rank,
    SchedulerState,
    Scope,
    StepBatch,
    StepProgress,
    Stream,
    Tier,
    WorkloadId,
)
from service.diagnosis import Diagnostician

T0 = datetime(2026, 1, 2, tzinfo=UTC)
JOB = AttemptId("job.0")
WATCHDOG = (
    "[rank3]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=118, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600042 milliseconds"
)


@dataclass
class Run:
    """A detector in virtual time, ticked every five seconds."""

    detector: HangDetector = field(default_factory=HangDetector)
    now_s: float = 0.0
    found: list[Anomaly] = field(default_factory=list)

    def at(self, seconds: float) -> datetime:
        return T0 + timedelta(seconds=seconds)

    def wait(self, seconds: float) -> Run:
        end = self.now_s + seconds
        while self.now_s < end:
            self.now_s = min(end, self.now_s + 5.0)
            self.found += self.detector.overdue(self.at(self.now_s))
        return self

    def see(self, *seen: Observation) -> Run:
        for one in seen:
            self.found += self.detector.observe(one)
        return self

    def train(self, steps: Iterable[int], *, every_s: float = 5.0, ranks: Sequence[int] = ()) -> Run:
        for number in steps:
            self.wait(every_s)
            for rank in ranks or (None,):
                self.see(step(number, self.at(self.now_s), rank))
        return self

    @property
    def tiers(self) -> list[Tier]:
        return [anomaly.tier for anomaly in self.found]

    @property
    def confirmed(self) -> list[Anomaly]:
        return [anomaly for anomaly in self.found if anomaly.tier is Tier.CONFIRMED]


def step(number: int, at: datetime, rank: int | None = None, attempt: AttemptId = JOB) -> StepProgress:
    return StepProgress(attempt=attempt, at=at, step=number, rank=Rank(rank) if rank is not None else None)


def phase(kind: Phase, at: datetime, *, is_completed: bool = False) -> StepProgress:
    return StepProgress(attempt=JOB, at=at, phase=kind, is_completed=is_completed)


def state(of: AttemptState, at: datetime, reason: str = "") -> SchedulerState:
    return SchedulerState(attempt=JOB, at=at, state=of, reason=reason)


def trained() -> Run:
    return Run().train(range(1, 60))


def test_it_is_a_detector() -> None:
    assert isinstance(HangDetector(), Detector)


def test_a_job_that_goes_on_is_never_suspected() -> None:
    assert trained().train(range(60, 600)).found == []


def test_a_stopped_job_is_first_suspected_and_then_confirmed_once() -> None:
    run = trained().wait(3 * 3600)
    assert run.tiers == [Tier.SUSPECT, Tier.CONFIRMED]
    suspect, confirmed = run.found
    assert suspect.detected_at - suspect.onset_at < timedelta(seconds=60)
    assert confirmed.detected_at - confirmed.onset_at < timedelta(seconds=550)
    assert confirmed.threshold is not None
    assert confirmed.score > confirmed.threshold
    assert confirmed.baseline == 5.0
    assert confirmed.scope == Scope.JOB
    assert "culprit unknown" in confirmed.summary


def test_a_suspicion_is_dropped_when_the_job_goes_on_and_may_come_back() -> None:
    run = trained().wait(70).train(range(60, 80)).wait(100)
    assert run.tiers == [Tier.SUSPECT, Tier.SUSPECT]


def test_a_pause_in_a_marked_phase_is_given_longer_than_a_plain_one() -> None:
    run = trained()
    run.see(phase(Phase.CHECKPOINT, run.at(run.now_s))).wait(350)
    assert run.confirmed == []


@pytest.mark.parametrize("kind", [Phase.CHECKPOINT, Phase.EVALUATION, Phase.DATA])
def test_a_phase_that_never_ends_is_a_hang_in_that_phase(kind: Phase) -> None:
    run = trained()
    run.see(phase(kind, run.at(run.now_s))).wait(7200)
    assert [a.detail["phase"] for a in run.confirmed] == [kind]


def test_how_long_a_phase_lasts_is_learned() -> None:
    def limit_after(evaluations: int) -> float:
        run, number = trained(), 60
        for _ in range(evaluations):
            run.see(phase(Phase.EVALUATION, run.at(run.now_s))).wait(60)
            run.train(range(number, number + 20))
            number += 20
        began = run.now_s
        run.see(phase(Phase.EVALUATION, run.at(began))).wait(7200)
        (hang,) = run.confirmed
        return (hang.detected_at - run.at(began)).total_seconds()

    assert limit_after(20) < 0.4 * limit_after(0)


def test_an_unmarked_checkpoint_is_known_by_its_period() -> None:
    run = Run()
    for number in range(1, 1200):
        run.train([number], every_s=2.5)
        if number % 100 == 0:
            run.wait(120)
    assert run.confirmed == []
    suspects = [a.detected_at for a in run.found]
    assert all(at < run.at(2000) for at in suspects)


@pytest.mark.parametrize("of", [AttemptState.ENDING, AttemptState.PENDING, AttemptState.COMPLETED, AttemptState.FAILED])
def test_nothing_is_said_of_a_job_that_the_scheduler_does_not_run(of: AttemptState) -> None:
    run = trained()
    assert run.see(state(of, run.at(run.now_s))).wait(7200).found == []


def test_a_suspended_job_is_not_hung_and_its_pause_does_not_count_afterwards() -> None:
    run = trained()
    run.see(state(AttemptState.RUNNING, run.at(run.now_s), "JobSuspended")).wait(3600)
    run.see(state(AttemptState.RUNNING, run.at(run.now_s))).wait(25)
    assert run.found == []
    assert [a.tier for a in run.wait(3600).found] == [Tier.SUSPECT, Tier.CONFIRMED]


def test_our_own_absence_is_not_the_jobs_silence() -> None:
    run = trained()
    run.now_s += 7200
    run.found += run.detector.overdue(run.at(run.now_s))
    run.wait(20)
    assert run.found == []


@dataclass
class Said:
    says: ProbeSays
    ranks: tuple[Rank, ...] = ()
    name: str = "probe"

    def read(self, attempt: AttemptId, now: datetime) -> ProbeReading:
        return ProbeReading(probe=self.name, says=self.says, ranks=self.ranks)


def probed(*probes: Said) -> Run:
    return Run(HangDetector(probes=probes)).train(range(1, 60))


def test_a_probe_that_agrees_confirms_at_once_and_names_the_rank() -> None:
    run = probed(Said(ProbeSays.HUNG, (Rank(3),))).wait(100)
    assert run.tiers == [Tier.SUSPECT, Tier.CONFIRMED]
    assert run.found[1].rank == 3
    assert run.found[1].detected_at == run.found[0].detected_at


def test_a_collector_that_lags_forbids_any_verdict() -> None:
    assert probed(Said(ProbeSays.HOLD), Said(ProbeSays.HUNG)).wait(7200).found == []


def test_a_probe_that_calls_the_job_alive_delays_the_verdict() -> None:
    run = probed(Said(ProbeSays.ALIVE)).wait(1700)
    assert run.tiers == [Tier.SUSPECT]
    assert len(run.wait(300).confirmed) == 1


def test_a_probe_that_knows_nothing_changes_nothing() -> None:
    def times(run: Run) -> list[tuple[Tier, datetime]]:
        return [(a.tier, a.detected_at) for a in run.found]

    assert times(probed(Said(ProbeSays.UNKNOWN)).wait(3600)) == times(trained().wait(3600))


def test_a_job_that_still_writes_is_given_longer() -> None:
    run = trained()
    for number in range(40):
        run.see(LogLine(attempt=JOB, file="x", number=number, stream=Stream.APPLICATION, text="validating"))
        run.wait(25)
    assert run.confirmed == []


def test_a_fatal_node_event_confirms_a_suspicion_and_names_the_node() -> None:
    run = trained()
    run.detector.place_ranks(JOB, {Rank(0): NodeName("n1"), Rank(1): NodeName("n2")})
    run.see(NodeEvent(at=run.at(run.now_s), node=NodeName("n2"), code="xid_79", is_fatal=True)).wait(100)
    assert [(a.node, a.scope) for a in run.confirmed] == [("n2", Scope.NODE)]


def test_a_fatal_event_of_a_foreign_node_proves_nothing() -> None:
    run = trained()
    run.detector.place_ranks(JOB, {Rank(0): NodeName("n1")})
    run.see(NodeEvent(at=run.at(run.now_s), node=NodeName("n9"), code="xid_79", is_fatal=True)).wait(100)
    assert run.confirmed == []


# ------------------------------------------------------------------ signatures


def line(text: str) -> LogLine:
    return LogLine(attempt=JOB, file="job.log", number=7, stream=Stream.APPLICATION, text=text)


def test_a_watchdog_line_confirms_at_once(shipped: Diagnostician) -> None:
    run = Run(HangDetector(shipped.signatures)).train(range(1, 20))
    run.see(line(WATCHDOG), line(WATCHDOG))
    (anomaly,) = run.found
    assert anomaly.tier is Tier.CONFIRMED
    assert anomaly.evidence[0].line == 7
    assert anomaly.rank is None  # the rank that speaks waits for another


def test_a_barrier_that_names_the_missing_ranks_accuses_them(shipped: Diagnostician) -> None:
    run = Run(HangDetector(shipped.signatures)).train(range(1, 20))
    run.see(line("[rank0]: RuntimeError: [Rank 0]: Ranks 3, 5 failed to pass monitoredBarrier in 120000 ms"))
    assert run.found[0].detail["ranks"] == [3, 5]


def test_lines_that_only_state_the_limit_confirm_nothing(shipped: Diagnostician) -> None:
    run = Run(HangDetector(shipped.signatures)).train(range(1, 20))
    run.see(line("ProcessGroupNCCL initialized with options: size: 8, global rank: 0, TIMEOUT(ms): 600000"))
    assert run.found == []


def test_a_watchdog_line_after_the_run_has_ended_is_teardown(shipped: Diagnostician) -> None:
    run = Run(HangDetector(shipped.signatures)).train(range(1, 20))
    run.see(phase(Phase.END, run.at(run.now_s), is_completed=True), line(WATCHDOG))
    assert run.found == []


# ------------------------------------------------------------------ which rank


def beat(run: Run, ranks: Iterable[int]) -> None:
    run.see(*(Heartbeat(attempt=JOB, at=run.at(run.now_s), rank=Rank(r)) for r in ranks))


def test_the_rank_whose_heartbeat_stops_is_named_and_confirms_the_hang() -> None:
    run = Run()
    for number in range(1, 60):
        run.train([number], ranks=range(8))
        beat(run, range(8))
    for _ in range(60):
        run.wait(5)
        beat(run, set(range(8)) - {2})
    assert [(a.rank, a.scope) for a in run.confirmed] == [(2, Scope.RANK)]
    assert run.confirmed[0].detected_at - run.confirmed[0].onset_at < timedelta(seconds=70)


def test_the_rank_that_fell_behind_is_named_by_its_steps() -> None:
    run = Run().train(range(1, 60), ranks=range(8)).train([60], ranks=[0, 1, 2, 4, 5, 6, 7]).wait(600)
    assert [a.rank for a in run.confirmed] == [3]


def test_with_lines_of_one_writer_the_culprit_is_unknown() -> None:
    run = Run().train(range(1, 60), ranks=[0]).wait(600)
    assert [(a.rank, a.scope, a.detail["ranks"]) for a in run.confirmed] == [(None, Scope.JOB, [])]


def test_when_all_heartbeats_stop_nobody_is_named() -> None:
    run = Run()
    for number in range(1, 60):
        run.train([number], ranks=range(8))
        beat(run, range(8))
    run.wait(600)
    assert [a.scope for a in run.confirmed] == [Scope.JOB]


def test_a_rank_that_left_long_before_is_not_accused() -> None:
    run = Run().train(range(1, 30), ranks=range(8)).train(range(30, 200), ranks=range(7)).wait(600)
    assert [a.detail["ranks"] for a in run.confirmed] == [[]]


def test_a_rank_that_always_reports_late_is_not_accused() -> None:
    run = Run()
    for number in range(1, 60):
        run.train([number], ranks=range(7))
        run.see(step(max(1, number - 2), run.at(run.now_s), 7))
    assert [a.detail["ranks"] for a in run.wait(600).confirmed] == [[]]


def test_a_batch_of_ranks_counts_as_their_steps() -> None:
    run = Run()
    for number in range(1, 60):
        run.wait(5)
        times = [1.0, 1.0, float("nan") if number > 58 else 1.0, 1.0, 1.0]
        run.see(StepBatch(attempt=JOB, at=run.at(run.now_s), step=number, ranks=range(5), step_s=times))
    assert [a.rank for a in run.wait(600).confirmed] == [2]


# ------------------------------------------------------------------ attempts


def test_a_checkpoint_left_open_by_the_last_attempt_is_open_no_more() -> None:
    run = trained()
    run.see(phase(Phase.CHECKPOINT, run.at(run.now_s)))
    run.detector.follow(AttemptId("job.1"), JOB)
    for number in range(60, 90):
        run.wait(5).see(step(number, run.at(run.now_s), attempt=AttemptId("job.1")))
    run.detector.forget(JOB)
    found = run.wait(570).confirmed
    assert [(a.attempt, a.detail["phase"]) for a in found] == [("job.1", "step")]


def test_an_attempt_of_the_same_shape_inherits_what_phases_took() -> None:
    run = trained()
    run.see(JobShape(attempt=JOB, at=T0, workload=WorkloadId("w"), world_size=8))
    for number in range(60, 180, 10):
        run.see(phase(Phase.EVALUATION, run.at(run.now_s))).wait(50).train(range(number, number + 10))
    after = AttemptId("job.1")
    run.see(JobShape(attempt=after, at=T0, workload=WorkloadId("w"), world_size=8))
    for number in range(180, 200):
        run.wait(5).see(step(number, run.at(run.now_s), attempt=after))
    run.detector.forget(JOB)
    run.see(StepProgress(attempt=after, at=run.at(run.now_s), phase=Phase.EVALUATION)).wait(900)
    assert [a.attempt for a in run.confirmed] == [after]


def test_a_restart_inside_the_attempt_starts_from_an_earlier_step_without_a_verdict() -> None:
    run = trained()
    run.see(phase(Phase.CHECKPOINT, run.at(run.now_s))).wait(20)
    run.see(phase(Phase.START, run.at(run.now_s))).wait(280)
    run.train(range(40, 100))
    assert run.found == []


def test_a_job_without_any_progress_line_is_suspected_but_never_called_hung() -> None:
    run = Run().see(state(AttemptState.RUNNING, T0)).wait(6 * 3600)
    assert run.tiers == [Tier.SUSPECT]
    assert run.found[0].detail["phase"] == "start"


def test_long_steps_and_rare_lines_are_not_hangs() -> None:
    run = Run().see(state(AttemptState.RUNNING, T0)).train(range(100, 1500, 100), every_s=1700.0)
    assert run.confirmed == []


def test_finished_attempts_are_forgotten() -> None:
    run = trained()
    run.detector.forget(JOB)
    run.detector.forget(AttemptId("never seen"))
    assert run.wait(7200).found == []
    assert json.loads(json.dumps(run.detector.snapshot()))["watches"] == {}


# ------------------------------------------------------------------ bad input


def test_a_wrong_clock_of_the_sender_makes_no_pause_and_hides_none() -> None:
    for skew in (-3600, 3600):
        run = Run()
        for number in range(1, 100):
            run.wait(5).see(step(number, run.at(run.now_s + skew)))
        assert run.found == []
        assert len(run.wait(590).confirmed) == 1


def test_late_and_repeated_steps_are_no_progress() -> None:
    run = trained()
    for _ in range(400):
        run.wait(5).see(step(58, run.at(run.now_s)), step(59, run.at(run.now_s)))
    assert len(run.confirmed) == 1


def test_a_counter_that_starts_anew_each_epoch_is_no_pause() -> None:
    run = Run()
    for _ in range(5):
        run.train(range(1, 40))
    assert run.found == []


def test_silent_logs_are_no_hang_while_timings_advance() -> None:
    run = trained()
    for number in range(60, 400):
        run.wait(5)
        run.see(StepBatch(attempt=JOB, at=run.at(run.now_s), step=number, ranks=range(4), step_s=[1.0] * 4))
    assert run.found == []


def test_state_of_another_version_is_refused() -> None:
    with pytest.raises(ValueError, match="version 99"):
        HangDetector().restore({"version": 99})


def test_silence_before_our_own_first_tick_is_ours_and_not_the_jobs() -> None:
    detector = HangDetector()
    detector.overdue(T0)
    detector.observe(SchedulerState(attempt=JOB, at=T0, state=AttemptState.RUNNING))
    detector.observe(StepProgress(attempt=JOB, at=T0 + timedelta(seconds=1), step=1))
    assert detector.overdue(T0 + timedelta(hours=3)) == ()
