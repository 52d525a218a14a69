# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The console in a real Chromium: every view, the keyboard, live updates, and what log text may not do."""

from __future__ import annotations

from typing import Any

import pytest

from service.tokens import Role
from tests.browser.conftest import AXE, Site, Tab
from tests.browser.scenery import SLOW

pytestmark = pytest.mark.browser
ENTER, TAB = "\ue007", "\ue004"
VIEWS = {
    "fleet": "/console/fleet",
    "incidents": "/console/incidents",
    "incident": "/console/incidents/{waiting}",
    "recovered": "/console/incidents/{recovered}",
    "steps": "/console/attempts/big-0/steps",
    "goodput": "/console/goodput?workload=mixtral-8x7b",
    "workload": "/console/workload?id=mixtral-8x7b",
    "nodes": "/console/nodes",
    "node": "/console/nodes/n7",
    "rules": "/console/rules",
    "shadow": "/console/shadow",
    "promotion": "/console/promotion",
    "silences": "/console/silences",
    "audit": "/console/audit?verify=1",
}


def address(site: Site, name: str) -> str:
    return VIEWS[name].format(waiting=site.scenery.waiting, recovered=site.scenery.recovered)


def violations(tab: Tab) -> list[str]:
    """Serious and critical ones by axe-core, and the elements they are about."""
    tab.run(AXE.read_text("utf-8"))
    script = """
      const done = arguments[arguments.length - 1];
      axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] })
        .then((found) => done(found.violations.map((one) => [one.impact, one.id, one.nodes.map((n) => n.html).slice(0, 3)])));
    """
    found: list[Any] = tab.driver.execute_async_script(script)
    return [f"{kind} {name}: {where}" for kind, name, where in found if kind in {"serious", "critical"}]


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_loads_without_a_complaint_fits_a_small_window_and_is_accessible(
    tab: Tab, site: Site, name: str
) -> None:
    tab.open(address(site, name))
    tab.until("document.readyState === 'complete'")
    if name == "steps":
        tab.until("document.querySelector('canvas.heat').dataset.drawn")
    tab.photograph(name)
    assert tab.complaints() == []
    tab.width(640)  # 200 % of a 1280 pixel window
    assert tab.run("return document.documentElement.scrollWidth <= innerWidth"), "the page scrolls sideways"
    tab.width(1280)
    if not AXE.exists():
        pytest.skip("no axe-core: npm is needed for it, see .ci/setup-browser")
    for scheme in ("light", "dark"):
        tab.scheme(scheme)
        assert violations(tab) == [], scheme
    if name == "incident":
        tab.photograph("incident-dark")


def test_an_approval_takes_nothing_but_the_keyboard(tab: Tab, site: Site) -> None:
    tab.until("document.querySelector('[data-row] a')")
    tab.press("j")
    tab.until("document.activeElement.getAttribute('href').includes('/incidents/')")
    tab.press(ENTER)
    tab.until("location.pathname.includes('/incidents/')")
    tab.until("document.getElementById('approve')")
    tab.press("y")
    tab.until("document.activeElement.id === 'approve'")
    assert tab.run("return getComputedStyle(document.activeElement).outlineStyle") == "solid"
    tab.press(ENTER)
    tab.until("location.search === '?done=approved'")
    assert "Approved by client-operator" in tab.text()
    advice = site.service.get(f"/v1/recommendations/{site.scenery.waiting_advice}").json()
    assert (advice["state"], advice["actionable"]) == ("APPROVED", True)


def test_the_first_stop_of_the_keyboard_skips_to_the_content(tab: Tab) -> None:
    tab.press(TAB)
    assert tab.run("return document.activeElement.textContent") == "Skip to the content"
    tab.press(ENTER)
    assert tab.run("return document.activeElement.id") == "main"


def test_keys_lead_to_views_and_can_be_turned_off(tab: Tab) -> None:
    tab.press("g", "i")
    tab.until("location.pathname.endsWith('/incidents')")
    tab.press("?")
    tab.until("document.getElementById('keys').open")
    tab.run("document.getElementById('keys-on').click()")
    tab.press("\ue00c")
    tab.until("!document.getElementById('keys').open")
    tab.press("g", "f")
    assert tab.run("return location.pathname").endswith("/incidents")
    tab.run("localStorage.clear()")


def test_an_open_page_shows_what_happens_and_a_paused_one_waits(tab: Tab, site: Site) -> None:
    tab.until("document.getElementById('pulse').textContent.startsWith('live')")
    tab.run("window.isTheSameDocument = true")
    site.service.put_attempt("live-1", workload_id="came-while-you-looked")
    tab.until("document.body.innerText.includes('came-while-you-looked')")
    assert tab.run("return window.isTheSameDocument")
    tab.press("p")
    tab.until("location.search === '?paused=1'")
    site.service.put_attempt("live-2", workload_id="came-in-a-pause")
    asked = tab.run("return performance.getEntriesByType('resource').length")
    tab.driver.implicitly_wait(0)
    assert "came-in-a-pause" not in tab.text()
    assert tab.run("return performance.getEntriesByType('resource').length") == asked
    tab.press("p")
    tab.until("document.body.innerText.includes('came-in-a-pause')")


def test_a_live_page_leaves_alone_what_somebody_writes(tab: Tab, site: Site) -> None:
    tab.open(f"/console/incidents/{site.scenery.hostile}")
    tab.until("document.getElementById('pulse').textContent.startsWith('live')")
    tab.run("document.getElementById('b-note').focus()")
    tab.press("half a thought")
    site.service.put_attempt("live-3", workload_id="meanwhile")
    tab.until("performance.getEntriesByType('resource').length > 0")
    assert tab.run("return document.getElementById('b-note').value") == "half a thought"


def test_the_heat_map_of_ten_thousand_ranks_points_at_the_slow_one(tab: Tab, site: Site) -> None:
    tab.open(address(site, "steps"))
    tab.until("document.querySelector('canvas.heat').dataset.drawn")
    assert int(tab.run("return document.querySelector('canvas.heat').dataset.drawn")) <= 256
    took = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    assert float(tab.run(f"return {took}")) < 5_000
    colours = tab.run("""
      const canvas = document.querySelector("canvas.heat"), pen = canvas.getContext("2d");
      const pixels = pen.getImageData(0, 0, canvas.width, canvas.height).data, seen = new Set();
      for (let i = 0; i < pixels.length; i += 400) seen.add(pixels.slice(i, i + 3).join());
      return seen.size;
    """)
    assert colours > 3
    row = f"[...document.querySelectorAll('#twin a')].find((a) => {{ const [f, t] = a.textContent.split(' to '); return +f <= {SLOW} && {SLOW} <= +t; }})"
    tab.run(f"document.getElementById('twin').open = true; {row}.click()")
    tab.until("location.search.includes('from=')")
    tab.until("document.querySelector('canvas.heat').dataset.drawn")
    assert str(SLOW) in tab.text()
    tab.photograph("steps-near")


def test_an_incident_is_copied_as_markdown(tab: Tab, site: Site) -> None:
    tab.driver.execute_cdp_cmd(
        "Browser.grantPermissions",
        {"origin": site.url, "permissions": ["clipboardReadWrite", "clipboardSanitizedWrite"]},
    )
    tab.open(f"/console/incidents/{site.scenery.recovered}")
    tab.until("document.querySelector('[data-copy]')")
    tab.run("document.querySelector('[data-copy]').click()")
    tab.until("document.getElementById('copied').textContent.includes('Copied')")
    script = "const done = arguments[0]; navigator.clipboard.readText().then(done)"
    copied = str(tab.driver.execute_async_script(script))
    assert copied.startswith("## GPU fell off bus on n4")


def test_text_from_logs_does_nothing_in_the_browser(tab: Tab, site: Site) -> None:
    tab.open(f"/console/incidents/{site.scenery.hostile}")
    assert "<script>window.owned=1</script>" in tab.text()
    assert tab.run("return window.owned === undefined")
    assert tab.run("return document.querySelectorAll('img[src=x]').length") == 0
    assert "\\u202egnp.exe" in tab.text()
    assert tab.complaints() == []


def test_the_policy_of_the_page_stops_a_script_that_got_in(tab: Tab) -> None:
    tab.run("""
      const script = document.createElement("script");
      script.append(document.createTextNode("window.owned = 1"));
      try { document.body.append(script); } catch (refused) { window.refused = true; }
      try { document.body.innerHTML = "<b>x</b>"; } catch (refused) { window.refusedSink = true; }
    """)
    assert tab.run("return window.owned === undefined && window.refusedSink === true")
    assert tab.complaints()


def test_after_logging_out_the_back_button_shows_nothing(tab: Tab) -> None:
    tab.run("document.querySelector('form[action$=\"/logout\"]').requestSubmit()")
    tab.until("location.pathname.endsWith('/login')")
    tab.driver.back()
    tab.until("location.pathname.endsWith('/login') && document.getElementById('token')")


def test_a_viewer_is_shown_the_same_without_the_buttons(tab: Tab, site: Site) -> None:
    tab.log_in(Role.VIEWER)
    tab.open(f"/console/incidents/{site.scenery.waiting}")
    assert tab.run("return document.querySelectorAll('main form').length") == 0
    assert "GPU fell off bus" in tab.text()
