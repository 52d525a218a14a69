# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The demo's cluster: after three hours in fast-forward every page of the console has something true to show."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from service.bootstrap import clock, running
from service.commands.demo import _settings
from service.demo_clock import WoundClock
from service.demo_fleet import SPAN_S, Fleet
from service.demo_plan import SLOW_RANK, WANTED, WORKLOADS
from service.demo_site import CLUSTER, GPUS_PER_NODE, Site

Twins = dict[str, Any]


@pytest.fixture(scope="module")
def twins(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Twins]:
    """The JSON twins of the pages after the play, and which incidents were missing before and after it."""
    wound = WoundClock(clock(), timedelta(seconds=SPAN_S))
    with running(_settings(tmp_path_factory.mktemp("demo"), 0), wound) as service:
        headers = {"Authorization": f"Bearer {service.token}"}
        with httpx.Client(base_url=service.url, headers=headers, timeout=60) as client:
            fleet = Fleet(Site(client), wound)
            before = fleet.missing()
            fleet.play()
            fleet.go_on()
            pages = {
                "fleet": "fleet", "incidents": "incidents", "goodput": f"goodput?cluster={CLUSTER}",
                "nodes": "nodes", "node": "nodes/gpu003", "steps": "attempts/speech-3b-0/steps", "shadow": "shadow",
                "rules": "rules",
            }  # fmt: skip
            found: Twins = {"missing_before": before, "missing": fleet.missing()}
            for name, page in pages.items():
                answer = client.get(f"/console/{page}", headers={"Accept": "application/json"})
                assert answer.status_code == 200, answer.text
                found[name] = answer.json()
            found["sights"] = [client.get(path, headers={"Accept": "application/json"}) for path, _ in fleet.sights()]
            found["audit"] = client.post("/v1/audit/verify", json={}).json()
            found["hangs"] = client.get("/v1/anomalies", params={"kind": "hang", "limit": 100}).json()["items"]
            yield found


def test_every_expected_incident_is_there_and_was_not_before(twins: Twins) -> None:
    assert twins["missing_before"] == [str(one) for one in WANTED]
    assert twins["missing"] == []
    assert twins["audit"]["is_sound"]


def test_the_fleet_shows_every_workload_its_mode_and_what_waits_for_a_person(twins: Twins) -> None:
    rows = {row["workload"]: row for row in twins["fleet"]["workloads"]}
    assert {name: row["mode"] for name, row in rows.items()} == {one.name: one.mode for one in WORKLOADS}
    assert rows["rl-13b"]["awaits_approval"]
    assert rows["pretrain-70b"]["attempts"] == rows["moe-8x22b"]["attempts"] == 2
    assert rows["pretrain-70b"]["incident"] is None
    assert [one["kind"] for one in twins["fleet"]["attention"]] == ["approval"]


def test_the_incidents_are_those_of_the_story_and_no_healthy_job_is_accused(twins: Twins) -> None:
    told = sorted(row["workload"] for row in twins["incidents"]["incidents"])
    assert told == sorted(one.workload for one in WANTED)


def test_the_hung_rank_is_named(twins: Twins) -> None:
    (hang,) = [one for one in twins["hangs"] if one["attempt_id"] == "vision-9b-0" and one["tier"] == "confirmed"]
    assert hang["node"] == "gpu017"


def test_goodput_is_in_gpu_hours_and_every_stage_of_a_recovery_cost_some(twins: Twins) -> None:
    total = twins["goodput"]["total"]
    spent = {bar["part"]: bar["hours"] for bar in total["bars"]}
    most = sum(len(one.nodes) for one in WORKLOADS) * GPUS_PER_NODE * SPAN_S / 3600
    assert total["is_in_gpu_hours"]
    assert 0.8 * most < total["total"] < 1.05 * most
    assert 0.6 < total["goodput_ratio"] < 0.95
    assert [part for part, hours in spent.items() if hours <= 0] == ["unknown"]
    assert twins["goodput"]["left_out"] == []


def test_the_straggler_is_outlined_in_the_heat_map(twins: Twins) -> None:
    grid = twins["steps"]["grid"]
    assert grid["ranks"] == 56
    assert grid["stragglers"] == 1
    assert grid["slowest"][0]["rank"] == SLOW_RANK
    assert SLOW_RANK in {one["rank"] for one in twins["steps"]["reported"]}


def test_nodes_that_failed_are_kept_out_and_have_a_dossier(twins: Twins) -> None:
    kept_out = {row["node"] for row in twins["nodes"]["nodes"] if row["excluded_until"] is not None}
    assert kept_out == {"gpu003", "gpu012", "gpu064"}
    assert [one["failure"] for one in twins["node"]["accusations"]] == ["gpu_fell_off_bus"]
    assert twins["node"]["exclusions"]


def test_the_scorecard_and_the_rules_have_content(twins: Twins) -> None:
    assert (twins["shadow"]["total"]["decided"], twins["shadow"]["total"]["agreed"]) == (3, 2)
    assert {row["failure"] for row in twins["rules"]["signatures"]} >= {"gpu_fell_off_bus", "stale_file_handle"}


def test_what_the_demo_points_at_exists(twins: Twins) -> None:
    assert [answer.status_code for answer in twins["sights"]] == [200] * 5


class _Standing:
    def now(self) -> datetime:
        return datetime(2026, 11, 2, 12, tzinfo=UTC)


def test_a_wound_clock_runs_neither_back_nor_ahead_and_is_real_in_the_end() -> None:
    real = _Standing()
    wound = WoundClock(real, timedelta(hours=3))
    noon = real.now()
    wound.wind(noon - timedelta(hours=1))
    wound.wind(noon - timedelta(hours=2))
    assert wound.now() == noon - timedelta(hours=1)
    with pytest.raises(ValueError, match="in the future"):
        wound.wind(noon + timedelta(seconds=1))
    wound.release()
    assert wound.now() == noon
