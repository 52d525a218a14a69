# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Many senders at once: recorded together, told apart, each with its own answer, and none waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from relight.types import AttemptId, LogLine, Stream
from tests.api.running import Service


def lines(attempt: str, count: int, first: int = 1) -> list[LogLine]:
    return [
        LogLine(attempt=AttemptId(attempt), file="f", number=n, stream=Stream.APPLICATION, text=f"line {n}")
        for n in range(first, first + count)
    ]


def jobs(service: Service, *names: str, workload: str | None = None) -> None:
    for name in names:
        scheduler = {"kind": "slurm", "job_id": name}
        service.put_attempt(name, workload_id=workload or name, scheduler=scheduler)


def together(service: Service, sends: Sequence[tuple[bytes, list[LogLine]]]) -> tuple[list[Any], int]:
    """What each was told, all having waited for the same lock; and how often the audit log was written to."""
    intake = service.application.intake
    answers: list[Any] = [None] * len(sends)
    writes: list[int] = []
    append = service.audit.append

    def counted(events: Any) -> tuple[int, ...]:
        writes.append(len(events))
        return append(events)

    def send(place: int) -> None:
        batch, own = sends[place]
        try:
            answers[place] = intake.accept_lines(own, batch, "ndjson", "ada")
        except Exception as why:  # noqa: BLE001 -- what a sender is told is what is looked at
            answers[place] = why

    service.audit.append = counted  # type: ignore[method-assign]
    threads = [threading.Thread(target=send, args=(place,)) for place in range(len(sends))]
    with service.application.loop.lock:
        for thread in threads:
            thread.start()
        _until(lambda: len(intake.lines._waiting) == len(sends))
    for thread in threads:
        thread.join(30)
    service.audit.append = append  # type: ignore[method-assign]
    return answers, len(writes)


def _until(is_so: Callable[[], bool]) -> None:
    tried = threading.Event()
    for _ in range(10_000):
        if is_so():
            return
        tried.wait(0.001)
    raise AssertionError("the senders never came to wait")


def count(service: Service, name: str) -> int:
    found: int = service.get(f"/v1/attempts/{name}").json()["log_lines"]
    return found


def test_batches_of_different_jobs_are_recorded_with_one_write(service: Service) -> None:
    names = [f"j-{n}" for n in range(8)]
    jobs(service, *names)
    answers, writes = together(service, [(name.encode(), lines(name, 3)) for name in names])
    assert answers == [(3, 0)] * 8
    assert writes == 1
    assert [count(service, name) for name in names] == [3] * 8


def test_the_same_batch_from_two_senders_at_once_counts_once(service: Service) -> None:
    jobs(service, "j-1")
    answers, _ = together(service, [(b"same", lines("j-1", 3)), (b"same", lines("j-1", 3))])
    assert sorted(answers) == [(0, 3), (3, 0)]
    assert count(service, "j-1") == 3


def test_batches_of_one_job_keep_their_order(service: Service) -> None:
    jobs(service, "j-1", "j-2")
    sends = [(b"a", lines("j-1", 2)), (b"b", lines("j-2", 2)), (b"c", lines("j-1", 2, first=3))]
    answers, _ = together(service, sends)
    assert sum(new for new, _ in answers) + sum(old for _, old in answers) == 6
    assert count(service, "j-2") == 2


def test_what_can_not_be_recorded_is_told_to_all_of_them_and_may_come_again(service: Service) -> None:
    names = ["j-1", "j-2", "j-3"]
    jobs(service, *names)
    service.audit.is_broken = True
    sends = [(name.encode(), lines(name, 2)) for name in names]
    answers, _ = together(service, sends)
    assert [type(one).__name__ for one in answers] == ["AuditUnavailable"] * 3
    service.audit.is_broken = False
    answers, _ = together(service, sends)
    assert answers == [(2, 0)] * 3
