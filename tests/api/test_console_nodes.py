# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The node dossier: what is held against a node, and its pardon."""

from __future__ import annotations

from tests.api.browsing import Browser
from tests.api.running import Service


def test_a_pardon_needs_a_reason_and_forgets_what_was_held(service: Service) -> None:
    body = {"node": "n7", "scope": "cluster", "reason": "smells", "actor": "ada"}
    service.put("/v1/exclusions", json=body)
    browser = Browser(service)
    assert "smells" in browser.get("/console/nodes/n7").text
    form = {"scope": "cluster", "cluster": "default"}
    assert browser.send("/console/nodes/n7", "/console/nodes/n7/pardon", **form).status_code == 422
    assert (
        browser.send("/console/nodes/n7", "/console/nodes/n7/pardon", **form, reason="bench passed").status_code == 303
    )
    assert service.get("/v1/exclusions").json()["items"] == []
    dossier = browser.get("/console/nodes/n7.json").json()
    assert [one["kind"] for one in dossier["history"]] == ["exclusion.pardoned", "exclusion.added"]
