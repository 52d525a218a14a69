# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The hang detector: suspicion, confirmation, what forbids both, and which rank is named."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from detectors.hang import HangDetector
from relight.ports import Detector, ProbeReading, ProbeSays
from relight.types import (
    AttemptId,
    AttemptState,
    JobShape,
    LogLine,
    NodeEvent,
    NodeName,
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
from tests.unit.hang_runs import JOB, T0, WATCHDOG, Run, phase, state, step, trained


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
