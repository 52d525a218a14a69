# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Lines that come before their job is registered: held, said to be, and handed over as if they came in time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson
import pytest

from relight.events import SignalAccepted
from relight.types import ClusterId, LogLine, Stream
from service import bootstrap
from service.config import Audit, Ingest, Recommend, Settings
from service.holding import Addressee
from service.rules_store import RuleStore
from service.tokens import Role, TokenBook
from tests.api.otlp_bodies import JSON, logs, nanos, post, push, record
from tests.api.running import START, XID_79, Service, StandingClock, start
from tests.api.test_watched_jobs import step_line

Portal = Any


def numbered(first: int, *texts: str, **more: Any) -> list[dict[str, Any]]:
    return [{"job_id": "4711", "file": "f", "number": n, "text": text} | more for n, text in enumerate(texts, first)]


def lines_of(service: Service, name: str = "a-1") -> int:
    found: int = service.get(f"/v1/attempts/{name}").json()["log_lines"]
    return found


def figure(service: Service, name: str) -> float:
    text = service.get("/metrics").text
    return next((float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " ")), 0.0)


def held(service: Service, outcome: str) -> float:
    return figure(service, f'relight_held_lines_total{{outcome="{outcome}"}}')


# ------------------------------------------------------------------ held and handed over


def test_lines_of_a_job_are_held_and_are_its_own_once_it_is_registered(service: Service) -> None:
    answer = service.send_lines(*numbered(1, "starting", "loading"))
    assert (answer.status_code, answer.json()["held"], answer.json()["accepted"]) == (202, 2, 0)
    assert (held(service, "held"), figure(service, "relight_held_bytes") > 0) == (2, True)
    service.put_attempt()
    assert lines_of(service) == 2
    assert (held(service, "handed_over"), figure(service, "relight_held_bytes")) == (2, 0)
    assert service.send_lines(*numbered(3, "training")).status_code == 200
    assert lines_of(service) == 3 and not service.application.journal.state.attempts["a-1"].has_gaps


def test_every_door_holds_and_the_lines_come_in_the_order_in_which_they_came(service: Service) -> None:
    post(service, logs(record("by OTLP", slurm__job__id=4711, log__file__path="/out/rank0.log")))
    said = push({"slurm_job_id": "4711", "filename": "/out/rank0.log"}, [str(nanos(seconds=1)), "by Loki"])
    assert service.post("/loki/api/v1/push", content=orjson.dumps(said), headers=JSON).status_code == 204
    service.send_lines({"attempt_id": "a-1", "file": "/out/rank0.log", "text": "by NDJSON"})
    service.put_attempt()
    kept = service.application.loop._collector._files["a-1"]["/out/rank0.log"].tail
    assert [(one.number, one.text) for one in kept] == [(1, "by OTLP"), (2, "by Loki"), (3, "by NDJSON")]
    assert kept[0].at == START


def test_steps_that_were_held_count_as_of_when_they_came(service: Service) -> None:
    for step in range(1, 40):
        service.send_lines(*numbered(step, step_line(step)))
        service.clock.advance(seconds=4)
    service.put_attempt()
    assert service.get("/v1/attempts/a-1").json()["last_step"] == 39
    (slowdown,) = [one for one in service.application.loop._panel._detectors if one.name == "slowdown"]
    assert slowdown.snapshot()["tracks"]["a-1"]["last_s"] == (START.timestamp() + 4 * 38)


def test_a_failure_that_was_held_is_found_when_the_job_is_registered_as_failed(service: Service) -> None:
    line = {"stream": "kernel", "node": "n2", "at": START.isoformat()}
    service.send_lines(*numbered(1, XID_79, **line))
    service.clock.advance(seconds=30)
    service.put_attempt(state="FAILED", exit_code=1)
    advice = service.advise().json()
    assert (advice["failure"], [one["node"] for one in advice["exclusions"]]) == ("gpu_fell_off_bus", ["n2"])


def test_a_run_of_the_job_gets_only_what_is_its_own(service: Service) -> None:
    service.send_lines(*numbered(1, "first run", restart_count=0), *numbered(1, "second run", restart_count=1))
    service.put_attempt("a-2", attempt_index=1)
    assert lines_of(service, "a-2") == 1
    service.put_attempt("a-1", attempt_index=0)
    assert lines_of(service, "a-1") == 1


def test_two_names_of_one_attempt_in_one_batch_lose_nothing(service: Service) -> None:
    batch = [{"attempt_id": "a-1", "text": "x"}, {"job_id": "4711", "text": "x"}, {"job_id": "4711", "text": "x"}]
    assert service.send_lines(*batch).json()["held"] == 3
    service.put_attempt()
    assert lines_of(service) == 3
    assert service.send_lines(*batch).json()["duplicates"] == 3, "a retry that comes after the registration"


# ------------------------------------------------------------------ repetitions


def test_a_batch_that_comes_again_is_held_once_and_known_after_it_was_handed_over(service: Service) -> None:
    timed = {"job_id": "4711", "file": "g", "at": START.isoformat(), "text": "same"}
    batch = [*numbered(1, "a", "b"), timed, timed, {"job_id": "4711", "text": "bare"}]
    assert service.send_lines(*batch).json()["held"] == 5
    again = service.send_lines(*batch)
    assert (again.status_code, again.json()["held"], again.json()["duplicates"]) == (200, 0, 5)
    service.put_attempt()
    assert lines_of(service) == 5
    late = service.send_lines(*batch).json()
    assert (late["accepted"], late["duplicates"], lines_of(service)) == (0, 5, 5)
    assert service.send_lines(timed, timed, timed).json()["accepted"] == 1


def test_secrets_are_not_held(service: Service) -> None:
    service.send_lines(*numbered(1, "password=hunter2hunter2"))
    (waiting,) = service.application.intake.lines.holding.addressees
    (batch,) = service.application.intake.lines.holding.batches(waiting)
    assert "hunter2" not in batch.lines[0].text


# ------------------------------------------------------------------ bounds


def test_what_can_not_be_held_is_rejected_by_name_and_may_come_again(rules: RuleStore, portal: Portal) -> None:
    settings = Settings(recommend=Recommend(), ingest=Ingest(hold_bytes_per_job=200))
    service = start(rules, portal, settings=settings)
    assert service.send_lines(*numbered(1, "x" * 100)).json()["held"] == 1
    answer = service.send_lines(*numbered(2, "y" * 100), {"job_id": "5", "text": "z"})
    assert answer.status_code == 202
    assert (answer.json()["held"], answer.json()["rejected"]) == (1, 1)
    (fault,) = answer.json()["errors"]
    assert fault["line"] == 1 and "unknown job '4711'" in fault["detail"] and "200 bytes" in fault["detail"]
    assert held(service, "refused") == 1
    service.put_attempt()
    assert service.send_lines(*numbered(2, "y" * 100)).json()["accepted"] == 1
    assert lines_of(service) == 2


def test_what_nobody_registers_is_let_go_and_counted(service: Service) -> None:
    service.send_lines(*numbered(1, "x"))
    service.clock.advance(seconds=601)
    service.application.intake.lines.tend()
    assert (held(service, "expired"), figure(service, "relight_held_bytes")) == (1, 0)
    service.put_attempt()
    assert lines_of(service) == 0


def test_a_token_of_another_cluster_puts_nothing_into_an_attempt(service: Service) -> None:
    book: TokenBook = service.application.tokens
    secret, _ = book.issue(Role.CONTROLLER, "elsewhere", at=START, cluster="elsewhere")
    foreign = {"Authorization": f"Bearer {secret}", "Content-Type": "application/x-ndjson"}
    line = orjson.dumps({"attempt_id": "a-1", "text": "forged"})
    early = service.post("/v1/logs/ndjson", content=line, headers=foreign)
    service.put_attempt()
    late = service.post("/v1/logs/ndjson", content=line + b"\n", headers=foreign)
    assert early.status_code == late.status_code, "nobody learns from the answer that the attempt exists"
    assert lines_of(service) == 0


# ------------------------------------------------------------------ faults


def test_a_registration_is_not_held_up_by_lines_that_can_not_be_recorded(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.send_lines(*numbered(1, "a", "b"))
    record_all = service.audit.append

    def no_lines(events: Any) -> tuple[int, ...]:
        service.audit.is_broken = any(isinstance(event, SignalAccepted) for event in events)
        return record_all(events)

    with monkeypatch.context() as patched:
        patched.setattr(service.audit, "append", no_lines)
        assert service.put_attempt().status_code in {200, 201}
        assert lines_of(service) == 0
    service.audit.is_broken = False
    service.application.intake.lines.tend()
    assert lines_of(service) == 2


def test_what_was_held_outlives_a_crash(tmp_path: Path, rules: RuleStore) -> None:
    settings = Settings(audit=Audit(path=tmp_path / "relight.duckdb"))
    parts = bootstrap.Parts(clock=StandingClock(), rules=rules, tokens=TokenBook())
    first = bootstrap.build_application(settings, parts)
    to = Addressee(ClusterId("default"), None, "4711")
    line = LogLine(attempt=to.place, file="f", number=1, stream=Stream.APPLICATION, text="before the crash")
    assert first.intake.hold_lines({to: [line]}, b"d", "ndjson", "ada")[to].held == 1
    first.journal.audit.close()
    second = bootstrap.build_application(settings, parts)
    try:
        (batch,) = second.intake.lines.holding.batches(to)
        assert batch.lines == [line]
    finally:
        second.journal.audit.close()
