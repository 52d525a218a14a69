# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""NVSentinel's CloudEvents: fatal ones accuse the node, all unhealthy ones are evidence, the rest is counted."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.api.running import START, Service

PATH = "/v1/webhooks/nvsentinel"
CLOUD = {"Content-Type": "application/cloudevents+json"}


def event(name: str = "e-1", node: str = "n2", at: Any = None, **over: Any) -> dict[str, Any]:
    health = {
        "version": 1, "agent": "syslog-health-monitor", "componentClass": "GPU", "checkName": "SysLogsXIDError",
        "isFatal": True, "isHealthy": False, "message": "GPU has fallen off the bus", "recommendedAction": "RESTART_BM",
        "errorCode": ["79"], "nodeName": node, "generatedTimestamp": at or START.isoformat(),
        "entitiesImpacted": [{"entityType": "PCI", "entityValue": "0000:1a:00"},
                             {"entityType": "GPU", "entityValue": "3"}],
        "metadata": {"chassis": "x"}, "processingStrategy": "EXECUTE_REMEDIATION",
    } | over  # fmt: skip
    return {"specversion": "1.0", "id": name, "source": "nvsentinel://cluster/healthevents", "time": START.isoformat(),
            "type": "com.nvidia.nvsentinel.health.v1", "data": {"version": "1.0", "healthEvent": health}}  # fmt: skip


@pytest.fixture
def known(service: Service) -> Service:
    service.put_attempt(started_at=START.isoformat())
    return service


def send(service: Service, said: Any, **headers: str) -> tuple[int, int, int]:
    answer = service.post(PATH, json=said, headers=CLOUD | headers)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told["accepted"], told["duplicates"], told["ignored"]


def accused(service: Service) -> list[tuple[str, str]]:
    return [(one.node, one.failure) for one in service.application.journal.state.past.accusations]


def test_a_fatal_event_accuses_its_node_and_explains_the_failure_of_its_job(known: Service) -> None:
    assert send(known, event()) == (2, 0, 0)
    assert ("n2", "79") in accused(known)
    known.put_attempt(state="FAILED")
    advice = known.advise().json()
    assert advice["failure"] == "gpu_fell_off_bus"
    assert [one["node"] for one in advice["exclusions"]] == ["n2"]


def test_events_come_more_than_once_and_out_of_order(known: Service) -> None:
    later, earlier = event("e-2", at=(START + timedelta(seconds=30)).isoformat()), event("e-1")
    assert [send(known, one) for one in (later, earlier, later)] == [(2, 0, 0), (2, 0, 0), (0, 2, 0)]


@pytest.mark.parametrize(
    "over",
    [{"isHealthy": True}, {"processingStrategy": "STORE_ONLY"}, {"processingStrategy": 2}],
)
def test_what_asks_for_no_action_is_counted_only(known: Service, over: dict[str, Any]) -> None:
    assert send(known, event(**over)) == (0, 0, 1)
    assert accused(known) == []
    known.put_attempt(state="FAILED")
    assert known.advise().json()["failure"] != "gpu_fell_off_bus"


def test_an_event_that_is_not_fatal_accuses_nobody(known: Service) -> None:
    send(known, event(isFatal=False))
    assert accused(known) == []


def test_weeks_of_the_past_accuse_nobody_and_explain_nothing_new(known: Service) -> None:
    old = (START - timedelta(days=20)).isoformat()
    known.clock.advance(hours=1)
    send(known, event(at=old))
    assert accused(known) == []
    assert known.get("/v1/anomalies").json()["items"] == []


def test_a_clock_far_ahead_is_not_believed(known: Service) -> None:
    assert send(known, event(at=(START + timedelta(days=2)).isoformat())) == (0, 0, 1)


def test_protobufs_own_spellings_are_read(known: Service) -> None:
    raw = {"node_name": "n2", "check_name": "GpuXid", "is_fatal": True, "is_healthy": False, "error_code": ["79"],
           "recommended_action": 24, "processing_strategy": 1,
           "generated_timestamp": {"seconds": int(START.timestamp()), "nanos": 5}}  # fmt: skip
    said = event() | {"data": {"health_event": raw}}
    assert send(known, said) == (2, 0, 0)


def test_a_batch_is_taken_whole(known: Service) -> None:
    said = [event("e-1"), event("e-2", node="n3"), event("e-3", isHealthy=True)]
    assert send(known, said, **{"Content-Type": "application/cloudevents-batch+json"}) == (4, 0, 1)


@pytest.mark.parametrize(
    "said",
    [5, {}, event() | {"data": None}, event() | {"data": {"healthEvent": {"checkName": "x"}}},
     event() | {"specversion": None}, event(at="soon"), [event()] * 1_001],
)  # fmt: skip
def test_a_body_that_is_no_health_event_is_400(known: Service, said: Any) -> None:
    assert known.post(PATH, json=said, headers=CLOUD).status_code == 400


def test_trouble_of_ours_is_503_and_the_event_is_taken_the_next_time(known: Service) -> None:
    known.audit.is_broken = True
    assert known.post(PATH, json=event(), headers=CLOUD).status_code == 503
    known.audit.is_broken = False
    assert send(known, event()) == (2, 0, 0)
