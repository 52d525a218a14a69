# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A recovery as one trace: told after it is durable, joined by the incident's id, and never in the service's way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controllers.slurm.advice import Advisor
from relight.trace_ids import span_id, trace_id, traceparent
from relight.types import AttemptId, IncidentId
from service.adapters.notify_keeping import FileKeeping
from service.adapters.otlp_traces import OtlpTraces
from service.tokens import Role
from service.tracing import Receipt, RecoveryTraces
from service.tracing_spans import STAGES, Span
from tests.api.running import START, Service
from tests.api.trace_receiver import Collector, attributes, collecting, recover


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def exporter(collector: Collector) -> OtlpTraces:
    return OtlpTraces(
        collector.url, service="relight", version="1.2.3", headers={"x-api-key": "secret"}, timeout_s=2
    )  # fmt: skip


@dataclass
class Sink:
    """A collector that answers as it is told, one answer a batch; the last one stays."""

    receipts: list[Receipt] = field(default_factory=lambda: [Receipt.TAKEN])
    got: list[Span] = field(default_factory=list)
    told: list[tuple[str, int]] = field(default_factory=list)

    def __call__(self, spans: Sequence[Span]) -> Receipt:
        receipt = self.receipts.pop(0) if len(self.receipts) > 1 else self.receipts[0]
        if receipt is Receipt.TAKEN:
            self.got += spans
        return receipt

    def names(self) -> list[str]:
        return [one.name for one in self.got]


def traces(service: Service, folder: Path, send: Any, told: Any = lambda *_: None, **over: Any) -> RecoveryTraces:
    keeping = FileKeeping(folder / "traces.json")
    return RecoveryTraces(audit=service.audit, keeping=keeping, send=send, told=told, **over)


def seconds(span: Any) -> float:
    return (int(span.end_time_unix_nano) - int(span.start_time_unix_nano)) / 1e9


# ------------------------------------------------------------------ one trace an incident


def test_a_recovery_is_one_trace_from_detection_to_the_checkpoint(
    service: Service, tmp_path: Path, collector: Collector
) -> None:
    told = traces(service, tmp_path, exporter(collector))
    incident = recover(service)
    assert told.look(service.clock.at) == len(collector.spans)

    names = {span.name for _, span in collector.spans}
    assert names == {*STAGES, "recovery", "requeue_hold", "release"} - {"approve"}
    assert {span.trace_id.hex() for _, span in collector.spans} == {trace_id(incident)}
    whole = collector.named("recovery")
    assert whole.span_id.hex() == span_id(incident) and not whole.parent_span_id
    assert all(collector.named(name).parent_span_id == whole.span_id for name in STAGES if name != "approve")
    act = collector.named("act")
    assert collector.named("release").parent_span_id == act.span_id
    said = attributes(whole)
    assert said["relight.action"] == "restart_excluding" and said["relight.incident.state"] == "CLOSED_RECOVERED"
    assert collector.headers[0]["x-api-key"] == "secret"


def test_stations_follow_each_other_without_a_gap_and_fill_the_whole(
    service: Service, tmp_path: Path, collector: Collector
) -> None:
    told = traces(service, tmp_path, exporter(collector))
    recover(service)
    told.look(service.clock.at)
    parts = [collector.named(name) for name in STAGES if name != "approve"]
    assert all(one.end_time_unix_nano == two.start_time_unix_nano for one, two in itertools.pairwise(parts))
    assert sum(map(seconds, parts)) == pytest.approx(seconds(collector.named("recovery")))
    assert (seconds(collector.named("act")), seconds(collector.named("release"))) == (4, 1)
    assert (seconds(collector.named("allocation")), seconds(collector.named("checkpoint"))) == (120, 30)


def test_the_controllers_work_is_told_under_a_service_of_its_own(
    service: Service, tmp_path: Path, collector: Collector
) -> None:
    told = traces(service, tmp_path, exporter(collector))
    recover(service)
    told.look(service.clock.at)
    assert collector.service_of("requeue_hold") == "relight-controller"
    assert collector.service_of("act") == "relight"


def test_a_verb_that_failed_and_a_recovery_that_was_let_go_are_errors(service: Service, tmp_path: Path) -> None:
    sink = Sink()
    told = traces(service, tmp_path, sink)
    controller = service.as_(Role.CONTROLLER)
    controller.crash()
    advice = controller.advise().json()
    where = f"/v1/recommendations/{advice['id']}"
    claim = controller.post(
        f"{where}/claim", json={"controller_id": "c-1", "observed_generation": 1, "lease_s": 60}
    ).json()
    for phase, detail in (("intent", {}), ("error", {"error": "scontrol: \x1b[2Jinvalid job"})):
        said = {"recommendation_id": advice["id"], "step": "requeue_hold", "phase": phase,
                "idempotency_key": phase, "detail": detail}  # fmt: skip
        assert controller.post("/v1/milestones", json=said).status_code == 201
    report = {"observed_generation": 1, "disposition": "FAILED", "reason": "scheduler_refused", "observation": {},
              "claim_token": claim["claim_token"]}  # fmt: skip
    assert controller.put(f"{where}/reconciliation", json=report).status_code == 200
    told.look(service.clock.at)
    errors = {one.name: one.error for one in sink.got if one.error}
    assert errors["act"] == "scheduler_refused" and errors["recovery"] == "scheduler_refused"
    assert errors["requeue_hold"].startswith("scontrol:") and "\x1b" not in errors["requeue_hold"]


def test_an_incident_that_came_again_is_linked_to_the_one_before(service: Service, tmp_path: Path) -> None:
    sink = Sink()
    told = traces(service, tmp_path, sink)
    service.crash("a-1")
    first = service.advise("a-1").json()["incident_id"]
    service.clock.advance(minutes=1)
    service.put_attempt("a-2", attempt_index=1)
    service.crash("a-2", attempt_index=1, node="n3")
    second = service.advise("a-2").json()["incident_id"]
    service.put_attempt("a-2", attempt_index=1, state="CANCELLED_BY_USER")
    told.look(service.clock.at)
    whole = {one.trace_id: one for one in sink.got if one.name == "recovery"}
    assert whole[trace_id(second)].links == ((trace_id(first), span_id(first)),)
    assert whole[trace_id(first)].error and not whole[trace_id(second)].error


# ------------------------------------------------------------------ recorded first


def test_nothing_is_told_that_could_not_be_recorded(service: Service, tmp_path: Path) -> None:
    sink = Sink()
    told = traces(service, tmp_path, sink)
    service.crash()
    told.look(service.clock.at)
    before = sink.names()
    service.audit.is_broken = True
    assert service.advise().status_code == 503
    told.look(service.clock.at)
    assert sink.names() == before and "recommend" not in before
    service.audit.is_broken = False
    assert service.advise().status_code == 201
    told.look(service.clock.at)
    assert "recommend" in sink.names()


def test_each_part_is_told_once_it_is_over_and_once_only(service: Service, tmp_path: Path) -> None:
    sink = Sink()
    told = traces(service, tmp_path, sink)
    service.crash()
    service.advise()
    told.look(service.clock.at)
    assert sink.names() == ["detect", "attribute", "recommend"]
    told.look(service.clock.at)
    assert len(sink.got) == 3


def test_a_restart_goes_on_where_the_collector_was(service: Service, tmp_path: Path) -> None:
    traces(service, tmp_path, Sink()).look(START)
    incident = recover(service)
    down = Sink([Receipt.UNREACHED])
    traces(service, tmp_path, down).look(START)
    up = Sink()
    again = traces(service, tmp_path, up)
    again.look(START)
    assert len(up.got) == 11 and {one.trace_id for one in up.got} == {trace_id(incident)}
    assert traces(service, tmp_path, Sink()).look(START) == 0


def test_a_restart_amid_an_incident_tells_the_rest_of_the_same_trace(service: Service, tmp_path: Path) -> None:
    early, late = Sink(), Sink()
    first = traces(service, tmp_path, early)
    service.crash()
    first.look(START)
    second = traces(service, tmp_path, late)
    service.advise()
    service.put_attempt(state="CANCELLED_BY_USER")
    second.look(START)
    assert late.names() == ["recommend", "recovery"] and early.got[0].trace_id == late.got[0].trace_id


# ------------------------------------------------------------------ never in the way


def test_a_collector_that_is_down_loses_no_span_and_is_asked_less_and_less_often(
    service: Service, tmp_path: Path
) -> None:
    counted: list[tuple[str, int]] = []
    sink = Sink([Receipt.UNREACHED] * 3 + [Receipt.TAKEN])
    told = traces(service, tmp_path, sink, lambda name, count: counted.append((name, count)), max_pending=4)
    recover(service)
    now = START
    for _ in range(20):
        told.look(now)
        now += timedelta(seconds=1)
    assert len(sink.got) == 11
    assert [name for name, _ in counted[:4]] == ["retried", "retried", "retried", "exported"]
    assert sum(count for name, count in counted if name == "exported") == 11


def test_what_a_collector_refuses_is_given_up_and_counted(service: Service, tmp_path: Path) -> None:
    counted: list[tuple[str, int]] = []
    with collecting(status=400) as collector:
        told = traces(service, tmp_path, exporter(collector), lambda name, count: counted.append((name, count)))
        recover(service)
        assert told.look(START) == 0
        assert counted == [("dropped", 11)]
        collector.status = 200
        assert told.look(START) == 0 and not collector.spans


@pytest.mark.parametrize("status", [401, 404, 429, 503])
def test_what_may_get_better_is_tried_again(service: Service, tmp_path: Path, status: int) -> None:
    with collecting(status=status) as collector:
        send = OtlpTraces(collector.url, service="relight", version="1", headers={}, timeout_s=0.2)
        told = traces(service, tmp_path, send)
        recover(service)
        assert told.look(START) == 0
        collector.status = 200
        assert told.look(START + timedelta(minutes=1)) == 11


def test_a_collector_that_is_not_there_is_no_error(service: Service, tmp_path: Path) -> None:
    told = traces(service, tmp_path, OtlpTraces("http://127.0.0.1:9/v1/traces", service="relight", version="1",
                                                headers={}, timeout_s=0.2))  # fmt: skip
    recover(service)
    assert told.look(START) == 0


# ------------------------------------------------------------------ callers


def test_a_controllers_work_is_sent_within_the_incidents_trace(service: Service) -> None:
    sent: list[tuple[str, str]] = []

    class Wire:
        def send(
            self, method: str, path: str, *, body: Any = None, query: Any = None, traceparent: str = ""
        ) -> tuple[int, Any]:
            sent.append((f"{method} {path.rpartition('/')[2]}", traceparent))
            answer = service.as_(Role.CONTROLLER).request(method, path, json=body, params=dict(query or {}))
            return answer.status_code, answer.json()

    service.crash()
    advisor = Advisor(Wire())
    advice = advisor.advise(AttemptId("a-1"), "exited")
    assert advice.incident is not None
    claim = advisor.claim(advice.id, "c-1", advice.generation, 60)
    advisor.milestone(advice.id, "requeue_hold", "intent", "k", {})
    advisor.reconcile(advice.id, 1, "FAILED", "scheduler_refused", {}, claim.token)
    expected = traceparent(advice.incident, "act")
    assert sent == [("POST recommendations", ""), ("POST claim", expected), ("POST milestones", expected),
                    ("PUT reconciliation", expected)]  # fmt: skip


def test_ids_depend_on_the_incident_alone_and_have_the_standards_form() -> None:
    name = IncidentId("i-1")
    assert trace_id(name) == trace_id(name) != trace_id(IncidentId("i-2"))
    version, trace, span, flags = traceparent(name, "act").split("-")
    assert (version, trace, span, flags) == ("00", trace_id(name), span_id(name, "act"), "01")


@pytest.mark.parametrize(
    ("header", "is_taken"),
    [
        (f"00-{'a' * 32}-{'b' * 16}-01", True),
        (f"cc-{'a' * 32}-{'b' * 16}-01-what-the-future-will-bring", True),
        (f"00-{'a' * 32}-{'b' * 16}-01-more", False),
        (f"00-{'0' * 32}-{'b' * 16}-01", False),
        (f"00-{'a' * 32}-{'0' * 16}-01", False),
        (f"ff-{'a' * 32}-{'b' * 16}-01", False),
        (f"00-{'A' * 32}-{'b' * 16}-01", False),
        (f"00-{'z' * 32}-{'b' * 16}-01", False),
    ],
)
def test_a_problem_names_the_trace_of_its_caller(service: Service, header: str, is_taken: bool) -> None:
    said = service.get("/v1/incidents/nowhere", headers={"traceparent": header}).json()["trace_id"]
    assert (said == "a" * 32) is is_taken and len(said) == 32


def test_an_incident_names_its_trace(service: Service) -> None:
    service.crash()
    name = service.advise().json()["incident_id"]
    assert service.get(f"/v1/incidents/{name}").json()["trace_id"] == trace_id(name)


def test_times_are_those_of_the_record(service: Service, tmp_path: Path, collector: Collector) -> None:
    told = traces(service, tmp_path, exporter(collector))
    recover(service)
    told.look(service.clock.at)
    whole = collector.named("recovery")
    ended = datetime.fromtimestamp(whole.end_time_unix_nano / 1e9, tz=START.tzinfo)
    assert abs((ended - service.clock.at).total_seconds()) < 1e-3
