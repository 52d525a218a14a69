# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What a job trains with, as its controller, its client and its log state it, and what that spares it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio.from_thread
import pytest

from relight.events import SignalAccepted
from service.rules_store import RuleStore
from tests.api.running import Service, start

DUMP = "  {name} {dots} {value}"


def dump(name: str, value: int) -> str:
    return DUMP.format(name=name, dots="." * (48 - len(name)), value=value)


class Log:
    """The log of one attempt, sent in batches."""

    def __init__(self, service: Service, attempt: str = "a-1") -> None:
        self.service, self.attempt, self.number, self.step = service, attempt, 0, 0

    def say(self, texts: Sequence[str]) -> None:
        items = []
        for text in texts:
            self.number += 1
            items.append({"attempt_id": self.attempt, "file": "job.out", "number": self.number, "text": text})
        assert self.service.send_lines(*items).json()["accepted"] == len(items)

    def train(self, steps: int, step_s: float) -> None:
        texts = []
        for _ in range(steps):
            self.step += 1
            took = step_s * (1 + 0.002 * (self.step * 7 % 5))
            texts.append(f"step={self.step}/100000 loss=2.0 grad_norm=0.3 lr=3.0e-03 step_time={took:.3f}s")
        for begin in range(0, steps, 10):
            self.service.clock.advance(seconds=10 * step_s)
            self.say(texts[begin : begin + 10])


def slowdowns(service: Service, attempt: str | None = None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get("/v1/anomalies", params={"kind": "slowdown"}).json()["items"]
    return [one for one in found if attempt in (None, one["attempt_id"])]


def shape_signal(service: Service, **said: int) -> dict[str, Any]:
    at = service.clock.at.isoformat()
    item = {"source": "client", "source_event_id": f"shape-{at}", "event_time": at, "attempt_id": "a-1", "shape": said}
    told: dict[str, Any] = service.post("/v1/signals", json={"signals": [item]}).json()
    return told


def shape(service: Service, name: str = "a-1") -> tuple[int | None, int | None]:
    told = service.get(f"/v1/attempts/{name}").json()
    return told["global_batch_size"], told["sequence_length"]


def test_a_batch_that_the_log_states_anew_is_no_slowdown(service: Service) -> None:
    service.put_attempt()
    log = Log(service)
    log.say([dump("global_batch_size", 256), dump("seq_length", 4096)])
    assert shape(service) == (256, 4096)
    log.train(150, 1.0)
    log.say([dump("global_batch_size", 512)])
    log.train(150, 1.9)
    assert shape(service) == (512, 4096)
    assert slowdowns(service) == []


def test_the_same_job_without_a_word_of_its_batch_became_slower(service: Service) -> None:
    service.put_attempt()
    log = Log(service)
    log.train(150, 1.0)
    log.train(150, 1.9)
    assert shape(service) == (None, None)
    assert slowdowns(service)[-1]["detail"]["is_normalised"] is False


def test_the_client_may_state_it(service: Service) -> None:
    service.put_attempt()
    log = Log(service)
    assert shape_signal(service, global_batch_size=256)["accepted"] == 1
    log.train(150, 1.0)
    shape_signal(service, global_batch_size=512, sequence_length=4096)
    log.train(150, 1.9)
    assert (shape(service), slowdowns(service)) == ((512, 4096), [])


def test_a_shape_that_says_nothing_is_refused(service: Service) -> None:
    service.put_attempt()
    assert "needs global_batch_size or sequence_length" in shape_signal(service)["results"][0]["detail"]
    assert shape_signal(service, global_batch_size=0)["failed"] == 1


def test_the_controller_may_state_it_and_the_job_itself_knows_better(service: Service) -> None:
    service.put_attempt(global_batch_size=256, sequence_length=4096)
    assert shape(service) == (256, 4096)
    Log(service).say([dump("global_batch_size", 512)])
    assert shape(service) == (512, 4096)


@pytest.mark.parametrize(("batch", "is_slower"), [(512, True), (1024, False)])
def test_the_next_attempt_is_held_against_the_last_only_with_the_same_batch(
    service: Service, batch: int, is_slower: bool
) -> None:
    service.put_attempt()
    first = Log(service)
    first.say([dump("global_batch_size", 512)])
    first.train(150, 1.0)
    service.put_attempt(state="FAILED", exit_code=1)
    service.put_attempt("a-2", attempt_index=1)
    second = Log(service, "a-2")
    second.say([dump("global_batch_size", batch)])
    second.train(150, 1.3)
    assert bool(slowdowns(service, "a-2")) is is_slower


def test_what_was_stated_is_on_record_once_and_outlives_a_restart(
    service: Service, rules: RuleStore, portal: anyio.from_thread.BlockingPortal
) -> None:
    service.put_attempt()
    log = Log(service)
    for number in range(3):
        log.say(
            [f"Training epoch 0, iteration {number}/99 | lr: 1e-05 | global_batch_size: 32 | global_step: {number}"]
        )
    counts = [one.counts for one in service.audit.events() if isinstance(one, SignalAccepted)]
    told = [one["trains_with"] for one in counts if "trains_with" in one]
    assert told == [{"batch": 32}]
    again = start(rules, portal, audit=service.audit)
    assert shape(again) == (32, None)
