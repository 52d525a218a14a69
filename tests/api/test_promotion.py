# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Stages of classes: a person raises them over the bar, their record lowers them, and no claim slips between."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import anyio.from_thread
import pytest

from relight.events import RecommendationClaimed, StageChanged
from relight.promotion import Stage
from relight.types import ClusterId, FailureClass, Mode
from service.config import Recommend, Settings
from service.notify.notice import notice_of
from service.promoting import DEMOTION
from service.promotion_settings import BarSettings, Promotion
from service.rules_store import RuleStore
from service.tokens import Role
from tests.api.browsing import Browser
from tests.api.running import Service, start

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of 79.15 GiB"
STAGE = {"class": "hardware", "actor": "ada", "reason": "two good weeks"}
SMALL = Promotion(
    every_s=1,
    approve=BarSettings(cases=3, share=0.3, workloads=2),
    act=BarSettings(cases=6, share=0.5, workloads=3, false_stops=0),
)


@pytest.fixture
def make(rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> Callable[..., Service]:
    def made(mode: Mode = Mode.ACT, **promotion: Any) -> Service:
        settings = Settings(recommend=Recommend(mode=mode), promotion=SMALL.model_copy(update=promotion))
        return start(rules, portal, settings=settings)

    return made


def set_stage(service: Service, stage: str, **over: Any) -> Any:
    etag = service.get("/v1/stages").headers["ETag"]
    return service.put("/v1/stages", json=STAGE | {"stage": stage} | over, headers={"If-Match": etag})


def told(service: Service, failure_class: str = "hardware") -> dict[str, Any]:
    found = service.get("/v1/stages").json()["classes"]
    return next(one for one in found if one["class"] == failure_class)


def failed(service: Service, number: int, node: str = "n2", minutes: int = 60) -> dict[str, Any]:
    """A GPU falls off the bus; time passes before it, so that no breaker sees many at once."""
    service.clock.advance(minutes=minutes)
    service.crash(
        f"a-{number}", node=node, workload_id=f"w-{number}", scheduler={"kind": "slurm", "job_id": str(number)}
    )
    advice: dict[str, Any] = service.advise(f"a-{number}").json()
    return advice


def watched(service: Service, number: int, *, agrees: bool = True) -> dict[str, Any]:
    """Advice without an action, and people who did or did not do as it said."""
    advice = failed(service, number)
    nodes = ["n1", "n3", "n4", "n5"] if agrees else ["n1", "n2", "n3", "n4"]
    service.clock.advance(minutes=20)
    service.put_attempt(f"a-{number}-b", workload_id=f"w-{number}", attempt_index=1, allocated_nodes=nodes,
                        scheduler={"kind": "slurm", "job_id": str(number)})  # fmt: skip
    service.application.advisor.sweep()
    return advice


# ------------------------------------------------------------------ rising


def test_a_person_raises_a_class_stage_by_stage_where_its_record_allows_it(make: Callable[..., Service]) -> None:
    service = make(start=Stage.NOTIFY)
    assert (told(service)["following"], told(service)["may_rise"]) == ("approve", False)
    refused = set_stage(service, "approve")
    assert (refused.status_code, refused.json()["code"]) == (409, "below_the_bar")
    assert "0 decided cases, 3 are needed" in refused.json()["detail"]
    for number in range(6):
        watched(service, number)
    assert told(service)["record"]["held"] == 6
    assert set_stage(service, "act").status_code == 409, "one stage at a time"
    assert set_stage(service, "approve").status_code == 200
    assert told(service)["actor"] == "ada"
    assert set_stage(service, "act").status_code == 200
    changes = [one for one in service.audit.events() if isinstance(one, StageChanged)]
    assert [(one.previous, one.stage, one.record["held"]) for one in changes] == [
        ("notify", "approve", 6), ("approve", "act", 6),
    ]  # fmt: skip


def test_nothing_rises_by_itself(make: Callable[..., Service]) -> None:
    service = make(start=Stage.NOTIFY)
    for number in range(8):
        watched(service, number)
    service.application.stages.sweep()
    assert (told(service)["stage"], told(service)["may_rise"]) == ("notify", True)
    assert "stage.changed" not in service.audit.kinds()


def test_a_stage_needs_the_etag_a_reason_and_a_class_of_failures(service: Service) -> None:
    etag = service.get("/v1/stages").headers["ETag"]
    body = STAGE | {"stage": "notify"}
    assert service.put("/v1/stages", json=body).status_code == 428
    for fault in ({"reason": ""}, {"actor": ""}, {"stage": "bold"}, {"class": "gpu"}, {"class": "benign"}):
        assert service.put("/v1/stages", json=body | fault, headers={"If-Match": etag}).status_code == 422, fault
    assert service.put("/v1/stages", json=body, headers={"If-Match": etag}).status_code == 200
    assert service.put("/v1/stages", json=body, headers={"If-Match": etag}).status_code == 412
    assert service.as_(Role.VIEWER).put("/v1/stages", json=body).status_code == 403


def test_feedback_and_rejections_are_part_of_the_record(make: Callable[..., Service]) -> None:
    service = make(Mode.APPROVE)
    rejected = failed(service, 1)
    service.post(f"/v1/recommendations/{rejected['id']}/reject", json={"actor": "ada"})
    approved = failed(service, 2)
    service.post(f"/v1/recommendations/{approved['id']}/approve", json={"actor": "ada"})
    service.clock.advance(hours=1)
    service.application.advisor.sweep()
    assert (told(service)["record"]["held"], told(service)["record"]["decided"]) == (1, 2)
    service.post(f"/v1/recommendations/{rejected['id']}/feedback", json={"actor": "bo", "verdict": "right"})
    service.post(f"/v1/recommendations/{rejected['id']}/feedback", json={"actor": "bo", "verdict": "unsure"})
    assert (told(service)["record"]["held"], told(service)["record"]["decided"]) == (2, 2)


def test_cases_older_than_the_window_are_forgotten(make: Callable[..., Service]) -> None:
    service = make(Mode.MONITOR, window_days=10)
    watched(service, 1)
    assert told(service)["record"]["decided"] == 1
    service.clock.advance(days=10)
    assert told(service)["record"]["decided"] == 0


# ------------------------------------------------------------------ what a stage allows


@pytest.mark.parametrize(
    ("stage", "state", "mode", "blocked_by"),
    [("record", "SHADOW", "monitor", ["mode_monitor"]), ("notify", "SHADOW", "monitor", ["mode_monitor"]),
     ("approve", "PROPOSED", "approve", ["awaiting_approval"]), ("act", "PROPOSED", "act", [])],
)  # fmt: skip
def test_the_lower_of_stage_and_mode_counts(
    service: Service, stage: str, state: str, mode: str, blocked_by: list[str]
) -> None:
    assert set_stage(service, stage).status_code == 200
    service.crash()
    advice = service.advise().json()
    assert (advice["state"], advice["mode_at_decision"], advice["blocked_by"]) == (state, mode, blocked_by)
    page = service.get(f"/console/incidents/{advice['incident_id']}.json").json()
    assert page["stage"] == stage and (f"at {stage}:" in page["next"]) is (mode == "monitor")
    service.set_mode("monitor")
    service.crash("b-1", workload_id="w-b", node="n3")
    assert service.advise("b-1").json()["state"] == "SHADOW"


def test_another_class_and_another_cluster_are_not_touched(service: Service) -> None:
    set_stage(service, "record")
    service.put_attempt("b-1", cluster_id="other", workload_id="w-b")
    service.crash("b-1", cluster_id="other", workload_id="w-b")
    assert service.advise("b-1").json()["state"] == "PROPOSED"
    service.put_attempt("c-1", workload_id="w-c")
    service.send_lines({"attempt_id": "c-1", "file": "train.log", "number": 1, "rank": 0, "text": OOM})
    service.put_attempt("c-1", workload_id="w-c", state="FAILED", exit_code=1)
    assert service.advise("c-1").json()["state"] == "PROPOSED"


def test_a_class_that_is_off_gets_no_advice_and_a_person_may_still_propose(service: Service) -> None:
    set_stage(service, "off")
    service.crash()
    advice = service.advise().json()
    assert (advice["action"], advice["actionable"]) == ("no_decision", False)
    why = service.get(f"/v1/incidents/{advice['incident_id']}/why").json()
    assert "set its class to record" in why["counterfactual"]
    assert told(service)["record"]["pending"] == 0


# ------------------------------------------------------------------ falling


def demote(service: Service) -> None:
    """Six cases of six workloads in which people did otherwise."""
    for number in range(6):
        watched(service, number, agrees=False)
    assert service.application.stages.sweep() == 1


def test_a_class_falls_by_itself_when_its_record_falls_below_the_bar(make: Callable[..., Service]) -> None:
    service = make(Mode.MONITOR)
    demote(service)
    found = told(service)
    assert (found["stage"], found["previous"], found["actor"]) == ("notify", "act", DEMOTION)
    assert found["reason"] == "the advice held in 0 % of 6 cases, below 50 %"
    service.clock.advance(minutes=1)
    assert service.application.stages.sweep() == 0, "once is enough"
    changed = [one for one in service.audit.events() if isinstance(one, StageChanged)]
    notice = notice_of(1, changed[0])
    assert notice is not None and notice.title.startswith("hardware on default: from act to notify by its own record")


def test_a_demoted_class_needs_a_person_and_a_good_record_to_rise(make: Callable[..., Service]) -> None:
    service = make(Mode.MONITOR)
    demote(service)
    assert set_stage(service, "approve").status_code == 409
    for number in range(10, 24):
        watched(service, number)
    service.application.stages.sweep()
    assert told(service)["stage"] == "notify"
    assert set_stage(service, "approve").status_code == 200


def test_a_false_stop_takes_the_right_to_act_at_once(make: Callable[..., Service]) -> None:
    service = make(Mode.MONITOR)
    same: dict[str, Any] = {"workload_id": "w-1", "scheduler": {"kind": "slurm", "job_id": "1"}}
    service.put_attempt(**same)
    service.send_lines({"attempt_id": "a-1", "file": "train.log", "number": 1, "rank": 0, "text": OOM})
    service.put_attempt(state="FAILED", exit_code=1, **same)
    assert service.advise().json()["action"] == "stop"
    service.clock.advance(minutes=20)
    service.put_attempt("a-2", attempt_index=1, **same)
    signal = {"source": "t", "source_event_id": "1", "event_time": service.clock.at.isoformat(), "attempt_id": "a-2",
              "progress": {"step": 100}}  # fmt: skip
    service.post("/v1/signals", json={"signals": [signal]})
    assert told(service, "resource")["record"]["false_stops"] == 1
    assert service.application.stages.sweep() == 1
    assert told(service, "resource")["stage"] == "approve"


def test_a_demotion_holds_at_the_claim_before_each_verb_and_lets_work_under_way_end(
    make: Callable[..., Service],
) -> None:
    service = make(Mode.ACT)
    for number in range(6):
        watched(service, number, agrees=False)
    open_one, held, acting = (failed(service, number, f"n{number}", 6) for number in (20, 21, 22))
    claim = {"controller_id": "c-1", "observed_generation": 1}
    for one in (held, acting):
        assert service.post(f"/v1/recommendations/{one['id']}/claim", json=claim).status_code == 200
    intent = {"step": "requeue_hold", "phase": "intent", "idempotency_key": "k"}
    assert service.post("/v1/milestones", json=intent | {"recommendation_id": acting["id"]}).status_code == 201
    assert service.application.stages.sweep() == 1
    refused = service.post(f"/v1/recommendations/{open_one['id']}/claim", json=claim)
    assert (refused.status_code, refused.json()["code"]) == (409, "not_actionable")
    assert service.post("/v1/milestones", json=intent | {"recommendation_id": held["id"]}).status_code == 409
    go_on = intent | {"recommendation_id": acting["id"], "step": "release", "idempotency_key": "k2"}
    assert service.post("/v1/milestones", json=go_on).status_code == 201
    assert service.get(f"/v1/recommendations/{open_one['id']}").json()["blocked_by"] == ["mode_monitor"]


def test_no_claim_is_recorded_after_the_demotion_it_races_with(make: Callable[..., Service]) -> None:
    """Every round, controllers claim in threads of their own while the record is looked at."""
    service = make(Mode.ACT)
    for number in range(6):
        watched(service, number, agrees=False)
    advice = [failed(service, number, f"n{number}", 6) for number in (20, 21)] * 4
    application, barrier = service.application, threading.Barrier(len(advice) + 1)
    outcomes: list[str] = []

    def claim(name: str) -> None:
        barrier.wait()
        try:
            application.reconciliation.claim(name, "c-1", 1, 60)
            outcomes.append("claimed")
        except Exception as why:  # noqa: BLE001 -- the test looks at what it was
            outcomes.append(getattr(why, "code", repr(why)))

    threads = [threading.Thread(target=claim, args=(one["id"],)) for one in advice]
    for one in threads:
        one.start()
    barrier.wait()
    assert application.stages.sweep() == 1
    for one in threads:
        one.join()
    assert set(outcomes) <= {"claimed", "not_actionable"} and len(outcomes) == len(advice)
    events = service.audit.events()
    fallen = next(at for at, one in enumerate(events) if isinstance(one, StageChanged))
    assert not any(isinstance(one, RecommendationClaimed) for one in events[fallen:])
    assert sum(isinstance(one, RecommendationClaimed) for one in events) == outcomes.count("claimed")


def test_stages_are_the_same_after_a_restart(
    make: Callable[..., Service], rules: RuleStore, portal: anyio.from_thread.BlockingPortal
) -> None:
    service = make(Mode.MONITOR)
    demote(service)
    again = start(rules, portal, audit=service.audit, clock=service.clock)
    stage = again.application.stages.stage(ClusterId("default"), FailureClass.HARDWARE)
    assert stage == told(service)["stage"] == "notify"


# ------------------------------------------------------------------ in the console


def test_the_console_shows_the_record_beside_the_bar_and_raises_over_it(make: Callable[..., Service]) -> None:
    service = make(Mode.MONITOR, start=Stage.NOTIFY)
    browser = Browser(service)
    for number in range(6):
        watched(service, number)
    row = next(one for one in browser.get("/console/promotion.json").json()["classes"] if one["class"] == "hardware")
    assert (row["stage"], row["choices"][0], row["record"]["held"]) == ("notify", "approve", 6)
    assert row["in_force"] == "monitor"
    assert "over the bar" in browser.get("/console/promotion").text
    where, form = "/console/promotion/hardware", {"stage": "approve", "previous": "notify", "reason": "good weeks"}
    for fault, status in (({"reason": ""}, 422), ({"stage": "bold"}, 422), ({"previous": "act"}, 412)):
        assert browser.send("/console/promotion", where, **(form | fault)).status_code == status, fault
    done = browser.send("/console/promotion", where, **form)
    assert (done.status_code, done.headers["location"]) == (303, "/console/promotion?cluster=default&done=set")
    assert told(service)["actor"] == "client-operator"
    network = form | {"stage": "approve"}
    refused = browser.send("/console/promotion", "/console/promotion/network", **network)
    assert refused.status_code == 409
    assert "0 decided cases" in refused.text
    assert "Raise or lower" not in Browser(service, Role.VIEWER).get("/console/promotion").text
