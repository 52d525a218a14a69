# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Probes tell a process that can't record from one that is dead, and figures name nobody."""

from __future__ import annotations

import anyio.from_thread
import httpx
import pytest

from relight.events import AuditRepaired, Repair
from service.rules_store import RuleStore
from tests.api.running import START, BrittleAuditLog, Service, start


def test_a_service_that_cannot_record_is_alive_but_not_ready(service: Service) -> None:
    assert service.get("/readyz").status_code == 200
    service.audit.is_broken = True
    service.put_attempt()
    answer = service.get("/readyz")
    assert (answer.status_code, answer.json()["checks"]["audit_writable"]) == (503, False)
    assert service.get("/livez").json() == {"status": "ok"}
    service.audit.is_broken = False
    service.put_attempt()
    assert service.get("/readyz").status_code == 200


def test_a_closed_log_makes_it_unready(service: Service) -> None:
    service.application.journal.audit.close()
    service.put_attempt()
    assert service.get("/readyz").status_code == 503


def test_the_figures_promised_are_there_and_carry_no_job_or_user(service: Service) -> None:
    service.crash()
    service.advise()
    text = service.get("/metrics").text
    for name in (
        "relight_ingest_records_total", "relight_ingest_lag_seconds", "relight_detection_latency_seconds",
        "relight_recommendation_latency_seconds", "relight_decisions_total", "relight_actions_total",
        "relight_watchdog_expirations_total", "relight_circuit_open",
        "relight_rules_last_reload_successful", "relight_audit_chain_length", "relight_audit_fsync_seconds",
        "relight_audit_head_info", "relight_model_info", "relight_store_bytes", "relight_clock_skew_seconds",
    ):  # fmt: skip
        assert f"# TYPE {name.removesuffix('_total')}" in text or f"# TYPE {name}" in text, name
    assert 'relight_decisions_total{action="restart_excluding",mode="act"} 1.0' in text
    said = "\n".join(one for one in text.splitlines() if "audit_head" not in one)  # a hash may spell anything
    assert "ada" not in said and "a-1" not in said and "4711" not in said


def test_statistics_count_by_state(service: Service) -> None:
    service.crash()
    service.advise()
    stats = service.get("/v1/stats").json()
    assert stats["attempts"] == {"FAILED": 1}
    assert stats["recommendations"] == {"PROPOSED": 1}
    assert stats["actions"] == {"restart_excluding": 1}


def test_the_lifespan_runs_the_loop_and_closes_the_log(service: Service) -> None:
    async def live() -> httpx.Response:
        async with service.app.router.lifespan_context(service.app):
            return await service.send("GET", "/readyz")

    assert service.portal.call(live).status_code == 200
    assert [record.event().kind for record in service.audit.records][-1] == "service.stopped"
    assert service.get("/readyz").status_code == 503


# ------------------------------------------------------------------ what the audit log says of itself


def repaired(repair: Repair, summary: str = "events 8 to 9 are gone") -> AuditRepaired:
    return AuditRepaired(at=START, repair=repair, summary=summary, first=8, last=9)


def opened_with(rules: RuleStore, portal: anyio.from_thread.BlockingPortal, *repairs: AuditRepaired) -> Service:
    log = BrittleAuditLog()
    log.append(repairs)
    return start(rules, portal, audit=log)


def page(service: Service) -> str:
    return service.get("/console/fleet", headers={"Accept": "text/html"}).text


@pytest.mark.parametrize("repair", [Repair.TAIL_MISSING, Repair.CHAIN_BROKEN, Repair.WAL_QUARANTINED])
def test_damage_to_the_record_is_in_health_in_readiness_and_on_every_page(
    rules: RuleStore, portal: anyio.from_thread.BlockingPortal, repair: Repair
) -> None:
    service = opened_with(rules, portal, repaired(repair))
    (told,) = service.get("/v1/health").json()["audit_repairs"]
    assert (told["repair"], told["is_serious"], told["first"], told["last"]) == (repair.value, True, 8, 9)
    assert "audit log: events 8 to 9 are gone" in service.get("/readyz").json()["degraded"]
    assert service.get("/readyz").status_code == 200
    assert "The audit log was damaged." in page(service) and "events 8 to 9 are gone" in page(service)


@pytest.mark.parametrize("repair", [Repair.MIGRATED, Repair.SPILL_FOLDED_BACK])
def test_what_was_mended_whole_is_told_and_alarms_nobody(
    rules: RuleStore, portal: anyio.from_thread.BlockingPortal, repair: Repair
) -> None:
    service = opened_with(rules, portal, repaired(repair))
    (told,) = service.get("/v1/health").json()["audit_repairs"]
    assert not told["is_serious"] and service.get("/v1/health").json()["degraded"] == []
    assert "damaged" not in page(service)


def test_repairs_of_earlier_starts_are_history_and_those_while_it_runs_are_not(
    rules: RuleStore, portal: anyio.from_thread.BlockingPortal
) -> None:
    log = BrittleAuditLog()
    log.append([AuditRepaired(at=START.replace(year=2025), repair=Repair.TAIL_MISSING, summary="long ago")])
    service = start(rules, portal, audit=log)
    assert service.get("/v1/health").json()["audit_repairs"] == []
    log.append([repaired(Repair.SPILL_FOLDED_BACK, "3 events were taken back")])
    (told,) = service.get("/v1/health").json()["audit_repairs"]
    assert told["summary"] == "3 events were taken back"


def test_words_in_a_repair_drive_no_page(rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> None:
    service = opened_with(rules, portal, repaired(Repair.CHAIN_BROKEN, "<script>alert(1)</script>"))
    assert "<script>alert" not in page(service) and "&lt;script&gt;alert" in page(service)
