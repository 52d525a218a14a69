# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Many callers at once: one answer, one claim, and readers who never wait for a disk."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import pytest

from tests.api.running import XID_79, Service


def together(service: Service, *calls: tuple[str, str, dict[str, Any]]) -> list[Any]:
    answers: list[Any] = []

    async def one(method: str, path: str, said: dict[str, Any]) -> None:
        answers.append(await service.send(method, path, **said))

    async def all_at_once() -> None:
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(one, *call)

    service.portal.call(all_at_once)
    return answers


def test_twenty_controllers_asking_at_once_get_one_answer(service: Service) -> None:
    service.crash()
    ask = {"json": {"attempt_id": "a-1", "trigger": "exited"}}
    answers = together(service, *[("POST", "/v1/recommendations", ask)] * 20)
    assert sorted(one.status_code for one in answers) == [200] * 19 + [201]
    assert len({one.json()["id"] for one in answers}) == 1
    assert service.audit.kinds().count("recommendation.issued") == 1


def test_of_many_claims_at_once_one_wins(service: Service) -> None:
    service.crash()
    path = f"/v1/recommendations/{service.advise().json()['id']}/claim"
    calls = [("POST", path, {"json": {"controller_id": f"c-{n}", "observed_generation": 1}}) for n in range(10)]
    assert sorted(one.status_code for one in together(service, *calls)) == [200] + [409] * 9


def test_readers_do_not_wait_for_a_commit_or_a_batch_being_matched(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.put_attempt()
    begun, release = threading.Event(), threading.Event()
    append = service.audit.append

    def slow(events: Any) -> tuple[int, ...]:
        begun.set()
        assert release.wait(20)
        return append(events)

    monkeypatch.setattr(service.audit, "append", slow)
    line = {"attempt_id": "a-1", "file": "k", "number": 1, "stream": "kernel", "text": XID_79}
    sender = threading.Thread(target=service.send_lines, args=(line,))
    sender.start()
    assert begun.wait(20)
    for path in ("/v1/recommendations", "/v1/attempts/a-1", "/v1/incidents", "/v1/stats", "/readyz"):
        assert service.get(path).status_code == 200
    assert sender.is_alive()
    release.set()
    sender.join(20)
    assert not sender.is_alive()
