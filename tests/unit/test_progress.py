# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What counts as getting further, and what the ledger makes of it."""

from __future__ import annotations

from dataclasses import asdict
from datetime import timedelta

import pytest

from relight.progress import REMEMBERED_ATTEMPTS, Ledger, StepLedger, entity_key, root_key
from relight.types import AttemptId, FailureName, NodeName, Progress, StepProgress
from tests.unit.policy_cases import AT, HOUR, blame, line, suspect


def ran(*seen: tuple[str, int | None, int | None]) -> StepLedger:
    """A step ledger that saw (attempt, step, checkpoint) completed, in that order."""
    ledger = StepLedger()
    for attempt, step, checkpoint in seen:
        ledger.observe(StepProgress(attempt=AttemptId(attempt), at=AT, step=step, checkpoint_step=checkpoint))
    return ledger


# ------------------------------------------------------------------ steps


def test_a_first_attempt_with_a_completed_step_made_progress() -> None:
    assert ran(("a", 1, None)).progress_of(AttemptId("a")) is Progress.YES


def test_an_attempt_nobody_heard_of_is_unknown() -> None:
    assert StepLedger().progress_of(AttemptId("a")) is Progress.UNKNOWN


def test_running_again_over_old_steps_is_no_progress() -> None:
    assert ran(("a", 150, 100), ("b", 101, None), ("b", 150, None)).progress_of(AttemptId("b")) is Progress.NO


def test_one_step_beyond_or_a_newer_checkpoint_is_progress() -> None:
    assert ran(("a", 150, 100), ("b", 151, None)).progress_of(AttemptId("b")) is Progress.YES
    assert ran(("a", 150, 100), ("b", 120, 110)).progress_of(AttemptId("b")) is Progress.YES


def test_what_was_only_begun_is_no_progress() -> None:
    ledger = StepLedger()
    begun = StepProgress(attempt=AttemptId("a"), at=AT, checkpoint_step=100, is_completed=False)
    ledger.observe(begun)
    assert ledger.progress_of(AttemptId("a")) is Progress.UNKNOWN


def test_silence_means_no_progress_only_if_the_log_was_read_whole() -> None:
    ledger = ran(("a", 10, None))
    ledger.ended(AttemptId("b"), was_readable=False)
    assert ledger.progress_of(AttemptId("b")) is Progress.UNKNOWN
    ledger.ended(AttemptId("b"), was_readable=True)
    assert ledger.progress_of(AttemptId("b")) is Progress.NO


def test_a_late_report_is_credited_to_its_own_attempt() -> None:
    ledger = ran(("a", 10, None), ("b", 15, None), ("a", 20, None))
    assert ledger.progress_of(AttemptId("b")) is Progress.NO
    assert ledger.progress_of(AttemptId("a")) is Progress.YES


def test_an_attempt_is_measured_against_all_before_it_not_the_last_alone() -> None:
    ledger = ran(("a", 100, None), ("b", 5, None), ("c", 50, None))
    assert ledger.progress_of(AttemptId("c")) is Progress.NO


def test_old_attempts_are_forgotten_but_not_how_far_they_got() -> None:
    ledger = ran(("first", 1000, 900), *((f"t{n}", n, None) for n in range(REMEMBERED_ATTEMPTS + 5)))
    assert ledger.progress_of(AttemptId("first")) is Progress.UNKNOWN
    assert ledger.last_checkpoint() == 900
    ledger.observe(StepProgress(attempt=AttemptId("new"), at=AT, step=999))
    assert ledger.progress_of(AttemptId("new")) is Progress.NO


def test_the_last_step_is_that_of_the_attempt() -> None:
    ledger = ran(("a", 7, None), ("a", 5, None))
    assert (ledger.last_step(AttemptId("a")), ledger.last_step(AttemptId("z"))) == (7, None)


# ------------------------------------------------------------------ strikes


def test_only_a_known_lack_of_progress_is_a_strike() -> None:
    cause = blame("segfault")
    for progress, strikes in ((Progress.NO, 1), (Progress.UNKNOWN, 0), (Progress.YES, 0)):
        after = Ledger().after(cause, progress, AT)
        assert (after.same_root_without_progress, after.attempts_without_progress) == (strikes, strikes)
        assert after.total_restarts == 1


def test_unknown_progress_neither_adds_a_strike_nor_forgives_one() -> None:
    cause = blame("segfault")
    after = Ledger().after(cause, Progress.NO, AT).after(cause, Progress.UNKNOWN, AT)
    assert (after.same_root_without_progress, after.attempts_without_progress, after.repeats) == (1, 1, 2)


def test_progress_wipes_the_strikes_out() -> None:
    cause = blame("segfault")
    after = Ledger().after(cause, Progress.NO, AT).after(cause, Progress.YES, AT)
    assert (after.same_root_without_progress, after.attempts_without_progress, after.repeats) == (0, 0, 0)
    assert after.ever_progressed


def test_another_root_starts_its_own_count() -> None:
    after = Ledger().after(blame("segfault", text="in a"), Progress.NO, AT)
    after = after.after(blame("segfault", text="in b"), Progress.NO, AT)
    assert (after.same_root_without_progress, after.attempts_without_progress) == (1, 2)


@pytest.mark.parametrize(
    "name",
    ["preempted", "time_limit", "user_cancelled", "node_removed", "pod_evicted_by_taint", "none",
     "insufficient_gpu_capacity", "step_waiting_for_resources", "crash_after_completion"],
)  # fmt: skip
def test_ends_that_are_nobodys_failure_count_nothing(name: str) -> None:
    assert Ledger().after(blame(name), Progress.NO, AT) == Ledger()


def test_a_preempted_attempt_that_got_further_still_forgives() -> None:
    struck = Ledger().after(blame("segfault"), Progress.NO, AT)
    after = struck.after(blame("preempted"), Progress.YES, AT)
    assert (after.attempts_without_progress, after.total_restarts) == (0, 1)


def test_the_table_may_count_what_is_not_counted_by_default() -> None:
    assert Ledger().after(blame("node_removed"), Progress.NO, AT, counts=True).total_restarts == 1
    assert Ledger().after(blame("segfault"), Progress.NO, AT, counts=False) == Ledger()


def test_accusations_are_counted_by_failure_node_and_gpu_within_a_day() -> None:
    cause = blame("gpu_mmu_fault", suspect("n1", gpu="g0"))
    twice = Ledger().after(cause, Progress.YES, AT).after(cause, Progress.YES, AT + HOUR)
    gpu = entity_key(FailureName("gpu_mmu_fault"), NodeName("n1"), "g0")
    assert twice.same_node[gpu] == 2
    assert twice.times_accused(FailureName("gpu_mmu_fault"), suspect("n1")) == 2
    assert twice.times_accused(FailureName("gpu_mmu_fault"), suspect("n1", gpu="g1")) == 0
    assert twice.times_accused(FailureName("segfault"), suspect("n1")) == 0
    later = twice.after(blame("segfault"), Progress.YES, AT + timedelta(hours=26))
    assert later.same_node == {}


def test_one_attempt_accuses_a_node_once() -> None:
    after = Ledger().after(blame("segfault", suspect("n1"), suspect("n1")), Progress.NO, AT)
    assert after.same_node == {"segfault@n1": 1}


def test_a_ledger_is_plain_data() -> None:
    after = Ledger().after(blame("segfault", suspect("n1")), Progress.NO, AT)
    assert Ledger(**asdict(after)) == after


# ------------------------------------------------------------------ the same root


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (
            "[rank3]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=118, OpType=ALLREDUCE)",
            "[rank11]: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLREDUCE)",
        ),
        (
            "node-17: segfault at 0x7ffe12 ip 00007f3a9c1b2d40",
            "node-9: segfault at 0x7ff9 ip 00007fbb9c1b2e41",
        ),
        ("NVRM: Xid (PCI:0000:3b:00): 79, pid=1203", "NVRM: Xid (PCI:0000:3b:00): 79, pid=88"),
        ("GPU-5f3e0a11-1b2c-4d5e-8f90-aabbccddeeff lost", "GPU-00aa0a11-1b2c-4d5e-8f90-aabbccddee01 lost"),
        ("2026-03-01 12:00:01,123 error", "2026-03-02 09:10:11,9 error"),
        ("\x1b[31mRuntimeError\x1b[0m: x", "RuntimeError: x"),
        ("out of  memory", "out of memory "),
    ],
)
def test_two_tellings_of_one_failure_have_one_root(one: str, other: str) -> None:
    assert root_key(blame("segfault", text=one)) == root_key(blame("segfault", text=other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("OpType=ALLREDUCE", "OpType=ALLGATHER"),
        ("KeyError: 'labels'", "KeyError: 'input_ids'"),
        ("No such file: /data/train.bin", "No such file: /data/valid.bin"),
    ],
)
def test_two_failures_of_one_kind_keep_their_own_roots(one: str, other: str) -> None:
    assert root_key(blame("segfault", text=one)) != root_key(blame("segfault", text=other))


def test_the_host_that_tells_it_is_no_part_of_the_root() -> None:
    name = FailureName("segfault")
    keys = {
        root_key(blame("segfault", root=line(name, f"{host} died of a signal", host))) for host in ("alpha", "beta")
    }
    assert len(keys) == 1


def test_without_a_root_line_the_failure_alone_is_the_root() -> None:
    assert root_key(blame("segfault", root=None)) == ("segfault", "")
