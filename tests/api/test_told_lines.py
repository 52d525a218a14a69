# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A service that dies after it took pushed lines in, and before it judged them, judges them when it is back."""

from __future__ import annotations

from typing import Any

import anyio.from_thread
import pytest

from relight.types import AttemptId
from service.rules_store import RuleStore
from service.told_lines import ToldLines
from tests.api.running import XID_79, Service, start

NCCL = "NCCL error: unhandled system error, NCCL version 2.21.5, socketProgress: Connection closed by remote peer n2<4>"
STEP = "step={}/100000 loss=2.0 grad_norm=0.3 lr=3.0e-03"


def kernel(service: Service, number: int = 1, text: str = XID_79, **over: Any) -> dict[str, Any]:
    line = {"attempt_id": "a-1", "file": "kern.log", "number": number, "stream": "kernel", "node": "n2"}
    return line | {"at": service.clock.at.isoformat(), "text": text} | over


def job(number: int, text: str) -> dict[str, Any]:
    return {"attempt_id": "a-1", "file": "job.log", "number": number, "text": text}


def accepted(service: Service) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = service.get("/v1/audit?kind=signal.accepted&limit=100").json()["items"]
    return [one.get("event", one) for one in items]


def again(service: Service, rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> Service:
    """Another process over the same record; nothing else is left of the first."""
    return start(rules, portal, audit=service.audit, clock=service.clock)


def test_a_line_that_was_answered_and_not_judged_counts_after_a_restart(
    service: Service, rules: RuleStore, portal: anyio.from_thread.BlockingPortal
) -> None:
    service.put_attempt()
    assert service.send_lines(kernel(service)).json()["accepted"] == 1
    back = again(service, rules, portal)
    assert back.send_lines(kernel(service)).json()["duplicates"] == 1
    back.put_attempt(state="FAILED", exit_code=1)
    told = back.advise().json()
    assert (told["action"], [x["node"] for x in told["exclusions"]]) == ("restart_excluding", ["n2"])


def test_what_training_survived_before_a_restart_is_survived_after_it(
    service: Service, rules: RuleStore, portal: anyio.from_thread.BlockingPortal
) -> None:
    service.put_attempt()
    lines = [job(1, STEP.format(10)), job(2, f"RuntimeError: {NCCL}")]
    service.send_lines(*lines, *(job(n, STEP.format(n + 8)) for n in range(3, 40)))
    back = again(service, rules, portal)
    back.put_attempt(state="FAILED", exit_code=1)
    assert back.advise().json()["failure"] == "cause_not_in_log"


def test_lines_that_claim_nothing_are_counted_and_not_copied(service: Service) -> None:
    service.put_attempt()
    service.send_lines(*(job(n, STEP.format(n)) for n in range(1, 50)))
    (event,) = accepted(service)
    assert "told" not in event["counts"] and event["counts"]["lines"] == 49


def test_a_flood_of_claims_is_kept_within_bounds(service: Service) -> None:
    service.put_attempt()
    for batch in range(8):
        service.send_lines(*(kernel(service, batch * 200 + n) for n in range(1, 201)))
    kept = [e["counts"].get("told", []) for e in accepted(service)]
    assert [len(rows) for rows in kept] == [120, 120, 120, 120, 120, 0, 0, 0]


@pytest.mark.parametrize("secret", ["hf_abcdefghijklmnopqrstuvwxyzABCDEFGH"])
def test_a_kept_line_is_redacted(service: Service, secret: str) -> None:
    service.put_attempt()
    service.send_lines(kernel(service, text=f"{XID_79} token={secret}"))
    (event,) = accepted(service)
    assert event["counts"]["told"] and secret not in str(event)


def test_a_row_that_this_version_cannot_read_is_left_out() -> None:
    told, good = ToldLines(), ["kern.log", 2, "kernel", XID_79, None, "n2", None]
    told.add(AttemptId("a-1"), [["kern.log", 1, "telepathy", "x", None, None, None], ["short"], good], 0)
    assert [line.number for line in told.lines(AttemptId("a-1"))] == [2]
