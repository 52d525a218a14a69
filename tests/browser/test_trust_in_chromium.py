# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Raising a class, silencing an incident and answering from a chat's link, in a real Chromium."""

from __future__ import annotations

from typing import Any

import pytest

from tests.api.test_answer_links import link_to
from tests.browser.conftest import AXE, Site, Tab
from tests.browser.scenery import crashed
from tests.browser.test_console_in_chromium import ENTER, TAB, violations

pytestmark = pytest.mark.browser


def stage(site: Site, failure_class: str) -> dict[str, Any]:
    classes = site.service.get("/v1/stages").json()["classes"]
    return next(one for one in classes if one["class"] == failure_class)


def test_a_class_is_raised_by_the_keyboard_and_not_over_a_bar_that_it_misses(tab: Tab, site: Site) -> None:
    tab.press("g", "p")
    tab.until("location.pathname.endsWith('/promotion')")
    assert "the advice held in 91 %" in tab.text() or "decided cases, 30 are needed" in tab.text()
    offered = "[...document.querySelectorAll('#stage-hardware option')].map((one) => one.value).join()"
    assert tab.run(f"return {offered}") == "notify,record,off", "act is out of reach"
    tab.run("document.querySelector('#set-network summary').focus()")
    tab.press(ENTER)
    tab.until("document.querySelector('#set-network').open")
    assert tab.run("return document.getElementById('stage-network').value") == "record"
    tab.press(TAB, TAB)
    tab.until("document.activeElement.id === 'reason-network'")
    tab.press("two quiet weeks", ENTER)
    tab.until("location.search.includes('done=set')")
    assert "It is on record" in tab.text()
    network = stage(site, "network")
    assert (network["stage"], network["actor"], network["reason"]) == ("record", "client-operator", "two quiet weeks")


def test_an_incident_is_silenced_from_its_page(tab: Tab, site: Site) -> None:
    advice = crashed(site.service, "noisy-7b", "n8", "")
    tab.open(f"/console/incidents/{advice['incident_id']}")
    tab.run("document.getElementById('s-about').value = 'node:n8'; document.getElementById('s-reason').focus()")
    tab.press("on the bench", ENTER)
    tab.until("location.search === '?done=silenced'")
    assert "Messages are muted; advice and controllers go on." in tab.text()
    (found,) = site.service.get("/v1/silences?is_standing=true").json()["items"][:1]
    assert (found["node"], found["reason"]) == ("n8", "on the bench")


def test_a_link_from_a_chat_answers_without_a_login_and_only_once_pressed(tab: Tab, site: Site) -> None:
    advice = crashed(site.service, "linked-7b", "n6", "")
    link = link_to(site.service, advice["id"])
    tab.driver.delete_all_cookies()
    tab.open(link)
    tab.until("document.getElementById('approve')")
    tab.photograph("answer")
    assert "Approve: restart" in tab.text()
    assert site.service.get(f"/v1/recommendations/{advice['id']}").json()["state"] == "PROPOSED"
    if AXE.exists():
        assert violations(tab) == []
    tab.run("document.getElementById('name').focus()")
    tab.press("Ada")
    tab.run("document.activeElement.blur()")
    tab.press("y")
    tab.until("document.activeElement.id === 'approve'")
    tab.press(ENTER)
    tab.until("document.body.innerText.includes('On record as the answer of')")
    assert site.service.get(f"/v1/recommendations/{advice['id']}").json()["state"] == "APPROVED"
    assert tab.complaints() == []
    tab.open(link)
    assert "approved by link:chat" in tab.text()
