# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Advice on a job that hangs or trains in vain, given before anybody asks for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
import yaml

from relight.events import AnomalyDetected, IncidentOpened, RecommendationIssued, RecommendationRequested
from relight.types import Anomaly, AnomalyKind, AttemptId
from service.adapters.rule_files import POLICY_FILE
from service.config import Recommend, Rules, Settings
from service.rules_store import RuleStore
from tests.api.running import Service, start

Make = Callable[..., Service]
HANG, DIVERGENCE, STRAGGLER = AnomalyKind.HANG, AnomalyKind.DIVERGENCE, AnomalyKind.STRAGGLER


@pytest.fixture
def make(rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> Make:
    def made(*, mode: str = "act", audit: Any = None, clock: Any = None, **said: Any) -> Service:
        settings = Settings(recommend=Recommend(mode=mode), **said)
        return start(rules, portal, settings=settings, audit=audit, clock=clock)

    return made


def tick(service: Service, seconds: float = 1) -> None:
    service.clock.advance(seconds=seconds)
    service.application.loop.tick(service.clock.now())
    service.application.advisor.sweep()


def anomaly(service: Service, kind: AnomalyKind, **over: Any) -> Anomaly:
    at = service.clock.at
    return Anomaly(attempt=AttemptId("a-1"), kind=kind, detector=str(kind), onset_at=at - timedelta(seconds=300),
                   detected_at=at, score=300.0, threshold=200.0, summary="no step for 300 s", **over)  # fmt: skip


class Says:
    """A detector that says what a test hands it, at the next tick."""

    name = "says"

    def __init__(self) -> None:
        self.next: list[Anomaly] = []

    def observe(self, seen: object) -> tuple[Anomaly, ...]:
        return ()

    def overdue(self, now: object) -> tuple[Anomaly, ...]:
        said, self.next = tuple(self.next), []
        return said

    def forget(self, attempt: str) -> None:
        return

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        return


def detects(service: Service, kind: AnomalyKind, **over: Any) -> None:
    """As the loop does with what a detector claims."""
    detector = Says()
    detector.next = [anomaly(service, kind, **over)]
    panel = service.application.loop._panel
    panel._detectors.append(detector)
    tick(service, 0)
    panel._detectors.remove(detector)


def advice(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get("/v1/recommendations", params={"attempt": "a-1"}).json()["items"]
    return found[::-1]


def issued(service: Service) -> list[RecommendationIssued]:
    return [one for one in service.audit.events() if isinstance(one, RecommendationIssued)]


def test_a_confirmed_hang_is_advised_on_at_once_and_on_record_behind_its_incident(make: Make) -> None:
    service = make()
    service.put_attempt()
    detects(service, HANG)
    (said,) = advice(service)
    assert (said["action"], said["failure"], said["trigger"]) == ("restart", "silent_hang", "detected")
    assert said["state"] == "PROPOSED"
    kinds = [one.kind for one in service.audit.events()]
    events = [AnomalyDetected, IncidentOpened, RecommendationIssued]
    places = [next(i for i, one in enumerate(service.audit.events()) if isinstance(one, kind)) for kind in events]
    assert places == sorted(places)
    assert "recommendation.requested" not in kinds
    assert service.get("/v1/incidents").json()["items"][0]["state"] == "RECOMMENDED"


def test_it_is_said_once_however_often_time_passes(make: Make) -> None:
    service = make()
    service.put_attempt()
    detects(service, HANG)
    for _ in range(20):
        tick(service)
    assert [(one.generation, one.action) for one in issued(service)] == [(1, "restart")]


def test_a_controller_that_asks_later_gets_that_same_one(make: Make) -> None:
    service = make()
    service.put_attempt()
    detects(service, HANG)
    (said,) = advice(service)
    tick(service, 30)
    answer = service.post("/v1/recommendations", json={"attempt_id": "a-1", "trigger": "external"})
    assert (answer.status_code, answer.json()["id"], answer.json()["generation"]) == (200, said["id"], 1)
    asked = [one for one in service.audit.events() if isinstance(one, RecommendationRequested)]
    assert [one.recommendation for one in asked] == [said["id"]]
    service.put_attempt(state="FAILED", exit_code=1)
    assert service.advise().json()["id"] == said["id"], "the same attempt, the same answer, while it stands"


def test_in_monitor_mode_it_is_kept_to_be_looked_at(make: Make) -> None:
    service = make(mode="monitor")
    service.put_attempt()
    detects(service, HANG)
    (said,) = advice(service)
    assert (said["state"], said["actionable"]) == ("SHADOW", False)


def test_a_job_that_trains_on_takes_the_advice_back(make: Make) -> None:
    service = make()
    service.put_attempt()
    detects(service, HANG)
    service.application.advisor.healed(AttemptId("a-1"))
    assert [(one["generation"], one["action"]) for one in advice(service)] == [(2, "continue")]


def test_a_loss_that_is_no_number_is_advised_on_and_a_spike_is_not(make: Make) -> None:
    service = make()
    service.put_attempt()
    detects(service, DIVERGENCE, detail={"trouble": "spike", "may_restart": False})
    assert advice(service) == []
    detects(service, DIVERGENCE, detail={"trouble": "not_a_number", "may_restart": True})
    (said,) = advice(service)
    assert (said["failure"], said["trigger"]) == ("nan_gradient", "detected")


def test_slowness_that_policy_only_observes_is_not_spoken_of(make: Make) -> None:
    service = make()
    service.put_attempt()
    detects(service, STRAGGLER, detail={"ratio": 1.5}, scope="rank")
    tick(service)
    assert service.get("/v1/incidents").json()["items"][0]["state"] == "OPEN"
    assert advice(service) == []


def test_where_policy_acts_on_slowness_a_checkpoint_brings_the_advice(make: Make, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    text = yaml.safe_load(POLICY_FILE.read_text())
    slowness = {"may_exclude": True, "restart_s": 20, "boundary_s": 600}
    policy.write_text(yaml.safe_dump({**text, "slowness": slowness}))
    service = make(rules=Rules(policy_file=policy))
    placed = {str(rank): f"n{rank + 1}" for rank in range(2)}
    service.put_attempt(rank_to_node=placed, time_limit_s=400_000, started_at=service.clock.at.isoformat())
    detects(service, STRAGGLER, detail={"ratio": 1.5, "ranks": [1]}, scope="rank", rank=1, node="n2")
    tick(service, 60)
    assert advice(service) == []
    at = service.clock.at.isoformat()
    saved = {"source": "c", "source_event_id": "1", "event_time": at, "attempt_id": "a-1",
             "progress": {"step": 10, "checkpoint_step": 10}}  # fmt: skip
    service.post("/v1/signals", json={"signals": [saved]})
    tick(service)
    (said,) = advice(service)
    assert (said["action"], said["trigger"]) == ("restart_excluding", "detected")
    assert "awaiting_approval" in said["blocked_by"]


def test_a_crash_is_not_advised_on_before_somebody_asks(make: Make) -> None:
    service = make()
    service.put_attempt()
    detects(service, AnomalyKind.CRASH)
    tick(service)
    assert advice(service) == []


def test_after_its_time_the_end_of_the_job_is_another_question(make: Make) -> None:
    service = make()
    service.put_attempt()
    detects(service, HANG)
    tick(service, 1_000)
    (lapsed,) = advice(service)
    assert lapsed["state"] == "EXPIRED"
    service.put_attempt(state="FAILED", exit_code=1)
    answer = service.advise()
    assert answer.status_code == 201
    assert (answer.json()["trigger"], answer.json()["supersedes"]) == ("exited", lapsed["id"])
    assert service.advise().json()["id"] == answer.json()["id"]


def test_what_was_lost_between_incident_and_advice_is_caught_up_after_a_start(make: Make) -> None:
    service = make()
    service.put_attempt()
    service.application.advisor.attribute(AttemptId("a-1"), anomaly(service, HANG))
    assert advice(service) == []
    again = make(audit=service.audit, clock=service.clock)
    again.application.loop.tick(again.clock.now())
    again.application.loop.tick(again.clock.now())
    assert [one["trigger"] for one in advice(again)] == ["detected"]


def test_a_hang_that_could_not_be_recorded_is_neither_spoken_of_nor_lost(make: Make) -> None:
    service = make()
    service.put_attempt()
    service.audit.is_broken = True
    detects(service, HANG)
    service.audit.is_broken = False
    assert (issued(service), service.get("/v1/anomalies").json()["items"]) == ([], [])
    tick(service)
    assert [one.action for one in issued(service)] == ["restart"]


def test_nobody_else_may_claim_that_nobody_asked(make: Make) -> None:
    service = make()
    service.put_attempt()
    answer = service.post("/v1/recommendations", json={"attempt_id": "a-1", "trigger": "detected"})
    assert answer.status_code in {400, 422}
    assert "nobody asked" in answer.text
