# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A site's overlays in a running service: taken up without a restart, and refused without losing the last good set."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest

from relight.events import PackLoaded, PackRefused
from service import bootstrap
from service.config import Recommend, Rules, Settings
from tests.api.running import BrittleAuditLog, Service, StandingClock, start

OVERLAY = """\
kind: overlay
changes:
  xid.catalogue#79:
    reason: the epilog resets the GPU
    action: {action}
"""
SILENCE = """\
kind: overlay
silences:
  - signature: xid.catalogue#79
    from: '2026-11-02'
    until: '2026-11-02T12:30:00Z'
    reason: risers are replaced in rack 4
"""


class Site:
    """A service whose rule folder a test may write into; `settle` lets it look until a change stands still."""

    def __init__(self, folder: Path, portal: anyio.from_thread.BlockingPortal) -> None:
        self.file, self.clock, self.audit = folder / "site.yaml", StandingClock(), BrittleAuditLog()
        settings = Settings(recommend=Recommend(mode="act"), rules=Rules(folders=(folder,)))
        rules = bootstrap.rule_store(settings, self.clock)
        self.service: Service = start(rules, portal, audit=self.audit, clock=self.clock, settings=settings)
        self._written = 0

    def write(self, text: str) -> None:
        self.file.write_text(text, "utf-8")
        self._written += 1
        os.utime(self.file, ns=(self._written, self._written))  # two edits within a tick of the file system
        self.settle()

    def settle(self) -> None:
        chore = next(one for one in self.service.application.chores if one.name == "reload of rules")
        for _ in range(2):
            chore.once()
            assert chore.trouble == ""
            self.clock.advance(seconds=30)
        chore.once()

    def recorded(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.audit.events() if isinstance(event, kind)]

    def degraded(self) -> list[str]:
        said: list[str] = self.service.get("/readyz").json()["degraded"]
        return said

    def advice(self, name: str) -> dict[str, Any]:
        self.service.crash(name, scheduler={"kind": "slurm", "job_id": name}, workload_id=name)
        said: dict[str, Any] = self.service.advise(name).json()
        return said


@pytest.fixture
def site(tmp_path: Path, portal: anyio.from_thread.BlockingPortal) -> Site:
    return Site(tmp_path, portal)


def test_an_overlay_moves_advice_from_the_next_reload_on(site: Site) -> None:
    assert site.advice("before")["action"] == "restart_excluding"
    site.write(OVERLAY.format(action="stop"))
    assert site.advice("after")["action"] == "stop"
    first, second = site.recorded(PackLoaded)
    assert first.digest != second.digest


def test_a_bad_edit_keeps_the_last_good_set_and_says_so_in_health_and_audit(site: Site) -> None:
    site.write(OVERLAY.format(action="stop"))
    good = site.service.application.rules_digest()
    site.write(OVERLAY.format(action="reboot"))
    assert site.service.application.rules_digest() == good
    assert site.advice("meanwhile")["action"] == "stop"
    (refused,) = site.recorded(PackRefused)
    assert (refused.digest, refused.problems) == (good, 1)
    assert (
        "site.yaml:5:13 xid.catalogue#79 changes.xid.catalogue#79.action: 'reboot' is not allowed" in refused.first[0]
    )
    (said,) = site.degraded()
    assert said.startswith("rules: changed files hold 1 problem (first at site.yaml:5), so rule set " + good[:12])
    assert str(site.file.parent) not in said
    assert site.service.get("/readyz").json()["is_ready"] is True
    assert "relight_rules_last_reload_successful 0.0" in site.service.get("/metrics").text
    site.write(OVERLAY.format(action="restart"))
    assert site.degraded() == []
    assert site.advice("mended")["action"] == "restart"


def test_a_silence_ends_by_itself_and_even_while_a_faulty_edit_waits(site: Site) -> None:
    site.write(SILENCE)
    silenced = site.service.application.rules_digest()
    assert site.advice("within")["action"] != "restart_excluding"
    site.write("kind: overlay\nsilences: [")
    assert site.recorded(PackRefused)
    site.clock.advance(minutes=30)
    site.settle()
    assert site.service.application.rules_digest() != silenced
    assert site.advice("beyond")["action"] == "restart_excluding"
    assert len({one.digest for one in site.recorded(PackLoaded)}) == 3


# ------------------------------------------------------------------ the console's view


def shown(site: Site, **asked: str) -> dict[str, Any]:
    said: dict[str, Any] = site.service.get("/console/rules.json", params=asked).json()
    return said


def test_the_console_shows_every_loaded_signature_those_that_never_fired_too(site: Site) -> None:
    site.advice("a-1")
    loaded = len(site.service.application.rules.current.checked.signatures)
    first = shown(site)
    assert first["totals"]["loaded"] == loaded == first["found"]
    assert (len(first["signatures"]), first["next_page"]) == (100, 2)
    assert (first["signatures"][0]["signature"], first["signatures"][0]["codes"]) == ("xid.catalogue", ["79"])
    names, page = [], 1
    while page:
        told = shown(site, page=str(page))
        names += [one["signature"] for one in told["signatures"]]
        page = told["next_page"]
    assert len(names) == len(set(names)) == loaded


def test_the_console_filters_by_pack_kind_firing_state_and_words(site: Site) -> None:
    site.advice("a-1")
    site.write(OVERLAY.format(action="stop"))
    assert [one["signature"] for one in shown(site, fired="yes")["signatures"]] == ["xid.catalogue"]
    assert {one["pack"] for one in shown(site, pack="nccl")["signatures"]} == {"nccl"}
    assert {one["kind"] for one in shown(site, kind="progress")["signatures"]} == {"progress"}
    assert [one["signature"] for one in shown(site, state="changed")["signatures"]] == ["xid.catalogue"]
    assert {one["state"] for one in shown(site, state="trial")["signatures"]} == {"trial"}
    assert [one["signature"] for one in shown(site, q="collective_timeout", pack="nccl")["signatures"]]
    assert shown(site, fired="yes", pack="nccl")["signatures"] == []
    assert site.service.get("/console/rules.json?state=odd").status_code == 400


def test_the_console_tells_what_an_overlay_changed_where_and_when(site: Site) -> None:
    site.write(OVERLAY.format(action="stop"))
    (row,) = shown(site, state="changed")["signatures"]
    (touch,) = row["overlays"]
    assert (touch["target"], touch["field"], touch["value"], touch["line"]) == ("xid.catalogue#79", "action", "stop", 5)
    assert row["changed_at"] is not None
    assert shown(site, pack="nccl")["signatures"][0]["changed_at"] is None
    page = site.service.get("/console/rules?state=changed").text
    assert "the epilog resets the GPU" in page


def test_the_console_tells_a_silence_and_its_end(site: Site) -> None:
    site.write(SILENCE.replace("xid.catalogue#79", "host.segfault"))
    (row,) = shown(site, state="silenced")["signatures"]
    assert (row["signature"], row["silences"][0]["until"]) == ("host.segfault", "2026-11-02T12:30:00.000Z")
    site.clock.advance(minutes=30)
    site.settle()
    assert shown(site, state="silenced")["signatures"] == []


def test_the_console_tells_that_changed_files_were_refused(site: Site) -> None:
    site.write(OVERLAY.format(action="reboot"))
    told = shown(site)
    assert told["last_reload"]["is_good"] is False
    assert "'reboot' is not allowed" in told["last_reload"]["problems"][0]
    assert told["changes"][0]["refused"]
    page = site.service.get("/console/rules").text
    assert "changed files are faulty: the last good set stays" in page
