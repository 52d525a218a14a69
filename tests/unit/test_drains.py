# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Which drained nodes a controller tells of, and when."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from controllers.slurm.advice import Advisor, AdvisorUnreachable
from controllers.slurm.drains import Drains, DrainsRefused
from relight.jobs import SchedulerNode
from relight.types import ClusterId, NodeName

NOW = datetime(2026, 11, 29, 22, 30, tzinfo=UTC)
SIGNED = "fans loud [ada@2026-11-29T22:10:00]"


class Line:
    """An advisor's end of the line; `status` is what it answers."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.sent: list[dict[str, Any]] = []

    def send(self, method: str, path: str, *, body: Any = None, query: Mapping[str, str] | None = None,
             traceparent: str = "") -> tuple[int, dict[str, Any]]:  # fmt: skip
        assert (method, path, query, traceparent) == ("POST", "/v1/signals", None, "")
        if self.status == 200:
            self.sent += body["signals"]
        return self.status, {"detail": "no"}

    @property
    def told(self) -> list[str]:
        return [one["node"] for one in self.sent]


def node(name: str, state: str = "IDLE+DRAIN", reason: str = SIGNED) -> SchedulerNode:
    return SchedulerNode(name=NodeName(name), is_usable=False, is_lost=False, native_state=state, reason=reason)


def drains(line: Line) -> Drains:
    return Drains(Advisor(line), ClusterId("c"))


def test_a_drain_is_told_once_and_again_only_for_another_reason() -> None:
    line = Line()
    seen = drains(line)
    seen.look([node("n1", "IDLE")], NOW)
    for _ in range(2):
        seen.look([node("n1", reason="dust")], NOW)
    seen.look([node("n1", reason="more dust")], NOW + timedelta(hours=1))
    assert [one["node_event"]["message"] for one in line.sent] == ["dust", "more dust"]
    assert line.sent[0]["event_time"] == NOW.isoformat() and not line.sent[0]["node_event"]["is_fatal"]


def test_a_controller_that_starts_tells_only_of_drains_with_a_time() -> None:
    line = Line()
    drains(line).look([node("n1"), node("n2", reason="dust"), node("n3", "mixed*")], NOW)
    assert line.told == ["n1"] and line.sent[0]["event_time"] == "2026-11-29T22:10:00+00:00"


@pytest.mark.parametrize(
    "reason",
    [
        "Not responding [slurm@2026-11-29T22:10:00]",
        "Kill task failed [root@2026-11-29T22:10:00]",
        "low memory [slurm@2026-11-29T22:10:00]",
    ],
)
def test_what_slurm_drains_by_itself_is_nobodys_decision(reason: str) -> None:
    line = Line()
    drains(line).look([node("n1", reason=reason)], NOW)
    assert line.told == []


def test_what_could_not_be_told_is_told_at_the_next_look() -> None:
    line = Line(503)
    seen = drains(line)
    with pytest.raises(AdvisorUnreachable):
        seen.look([node("n1")], NOW)
    line.status = 403
    with pytest.raises(DrainsRefused, match="could not be told"):
        seen.look([node("n1")], NOW)
    line.status = 200
    seen.look([node("n1")], NOW)
    assert line.told == ["n1"]
