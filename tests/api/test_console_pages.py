# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""What every page of the console keeps to: a JSON twin, nothing inline, labels, and text of logs that does nothing."""

from __future__ import annotations

import re
from typing import Any

from tests.api.browsing import DRIVING, HOSTILE, Tags, addresses
from tests.api.running import Service


def test_every_view_has_a_json_twin_by_name_and_by_what_is_accepted(service: Service, advised: dict[str, Any]) -> None:
    for path in addresses(advised):
        page = service.get(path, headers={"Accept": "text/html,application/xhtml+xml"})
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        before, _, query = path.partition("?")
        twin = service.get(before + ".json" + (f"?{query}" if query else ""))
        accepted = service.get(path, headers={"Accept": "application/json"})
        assert twin.headers["content-type"] == "application/json"
        assert twin.json() == accepted.json(), path


def test_pages_hold_nothing_inline_and_nothing_from_elsewhere(service: Service, advised: dict[str, Any]) -> None:
    for path in (*addresses(advised), "/console/login", "/console/nowhere"):
        page = service.get(path, headers={"Accept": "text/html"})
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        for tag, attributes in Tags(page.text).found:
            assert tag not in {"style", "iframe", "object", "base"}, path
            assert "style" not in attributes and not any(name.startswith("on") for name in attributes), (path, tag)
            for name in ("src", "href", "action", "formaction"):
                target = attributes.get(name) or "/"
                assert target.startswith(("/", "#")) and not target.startswith("//"), (path, target)
            assert tag != "script" or attributes.get("src"), path


def test_every_control_has_a_label_and_every_id_is_one(service: Service, advised: dict[str, Any]) -> None:
    for path in (*addresses(advised), "/console/login"):
        page = service.get(path, headers={"Accept": "text/html"}).text
        tags = Tags(page).found
        ids = [attributes["id"] for _, attributes in tags if "id" in attributes]
        assert len(ids) == len(set(ids)), path
        labels = {attributes.get("for") for tag, attributes in tags if tag == "label"}
        for tag, attributes in tags:
            if tag in {"input", "select", "textarea"} and attributes.get("type") not in {"hidden", "checkbox"}:
                assert attributes.get("id") in labels, (path, attributes)


def test_assets_are_named_by_their_digest_and_only_ours(service: Service) -> None:
    page = service.get("/console/login", headers={"Authorization": ""}).text
    for address in re.findall(r'"(/console/static/[^"]+)"', page):
        answer = service.get(address, headers={"Authorization": ""})
        assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
    assert service.get("/console/static/..%2Fconsole.py").status_code == 404
    assert service.get("/console/static/templates").status_code == 404


def test_a_parameter_that_makes_no_sense_is_told_so(service: Service) -> None:
    for path in ("/fleet?state=bold", "/fleet?page=-1", "/audit?kind=nothing", "/audit?since=yesterday",
                 "/audit?cursor=nonsense", "/attempts/none/steps", "/fleet?q=" + "x" * 300):  # fmt: skip
        answer = service.get("/console" + path, headers={"Accept": "application/json"})
        assert answer.status_code in {400, 404}, path
        assert answer.json()["detail"]


def test_hostile_text_is_shown_and_does_nothing(service: Service) -> None:
    service.set_mode("approve")
    text = " ".join(HOSTILE)
    assert service.put_attempt(user=text[:200]).status_code == 201
    line = {"attempt_id": "a-1", "file": "<b>\u202efile`|.log", "number": 1, "stream": "kernel", "node": "n2",
            "text": f"NVRM: Xid (PCI:0000:1a:00): 79, GPU has fallen off the bus. {text}"}  # fmt: skip
    assert service.send_lines(line).status_code == 200
    service.put_attempt(state="FAILED", reason=text[:1_000], user=text[:200])
    advice = service.advise().json()
    for path in addresses(advice):
        page = service.get(path, headers={"Accept": "text/html"}).text
        assert not DRIVING.search(page), (path, DRIVING.search(page))
        assert "<script>alert" not in page and "<img src=x" not in page and "<svg onload" not in page, path
        twin = service.get(path, headers={"Accept": "application/json"}).text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", twin), path
    incident = f"/console/incidents/{advice['incident_id']}"
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in service.get(incident).text
    assert "{{7*7}}" in service.get(incident).text
    told = service.get(incident + ".md")
    assert told.headers["content-type"].startswith("text/markdown")
    assert not DRIVING.search(told.text)
    outside = re.sub(r"(`+)(?!`).*?(?<!`)\1(?!`)", "", told.text)
    assert "<script" not in outside and "](javascript" not in outside and "\n```" not in told.text
