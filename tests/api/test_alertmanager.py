# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Alertmanager's webhook: an alert is evidence for the jobs it concerns, and accuses a node only if told to."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from tests.api.otlp_bodies import lines_of
from tests.api.running import START, Service

PATH = "/v1/webhooks/alertmanager"


def webhook(*alerts: dict[str, Any], **over: Any) -> dict[str, Any]:
    return {"receiver": "hook", "status": "firing", "alerts": list(alerts), "groupLabels": {}, "commonLabels": {},
            "commonAnnotations": {}, "externalURL": "http://am:9093", "version": "4", "groupKey": "{}:{}",
            "truncatedAlerts": 0} | over  # fmt: skip


def alert(status: str = "firing", summary: str = "no progress", at: str = START.isoformat(), **labels: str) -> Any:
    labels = {"alertname": "GpuXid", "severity": "critical"} | labels
    return {"status": status, "labels": labels, "annotations": {"summary": summary}, "startsAt": at,
            "endsAt": "0001-01-01T00:00:00Z", "fingerprint": "e1a1df592ee0f540"}  # fmt: skip


@pytest.fixture
def known(service: Service) -> Service:
    service.put_attempt(started_at=START.isoformat())
    return service


def send(service: Service, *alerts: dict[str, Any]) -> tuple[int, int, int]:
    answer = service.post(PATH, json=webhook(*alerts))
    assert answer.status_code == 200, answer.text
    told = answer.json()
    return told["accepted"], told["duplicates"], told["ignored"]


def accused(service: Service) -> list[str]:
    return [one.node for one in service.application.journal.state.past.accusations]


@pytest.mark.parametrize(
    "labels",
    [{"job_id": "4711"}, {"node": "n2"}, {"instance": "n2:9400"}, {"attempt_id": "a-1", "instance": "localhost:1"}],
)
def test_an_alert_finds_its_attempt_by_job_or_by_node(known: Service, labels: dict[str, str]) -> None:
    send(known, alert(**labels))
    assert lines_of(known) == 1


def test_an_alert_whose_words_name_an_xid_is_evidence(known: Service) -> None:
    send(known, alert(summary="NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus.", node="n2"))
    known.put_attempt(state="FAILED")
    advice = known.advise().json()
    assert advice["failure"] == "gpu_fell_off_bus"
    assert [one["node"] for one in advice["exclusions"]] == ["n2"]


def test_severity_alone_accuses_no_node_and_the_label_does(known: Service) -> None:
    send(known, alert(node="n2"), alert(node="n3", relight_fatal="true") | {"fingerprint": "b"})
    assert accused(known) == ["n3"]


def test_a_repetition_is_known_and_a_resolved_alert_asks_for_nothing(known: Service) -> None:
    first = alert(node="n2")
    assert send(known, first) == (2, 0, 0)
    assert send(known, first) == (0, 2, 0)
    assert send(known, alert("resolved", node="n2")) == (0, 0, 1)


def test_an_alert_about_nothing_known_is_ignored(known: Service) -> None:
    assert send(known, alert(instance="localhost:9090"), alert(job="prometheus")) == (0, 0, 2)


def test_an_alert_of_yesterday_is_no_evidence_and_accuses_nobody(known: Service) -> None:
    send(known, alert(at=(START - timedelta(days=1)).isoformat(), node="n2", relight_fatal="true"))
    assert accused(known) == []


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"{}", b'{"alerts": 5}', b'{"alerts": [{"labels": {}}]}', b'{"alerts":[{"startsAt":"soon"}]}',
     b'{"alerts":[{"startsAt":"2026-11-02T12:00:00Z","labels":{"rank":"first"}}]}'],
)  # fmt: skip
def test_a_body_that_is_no_webhook_is_400(known: Service, body: bytes) -> None:
    answer = known.post(PATH, content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 400, answer.text


def test_trouble_of_ours_is_503_since_alertmanager_retries_nothing_else(known: Service) -> None:
    known.audit.is_broken = True
    answer = known.post(PATH, json=webhook(alert(node="n2")))
    assert answer.status_code == 503 and answer.headers["retry-after"]
    known.audit.is_broken = False
    assert send(known, alert(node="n2")) == (2, 0, 0)
