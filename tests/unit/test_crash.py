# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The crash detector: the same verdict from a stream of batches as from whole files, in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from detectors.crash import HEAD_LINES, MAX_KEPT_LINES, TAIL_LINES, CrashDetector
from relight.types import AttemptId, LogLine, NodeName, Rank, Stream
from service.diagnosis import Diagnostician

ATTEMPT = AttemptId("a-1")
AT = datetime(2026, 1, 2, tzinfo=UTC)
TIMEOUT = (
    "[rank3]:[E1218 20:27:21.426415540 ProcessGroupNCCL.cpp:629] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=118000, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600042 milliseconds"
)


def detector(shipped: Diagnostician) -> CrashDetector:
    return CrashDetector(shipped.signatures, shipped.progress, shipped.taxonomy)


def batch(*texts: str, first: int = 1, file: str = "job.log") -> list[LogLine]:
    return [
        LogLine(attempt=ATTEMPT, file=file, number=n, stream=Stream.APPLICATION, text=text)
        for n, text in enumerate(texts, first)
    ]


def test_a_crash_is_named_from_batches(shipped: Diagnostician) -> None:
    crash = detector(shipped)
    crash.observe_lines(ATTEMPT, batch("starting", "step 1"))
    crash.observe_lines(ATTEMPT, batch(TIMEOUT, first=3))
    said, _ = crash.attribution(ATTEMPT)
    assert said.failure == "nccl_collective_timeout"
    assert said.root is not None
    assert said.root.where.line == 3


def test_a_batch_sent_twice_changes_nothing(shipped: Diagnostician) -> None:
    crash = detector(shipped)
    assert crash.observe_lines(ATTEMPT, batch("a", TIMEOUT)) == 2
    assert crash.observe_lines(ATTEMPT, batch("a", TIMEOUT)) == 0
    assert [e.count for e in crash.attribution(ATTEMPT)[1]] == [1]


def test_an_attempt_without_lines_has_no_failure_and_no_anomaly(shipped: Diagnostician) -> None:
    crash = detector(shipped)
    assert crash.attribution(AttemptId("never seen"))[0].failure == "none"
    assert crash.anomaly(AttemptId("never seen"), AT) is None


def test_an_anomaly_has_the_root_lines_own_time_as_its_onset(shipped: Diagnostician) -> None:
    crash = detector(shipped)
    stamped = "[2026-01-01 23:59:00,000] torch.distributed: [ERROR] " + TIMEOUT.split("] ", 2)[2]
    crash.observe_lines(ATTEMPT, batch(stamped))
    anomaly = crash.anomaly(ATTEMPT, AT)
    assert anomaly is not None
    assert anomaly.detected_at - anomaly.onset_at == timedelta(seconds=60)


def test_memory_is_bounded_and_the_first_failure_is_not_lost(shipped: Diagnostician) -> None:
    crash = detector(shipped)
    crash.observe_lines(ATTEMPT, batch(TIMEOUT))
    chunk = 5_000
    for start in range(2, 100_002, chunk):
        crash.observe_lines(ATTEMPT, batch(*["training chatter without any meaning"] * chunk, first=start))
    file = crash._files[ATTEMPT]["job.log"]
    assert len(file.head) + len(file.marked) + len(file.tail) <= HEAD_LINES + MAX_KEPT_LINES + TAIL_LINES
    root = crash.attribution(ATTEMPT)[0].root
    assert root is not None
    assert root.where.line == 1


def test_a_traceback_in_the_middle_of_chatter_is_not_lost(shipped: Diagnostician) -> None:
    crash = detector(shipped)
    crash.observe_lines(ATTEMPT, batch(*["chatter"] * 500))
    frames = ["Traceback (most recent call last):", '  File "/srv/a.py", line 3, in f', "    g()", "KeyError: 'x'"]
    crash.observe_lines(ATTEMPT, batch(*frames, first=501))
    crash.observe_lines(ATTEMPT, batch(*["chatter"] * 9_000, first=505))
    said, _ = crash.attribution(ATTEMPT)
    assert said.failure == "python_exception"


def test_a_forgotten_attempt_starts_from_nothing(shipped: Diagnostician) -> None:
    crash = detector(shipped)
    crash.observe_lines(ATTEMPT, batch(TIMEOUT))
    crash.forget(ATTEMPT)
    assert crash.attribution(ATTEMPT)[0].failure == "none"
    assert crash.attempts() == ()


def test_the_launchers_report_says_where_a_rank_ran(shipped: Diagnostician) -> None:
    crash = detector(shipped)
    failed = "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 802: system not yet initialized"
    crash.observe_lines(
        ATTEMPT,
        batch(
            *(f"[rank{rank}]: {failed}" for rank in (16, 17)),
            "  time      : 2026-04-24_08:29:58", "  host      : b200-19", "  rank      : 17 (local_rank: 1)",
            "  exitcode  : 1 (pid: 329581)", "  host      : b200-19", "  rank      : 16 (local_rank: 0)",
        ),
    )  # fmt: skip
    said = crash.attribution(ATTEMPT)[0]
    assert (said.failure, [one.node for one in said.suspects]) == ("fabric_manager_not_ready", ["b200-19"])


ECC = "[rank1]: RuntimeError: CUDA error: uncorrectable ECC error encountered"


def placed(shipped: Diagnostician, *lines: LogLine) -> list[NodeName]:
    """Where the accused rank ran, with four ranks published as one on each of four nodes."""
    crash = detector(shipped)
    crash.place_ranks(ATTEMPT, {Rank(rank): NodeName(f"n{rank + 1}") for rank in range(4)})
    crash.observe_lines(ATTEMPT, list(lines))
    return list(crash.attribution(ATTEMPT)[0].nodes)


def test_a_published_map_names_the_node_of_an_accused_rank(shipped: Diagnostician) -> None:
    assert placed(shipped, *batch(ECC)) == ["n2"]


def test_a_map_that_the_logs_belie_names_nobody(shipped: Diagnostician) -> None:
    """A task a node, and two workers a task: Slurm saw four, the logs show eight."""
    beyond = [replace(line, rank=Rank(7)) for line in batch("step 1 loss 2.0", file="rank7.log")]
    assert placed(shipped, *batch(ECC), *beyond) == []


def test_a_rank_that_spoke_on_another_node_of_the_map_belies_it(shipped: Diagnostician) -> None:
    elsewhere = [replace(line, rank=Rank(3), node=NodeName("n2.site")) for line in batch("step 1", file="rank3.log")]
    assert placed(shipped, *batch(ECC), *elsewhere) == []
    unnamed = [replace(line, rank=Rank(3), node=NodeName("10.0.0.4")) for line in batch("step 1", file="rank3.log")]
    assert placed(shipped, *batch(ECC), *unnamed) == ["n2"], "a host by another name says nothing"
