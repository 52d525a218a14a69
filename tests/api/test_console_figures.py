# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Step times, goodput and the shadow scorecard: the figures and where they come from."""

from __future__ import annotations

from tests.api.running import Service


def test_step_timings_become_a_map_with_the_slow_rank_outlined(service: Service) -> None:
    service.put_attempt(rank_to_node={str(rank): f"n{rank // 2 + 1}" for rank in range(8)})
    empty = service.get("/console/attempts/a-1/steps")
    assert "nothing of its health" in empty.text
    for step in range(10):
        signals = [
            {"source": "trainer", "source_event_id": f"{step}-{rank}", "event_time": service.clock.at.isoformat(),
             "attempt_id": "a-1",
             "step_timing": {"rank": rank, "step": step, "step_s": 1.5, "compute_s": 1.3 if rank == 5 else 1.0}}
            for rank in range(8)
        ]  # fmt: skip
        assert service.post("/v1/signals", json={"signals": signals}).json()["accepted"] == 8
    grid = service.get("/console/attempts/a-1/steps.json").json()["grid"]
    assert (grid["measure"], grid["ranks"], grid["stragglers"]) == ("compute_s", 8, 1)
    assert grid["slowest"][0] == {"rank": 5, "slowdown": 1.3, "node": "n3"}
    part = service.get("/console/attempts/a-1/steps.json?from=4&to=5&measure=step_s").json()["grid"]
    assert ([row["first"] for row in part["rows"]], part["stragglers"]) == ([4, 5], 0)
    assert service.get("/console/attempts/a-1/steps?from=5&to=4").status_code == 400


def test_goodput_is_told_in_gpu_hours_where_gpus_were_counted(service: Service) -> None:
    service.put_attempt(gpus_per_node=8)
    service.clock.advance(hours=1)
    told = service.get("/console/goodput.json").json()
    assert (told["total"]["unit"], told["total"]["total"]) == ("GPU-hours", 32)
    assert {one["part"]: one["hours"] for one in told["total"]["bars"]}["unknown"] == 32
    service.put_attempt("b-1", workload_id="uncounted")
    service.clock.advance(hours=1)
    assert service.get("/console/goodput.json").json()["left_out"] == ["uncounted"]


def test_what_people_did_in_monitor_mode_is_scored(service: Service) -> None:
    service.set_mode("monitor")
    service.crash()
    service.advise()
    service.clock.advance(minutes=30)
    service.put_attempt("a-2", attempt_index=1, allocated_nodes=["n1", "n3", "n4", "n5"])
    told = service.get("/console/shadow.json").json()
    assert (told["total"]["decided"], told["total"]["agreed"], told["total"]["median_lead_s"]) == (1, 1, 1800)
    row = next(one for one in told["matrix"] if one["action"] == "restart_excluding")
    assert dict(zip(told["did"], row["counts"], strict=True))["restarted_elsewhere"] == 1


def test_a_node_that_somebody_drains_after_the_advice_agrees_with_it(service: Service) -> None:
    service.set_mode("monitor")
    service.crash()
    service.advise()
    service.clock.advance(minutes=20)
    drained = {
        "source": "slurm", "source_event_id": "drained/n2/1", "event_time": service.clock.at.isoformat(), "node": "n2",
        "node_event": {"is_fatal": False, "check_name": "drained", "message": "fell off the bus [ada@2026-11-02]"},
    }  # fmt: skip
    other = drained | {"node": "n3", "source_event_id": "drained/n3/1"}
    assert service.post("/v1/signals", json={"signals": [other]}).json()["accepted"] == 1
    assert service.get("/console/shadow.json").json()["total"]["decided"] == 0
    assert service.post("/v1/signals", json={"signals": [drained]}).json()["accepted"] == 1
    told = service.get("/console/shadow.json").json()
    assert (told["total"]["decided"], told["total"]["agreed"], told["total"]["median_lead_s"]) == (1, 1, 1200)
    row = next(one for one in told["matrix"] if one["action"] == "restart_excluding")
    assert dict(zip(told["did"], row["counts"], strict=True))["drained"] == 1
