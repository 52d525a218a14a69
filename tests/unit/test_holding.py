# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Lines of jobs that nobody registered yet: what is held stays until its time is up, over a crash too."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from relight.events import AttemptObserved
from relight.ports import AuditUnavailable
from relight.types import AttemptId, AttemptState, ClusterId, LogLine, Stream, WorkloadId
from service.adapters.held_segments import HeldSegments
from service.held_memory import HeldInMemory
from service.holding import ANY_CLUSTER, Addressee, Batch, Bounds, Holding, HoldStore

NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
HERE = ClusterId("default")
JOB, OTHER = Addressee(HERE, None, "4711"), Addressee(HERE, None, "4712", 1)
BOUNDS = Bounds(age=timedelta(minutes=10), bytes_each=2_000, bytes_total=3_000)


def batch(to: Addressee, *texts: str, at_s: float = 0, digest: bytes = b"d") -> Batch:
    lines = [
        LogLine(attempt=to.place, file="f", number=n, stream=Stream.KERNEL, text=text, at=NOON)
        for n, text in enumerate(texts, 1)
    ]
    return Batch(to=to, at=NOON + timedelta(seconds=at_s), digest=digest, source="otlp", actor="ada", lines=lines)


def texts(holding: Holding, to: Addressee) -> list[str]:
    return [line.text for one in holding.batches(to) for line in one.lines]


@pytest.fixture(params=["memory", "disk"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> HoldStore:
    return HeldInMemory() if request.param == "memory" else HeldSegments(tmp_path / "held")


def test_what_is_held_comes_back_as_it_came_and_in_order(store: HoldStore) -> None:
    holding = Holding(store, BOUNDS)
    first, second = batch(JOB, "a", "bé\u2028\udc80"), batch(JOB, "c", at_s=9, digest=b"e")
    holding.hold([first, batch(OTHER, "x")])
    holding.hold([second])
    assert list(holding.batches(JOB)) == [first, second]
    assert (len(holding), holding.bytes) == (4, first.size + second.size + batch(OTHER, "x").size)


def test_after_a_start_all_is_still_held_but_for_what_was_handed_over(tmp_path: Path) -> None:
    holding = Holding(HeldSegments(tmp_path), BOUNDS)
    holding.hold([batch(JOB, "a"), batch(OTHER, "x")])
    holding.handed_over(OTHER)
    holding.hold([batch(JOB, "b", at_s=1)])
    (torn,) = sorted(tmp_path.iterdir())
    with torn.open("ab") as file:
        file.write(b'{"to": ["default", null, "4711", null], "at"')  # a crash in the middle of a write
    again = Holding(HeldSegments(tmp_path), BOUNDS)
    assert texts(again, JOB) == ["a", "b"] and again.addressees == (JOB,)
    again.hold([batch(JOB, "c", at_s=2)])
    assert texts(Holding(HeldSegments(tmp_path), BOUNDS), JOB) == ["a", "b", "c"]


def test_what_is_full_refuses_the_new_and_keeps_the_old(store: HoldStore) -> None:
    holding = Holding(store, BOUNDS)
    holding.hold([batch(JOB, "x" * 1_500)])
    assert "2000 bytes are held for one unknown job" in holding.refusal(JOB, batch(JOB, "y" * 500).size)
    assert "3000 bytes" in holding.refusal(OTHER, 1_500)
    assert holding.refusal(OTHER, 1_000) == ""
    assert "3000 bytes" in holding.refusal(OTHER, 1_000, more=500), "others of the same request count too"
    assert texts(holding, JOB) == ["x" * 1_500]


def test_what_nobody_claims_is_let_go_after_its_time_and_not_before(store: HoldStore) -> None:
    holding, told = Holding(store, BOUNDS), list[tuple[str, int]]()
    holding.told = lambda outcome, count: told.append((outcome, count))
    holding.hold([batch(JOB, "a", "b")])
    assert holding.expire(NOON + timedelta(minutes=10)) == 0
    assert holding.expire(NOON + timedelta(minutes=10, seconds=1)) == 2
    assert (len(holding), holding.bytes, holding.addressees, list(holding.batches(JOB))) == (0, 0, (), [])
    assert told == [("held", 2), ("expired", 2)]


def test_a_job_that_goes_on_unregistered_keeps_its_last_minutes_only(tmp_path: Path) -> None:
    holding = Holding(HeldSegments(tmp_path), BOUNDS)
    for minute in range(60):
        holding.hold([batch(JOB, f"{minute}", at_s=60 * minute)])
        holding.expire(NOON + timedelta(minutes=minute))
    kept = [int(text) for text in texts(holding, JOB)]
    assert kept == list(range(kept[0], 60)) and 10 <= len(kept) <= 16
    assert len(list(tmp_path.iterdir())) <= 4, "old files are gone from the disk"


def test_a_disk_that_takes_nothing_holds_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holding = Holding(HeldSegments(tmp_path), BOUNDS)
    holding.hold([batch(JOB, "a")])

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdatasync", full)
        with pytest.raises(AuditUnavailable, match="No space left"):
            holding.hold([batch(JOB, "b", at_s=1)])
    assert (texts(holding, JOB), holding.bytes) == (["a"], batch(JOB, "a").size)
    holding.hold([batch(JOB, "c", at_s=2)])
    assert texts(Holding(HeldSegments(tmp_path), BOUNDS), JOB) == ["a", "c"]


def seen(
    attempt: str = "a-1", job: str = "4711", index: int = 0, cluster: str = "default", **more: int
) -> AttemptObserved:
    return AttemptObserved(
        at=NOON, attempt=AttemptId(attempt), workload=WorkloadId("w"), cluster=ClusterId(cluster), attempt_index=index,
        scheduler={"kind": "slurm", "job_id": job, **more}, state=AttemptState.RUNNING, nodes=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("to", "registered", "is_meant"),
    [
        (JOB, seen(), True),
        (JOB, seen(job="4712"), False),
        (JOB, seen(cluster="elsewhere"), False),
        (OTHER, seen(job="4712", index=0), False),
        (OTHER, seen(job="4712", index=1), True),
        (OTHER, seen(job="4712", index=5, restart_count=1), True),
        (Addressee(ANY_CLUSTER, "a-1"), seen(cluster="elsewhere"), True),
        (Addressee(HERE, "a-1"), seen(cluster="elsewhere"), False),
        (Addressee(HERE, "a-2"), seen(), False),
    ],
)
def test_an_attempt_claims_what_names_it_or_its_run_of_the_job(
    to: Addressee, registered: AttemptObserved, is_meant: bool
) -> None:
    assert to.is_meant_by(registered) is is_meant


def test_no_two_addressees_share_a_place() -> None:
    several: Sequence[Addressee] = [
        JOB, OTHER, Addressee(HERE, None, "4712"), Addressee(HERE, "4712"), Addressee(ANY_CLUSTER, "4712"),
        Addressee(HERE, None, "4712", 0),
    ]  # fmt: skip
    assert len({one.place for one in several}) == len(several)


def test_a_held_line_is_a_line(store: HoldStore) -> None:
    holding = Holding(store, BOUNDS)
    holding.hold([batch(JOB, "a")])
    (one,) = holding.batches(JOB)
    assert isinstance(one.lines[0], LogLine) and one.lines[0].attempt == JOB.place
