# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The audit browser, and pages that hear of what is recorded."""

from __future__ import annotations

import asyncio
from typing import Any

from relight.events import ModeChanged
from relight.types import ClusterId, Mode
from service.web.live import Live
from service.web.sessions import Sessions
from tests.api.running import Service


def test_the_audit_page_filters_and_walks_the_chain(service: Service, advised: dict[str, Any]) -> None:
    told = service.get("/console/audit.json?kind=incident.opened&verify=1").json()
    assert [one["kind"] for one in told["entries"]] == ["incident.opened"]
    assert told["verification"]["is_sound"]
    assert told["head"]["position"] == told["verification"]["events"]
    assert "the chain holds" in service.get("/console/audit?verify=1").text


def test_an_open_page_hears_of_a_change_and_comes_back_where_it_was(service: Service) -> None:
    journal = service.application.journal
    live = Live(journal, Sessions(service.application.tokens, service.clock))

    async def heard() -> list[str]:
        stream = live.events(None)
        first = await anext(stream)
        journal.record(
            ModeChanged(at=service.clock.at, scope="cluster", target="default", mode=Mode.ACT, actor="ada",
                        reason="test", cluster=ClusterId("default"))
        )  # fmt: skip
        second = await anext(stream)
        await stream.aclose()
        missed = live.events(journal.state.position - 1)
        await anext(missed)
        third = await anext(missed)
        await missed.aclose()
        return [first, second, third]

    first, second, third = asyncio.run(heard())
    now = journal.state.position
    assert f"id: {now - 1}\n" in first
    assert second == third == f"event: changed\nid: {now}\ndata: {now}\n\n"
