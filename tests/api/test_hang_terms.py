# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Bounds of a job's pauses, as the job, its partition and the site's policy set them."""

from __future__ import annotations

from typing import Any

import yaml

from service.adapters.rule_files import POLICY_FILE
from tests.api.running import Service


def train(service: Service, name: str, steps: int = 40) -> None:
    for step in range(1, steps + 1):
        service.clock.advance(seconds=1)
        text = f"step={step}/100000 loss=2.0 grad_norm=0.3 lr=3.0e-03 step_time=1.0s samples/s=96.0"
        service.send_lines({"attempt_id": name, "file": "job.out", "number": step, "text": text})
        service.application.loop.tick(service.clock.now())


def hung_after(service: Service, name: str, most_s: int = 900) -> int | None:
    for waited in range(5, most_s, 5):
        service.clock.advance(seconds=5)
        service.application.loop.tick(service.clock.now())
        found: list[dict[str, Any]] = service.get("/v1/anomalies", params={"kind": "hang"}).json()["items"]
        if any(one["tier"] == "confirmed" and one["attempt_id"] == name for one in found):
            return waited
    return None


def put_policy(service: Service, hangs: dict[str, Any]) -> None:
    text = yaml.safe_dump({**yaml.safe_load(POLICY_FILE.read_text()), "hangs": hangs})
    etag = service.get("/v1/policy").headers["ETag"]
    said = {"text": text, "actor": "ada", "reason": "a test"}
    answer = service.request("PUT", "/v1/policy", json=said, headers={"If-Match": etag})
    assert answer.status_code == 200, answer.text


def test_a_job_may_set_its_own_bounds(service: Service) -> None:
    service.put_attempt(opt_in={"hang": {"at_most_s": 60}})
    train(service, "a-1")
    assert hung_after(service, "a-1") == 65


def test_a_partition_has_its_own_and_the_others_have_not(service: Service) -> None:
    put_policy(service, {"partitions": {"debug": {"at_most_s": 60}}})
    service.put_attempt(partition="debug")
    service.put_attempt("b-1", workload_id="w-2", partition="gpu")
    train(service, "a-1")
    assert hung_after(service, "a-1") == 65
    service.clock.advance(seconds=1)
    train(service, "b-1")
    assert hung_after(service, "b-1", 200) is None


def test_a_changed_policy_holds_for_jobs_that_run(service: Service) -> None:
    service.put_attempt()
    train(service, "a-1")
    put_policy(service, {"at_most_s": 60})
    assert hung_after(service, "a-1") == 65


def test_bounds_that_contradict_each_other_are_refused_with_both_values(service: Service) -> None:
    answer = service.put_attempt(opt_in={"hang": {"at_least_s": 600, "at_most_s": 300}})
    assert answer.status_code in {400, 422}
    assert "at_least_s 600 is above at_most_s 300" in answer.text


def test_bounds_out_of_range_and_unknown_words_are_refused(service: Service) -> None:
    for hang in ({"at_most_s": 5}, {"patience": 2}):
        assert service.put_attempt(opt_in={"hang": hang}).status_code in {400, 422}
