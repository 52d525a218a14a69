# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Jobs watched while they run: progress from lines, hangs, slow ranks, and what is advised on them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest
import yaml

from relight.attribute import AttemptFacts
from relight.events import AnomalyDetected, AttributionMade, DetectorFailed, SignalAccepted
from relight.types import Anomaly, Attribution, Evidence, EvidenceStatus, FailureClass, FailureName
from service.adapters.rule_files import POLICY_FILE
from service.config import Plugins, Recommend, Rules, Settings, Topology
from service.plugins import Group
from service.rules_store import RuleStore
from tests.api.running import Service, start

Make = Callable[..., Service]
SLOW_POLICY = {"may_exclude": True, "restart_s": 20, "boundary_s": 600}


@pytest.fixture
def make(rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> Make:
    def made(**said: Any) -> Service:
        return start(rules, portal, settings=Settings(recommend=Recommend(mode="act"), **said))

    return made


def step_line(step: int, loss: float = 2.0) -> str:
    return f"step={step}/100000 loss={loss:.4f} grad_norm=0.3 lr=3.0e-03 step_time=1.0s samples/s=96.0"


def train(service: Service, steps: range, name: str = "a-1", first_line: int | None = None, **over: Any) -> None:
    """A line a second, each ticked over, as a follower of the log would bring them."""
    for step in steps:
        service.clock.advance(seconds=1)
        number = (first_line or steps.start) + step - steps.start
        line = {"attempt_id": name, "file": "job.out", "number": number, "text": step_line(step), **over}
        assert service.send_lines(line).json()["accepted"] == 1
        tick(service)


def tick(service: Service, seconds: float = 0) -> None:
    service.clock.advance(seconds=seconds)
    service.application.loop.tick(service.clock.now())


def wait(service: Service, seconds: int) -> None:
    for _ in range(seconds // 5):
        tick(service, 5)


def signals(service: Service, *items: dict[str, Any], name: str = "a-1") -> None:
    at = service.clock.at.isoformat()
    body = [
        {"source": "client", "source_event_id": f"{at}-{number}", "event_time": at, "attempt_id": name, **item}
        for number, item in enumerate(items)
    ]
    told = service.post("/v1/signals", json={"signals": body}).json()
    assert told["accepted"] == len(items), told


def anomalies(service: Service, **query: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get("/v1/anomalies", params=query).json()["items"]
    return found[::-1]


def incidents(service: Service) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = service.get("/v1/incidents").json()["items"]
    return found


# ------------------------------------------------------------------ progress


def test_steps_in_lines_are_the_attempts_progress_and_are_on_record(service: Service) -> None:
    service.put_attempt()
    train(service, range(1, 6))
    assert service.get("/v1/attempts/a-1").json()["last_step"] == 5
    counts = [one.counts for one in service.audit.events() if isinstance(one, SignalAccepted)]
    assert counts[-1] == {"lines": 1, "files": {"job.out": 5}, "step": 5, "logged_steps": 1}


def test_a_line_that_comes_as_a_signal_is_read_for_steps_too(service: Service) -> None:
    service.put_attempt()
    signals(service, {"log": {"file": "job.out", "text": step_line(41)}})
    assert service.get("/v1/attempts/a-1").json()["last_step"] == 41


def test_a_job_that_resumes_and_dies_at_the_same_step_every_time_is_stopped_in_the_end(service: Service) -> None:
    said = []
    for index in range(5):
        name = f"a-{index}"
        service.put_attempt(name, attempt_index=index)
        train(service, range(90, 101), name)
        text = "[rank1]: torch.distributed.DistNetworkError: Connection reset by peer"
        service.send_lines({"attempt_id": name, "file": "job.out", "number": 101, "text": text})
        service.put_attempt(name, attempt_index=index, state="FAILED", exit_code=1)
        said.append(service.advise(name).json())
    assert said[0]["action"] == "restart"
    assert (said[-1]["action"], said[-1]["reason"]) == ("stop", "same_root_repeats_without_progress")


def test_a_job_that_gets_further_each_time_is_never_stopped_for_that(service: Service) -> None:
    said = []
    for index in range(5):
        name = f"a-{index}"
        service.put_attempt(name, attempt_index=index)
        train(service, range(90 + 10 * index, 101 + 10 * index), name)
        text = "[rank1]: torch.distributed.DistNetworkError: Connection reset by peer"
        service.send_lines({"attempt_id": name, "file": "job.out", "number": 1_000, "text": text})
        service.put_attempt(name, attempt_index=index, state="FAILED", exit_code=1)
        said.append(service.advise(name).json()["action"])
    assert said == ["restart"] * 5


# ------------------------------------------------------------------ hangs


def hung(service: Service) -> None:
    service.put_attempt()
    train(service, range(1, 41))
    wait(service, 600)


def test_a_suspicion_is_recorded_and_only_the_confirmed_hang_opens_an_incident(service: Service) -> None:
    service.put_attempt()
    train(service, range(1, 41))
    wait(service, 90)
    (suspect,) = anomalies(service, kind="hang")
    assert (suspect["tier"], suspect["incident_id"]) == ("suspect", None)
    assert incidents(service) == []
    wait(service, 600)
    _, confirmed = anomalies(service, kind="hang")
    assert (confirmed["tier"], confirmed["scope"], confirmed["rank"]) == ("confirmed", "job", None)
    assert confirmed["incident_id"] == incidents(service)[0]["id"]
    assert confirmed["detection_latency_s"] > 0
    assert confirmed["evidence"] == [{"file": "job.out", "line": 40}]
    made = [one for one in service.audit.events() if isinstance(one, AttributionMade)]
    assert made[-1].failure == "silent_hang"
    assert 'relight_detection_latency_seconds_count{kind="hang"} 1.0' in service.get("/metrics").text


def test_the_rank_whose_heartbeats_stop_is_named(service: Service) -> None:
    service.put_attempt(rank_to_node={str(rank): f"n{rank + 1}" for rank in range(4)})
    for step in range(1, 41):
        train(service, range(step, step + 1))
        signals(service, *({"heartbeat": {"rank": rank}} for rank in range(4)))
    for _ in range(60):
        tick(service, 1)
        signals(service, *({"heartbeat": {"rank": rank}} for rank in (0, 1, 3)))
    confirmed = anomalies(service, kind="hang")[-1]
    assert (confirmed["tier"], confirmed["rank"], confirmed["node"]) == ("confirmed", 2, "n3")
    advice = service.advise().json()
    assert (advice["failure"], advice["action"], advice["exclusions"]) == ("silent_hang", "restart", [])


def test_a_hang_that_ends_by_itself_closes_its_incident(service: Service) -> None:
    hung(service)
    assert [one["state"] for one in incidents(service)] == ["RECOMMENDED"]
    train(service, range(41, 60))
    assert [one["state"] for one in incidents(service)] == ["CLOSED_SELF_HEALED"]
    assert service.advise().json()["action"] == "continue"


def test_a_job_that_the_scheduler_suspended_is_not_hung(service: Service) -> None:
    service.put_attempt()
    train(service, range(1, 41))
    service.clock.advance(seconds=1)
    service.put_attempt(reason="SUSPENDED by an operator")
    wait(service, 1_200)
    assert anomalies(service) == []


def test_a_crash_while_the_job_still_runs_is_an_incident_at_the_next_look(service: Service) -> None:
    service.put_attempt()
    train(service, range(1, 11))
    service.send_lines({"attempt_id": "a-1", "file": "job.out", "number": 11, "text": "hostlist: warning: odd"})
    text = "failed (exitcode: -9) local_rank: 1 (pid: 77) of binary: /usr/bin/python3"
    service.send_lines({"attempt_id": "a-1", "file": "launcher.log", "number": 1, "text": text})
    for _ in range(9):
        tick(service, 1)
    (crash,) = anomalies(service, kind="crash")
    assert crash["detection_latency_s"] < 10
    assert incidents(service)[0]["attempt_id"] == "a-1"


# ------------------------------------------------------------------ slow ranks


def slow_rank(service: Service, factor: float, steps: int = 260) -> None:
    """Four ranks, each on a node of its own; from a third of the way on the work of rank 2 takes longer."""
    for step in range(1, steps + 1):
        service.clock.advance(seconds=1)
        own = [1.0 + 0.002 * ((7 * step + 3 * rank) % 5) for rank in range(4)]
        own[2] *= factor if step > steps // 3 else 1.0
        wall = max(own) + 0.2
        signals(
            service,
            *(
                {"step_timing": {"rank": rank, "step": step, "step_s": wall, "compute_s": own[rank]}}
                for rank in range(4)
            ),
        )
    tick(service)


def slow_job(service: Service, factor: float = 1.5) -> None:
    placed = {str(rank): f"n{rank + 1}" for rank in range(4)}
    began = service.clock.at.isoformat()
    service.put_attempt(rank_to_node=placed, time_limit_s=400_000, started_at=began)
    slow_rank(service, factor)


def test_a_slow_rank_is_named_and_merely_observed(make: Make) -> None:
    service = make()
    slow_job(service)
    named = [one for one in anomalies(service, kind="straggler") if one["rank"] == 2]
    assert named and named[0]["node"] == "n3"
    assert named[0]["incident_id"] == incidents(service)[0]["id"]
    advice = service.advise().json()
    assert (advice["failure"], advice["action"]) == ("throughput_drop", "continue")
    assert (advice["reason"], advice["exclusions"]) == ("slowness_is_observed", [])


def test_where_the_site_says_so_a_person_is_asked_at_the_next_checkpoint(make: Make, tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    text = yaml.safe_load(POLICY_FILE.read_text())
    policy.write_text(yaml.safe_dump({**text, "slowness": SLOW_POLICY}))
    service = make(rules=Rules(policy_file=policy))
    slow_job(service)
    waiting = service.advise().json()
    assert (waiting["action"], waiting["reason"]) == ("continue", "waits_for_the_next_checkpoint")
    service.clock.advance(seconds=30)
    signals(service, {"progress": {"step": 261, "checkpoint_step": 260}})
    tick(service, 1)
    asked = service.get(f"/v1/recommendations/{waiting['id']}").json()
    assert (asked["generation"], asked["action"]) == (2, "restart_excluding")
    assert [one["node"] for one in asked["exclusions"]] == ["n3"]
    assert asked["mode_at_decision"] == "approve"
    assert "awaiting_approval" in asked["blocked_by"]


# ------------------------------------------------------------------ plugins


class Thrower:
    """A detector that raises at every observation of one attempt."""

    name = "thrower"

    def observe(self, seen: Any) -> tuple[Anomaly, ...]:
        if getattr(seen, "attempt", "") == "a-1":
            raise ZeroDivisionError("no ranks")
        return ()

    def overdue(self, now: datetime) -> tuple[Anomaly, ...]:
        return ()

    def forget(self, attempt: str) -> None:
        return

    def snapshot(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        return


class Oracle:
    """An attributor of a site's own; `wrong` makes it raise."""

    name = "oracle"

    def __init__(self, wrong: bool = False) -> None:
        self.wrong = wrong

    def attribute(self, evidence: tuple[Evidence, ...], facts: AttemptFacts) -> Attribution:
        if self.wrong:
            raise RuntimeError("no connection")
        return Attribution(
            failure=FailureName("shared_filesystem_stuck"), failure_class=FailureClass.STORAGE,
            evidence_status=EvidenceStatus.ESTABLISHED,
        )  # fmt: skip


@pytest.fixture
def plugged(monkeypatch: pytest.MonkeyPatch) -> None:
    here = "tests.api.test_watched_jobs"
    from service import plugins

    shipped = {group: dict(names) for group, names in plugins.SHIPPED.items()}
    shipped[Group.DETECTORS]["thrower"] = f"{here}:Thrower"
    shipped[Group.ATTRIBUTORS]["oracle"] = f"{here}:Oracle"
    monkeypatch.setattr("service.plugins.SHIPPED", shipped)


def test_a_detector_that_raises_degrades_readiness_and_the_others_go_on(make: Make, plugged: None) -> None:
    service = make(plugins=Plugins(detectors=("crash", "thrower", "hang")))
    hung(service)
    ready = service.get("/readyz")
    assert (ready.status_code, ready.json()["degraded"]) == (200, ["detector thrower failed"])
    failures = [one for one in service.audit.events() if isinstance(one, DetectorFailed)]
    assert [(one.attempt, one.failures) for one in failures] == [("a-1", 1)]
    found = [one.anomaly.tier for one in service.audit.events() if isinstance(one, AnomalyDetected)]
    assert found == ["suspect", "confirmed"]


def test_the_attributor_that_the_settings_name_decides(make: Make, plugged: None) -> None:
    service = make(plugins=Plugins(attributor="oracle"))
    service.crash()
    assert service.advise().json()["failure"] == "shared_filesystem_stuck"
    made = [one.attributor for one in service.audit.events() if isinstance(one, AttributionMade)]
    assert set(made) == {"oracle"}


def test_an_attributor_that_raises_is_replaced_by_our_own_and_said_to_have_failed(make: Make, plugged: None) -> None:
    service = make(plugins=Plugins(attributor="oracle", options={"oracle": {"wrong": True}}))
    service.crash()
    assert service.advise().json()["failure"] == "gpu_fell_off_bus"
    assert service.get("/readyz").json()["degraded"] == ["attributor oracle failed"]
    assert "detector.failed" in service.audit.kinds()


def test_reloaded_rules_judge_what_comes_next(service: Service, rules: RuleStore) -> None:
    service.put_attempt()
    signatures, progress = rules.current.pair
    without = type(progress)(())
    service.application.loop.use_rules(signatures, without)
    train(service, range(1, 3))
    assert service.get("/v1/attempts/a-1").json()["last_step"] is None
    service.application.loop.use_rules(signatures, progress)
    train(service, range(3, 5))
    assert service.get("/v1/attempts/a-1").json()["last_step"] == 4


# ------------------------------------------------------------------ places and other workloads


def test_nodes_of_one_rack_that_fail_together_share_a_cause(make: Make) -> None:
    service = make(topology=Topology(racks={"r1": ("n[1-4]",)}))
    verdicts = service.application.advisor._verdicts
    assert verdicts._places.racks == {f"n{number}": "r1" for number in range(1, 5)}


def test_the_same_place_struck_in_another_workload_counts(make: Make) -> None:
    service = make()
    xid = "NVRM: Xid (PCI:0000:1a:00): 94, pid=4242, name=python, Contained: SM (0x1). RST: No, D-RST: No"
    for number in (1, 2):
        name = f"w{number}-0"
        service.put_attempt(name, workload_id=f"w{number}", user=f"user{number}")
        service.send_lines(
            {"attempt_id": name, "file": "kern.log", "number": 1, "stream": "kernel", "node": "n2",
             "at": service.clock.at.isoformat(), "text": xid}
        )  # fmt: skip
        service.clock.advance(seconds=5)
        service.put_attempt(name, workload_id=f"w{number}", user=f"user{number}", state="FAILED", exit_code=1)
    first, second = (service.advise(f"w{number}-0").json() for number in (1, 2))
    assert (first["failure"], first["action"]) == ("gpu_contained_ecc", "restart")
    assert (second["action"], second["reason"]) == ("restart_excluding", "same_place_again")
