# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A recovery to be traced, and a collector: OTLP over HTTP, read by OpenTelemetry's protobufs, answering as told."""

from __future__ import annotations

import gzip
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from relight.types import IncidentId
from service.tokens import Role
from tests.api.running import Service


@dataclass
class Collector:
    """What arrived: spans by name with the service that they were told under, and the requests' headers."""

    url: str = ""
    status: int = 200
    spans: list[tuple[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    def named(self, name: str) -> Any:
        (found,) = (span for _, span in self.spans if span.name == name)
        return found

    def service_of(self, name: str) -> str:
        (found,) = (service for service, span in self.spans if span.name == name)
        return found

    def take(self, body: bytes) -> None:
        said = ExportTraceServiceRequest.FromString(body)
        for group in said.resource_spans:
            resource = attributes(group.resource)
            self.spans += [(resource["service.name"], span) for scope in group.scope_spans for span in scope.spans]


def attributes(said: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in said.attributes}


@contextmanager
def collecting(status: int = 200) -> Iterator[Collector]:
    collector = Collector(status=status)

    class Door(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            collector.headers.append(dict(self.headers))
            assert self.path == "/v1/traces" and self.headers["Content-Type"] == "application/x-protobuf"
            if collector.status == 200:
                collector.take(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(collector.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        collector.url = f"http://127.0.0.1:{server.server_address[1]}/v1/traces"
        try:
            yield collector
        finally:
            server.shutdown()
            thread.join()


def recover(service: Service) -> IncidentId:
    """Crash, advice, claim, two verbs, restart, step, checkpoint; the incident's id."""
    controller = service.as_(Role.CONTROLLER)
    controller.crash(node="n2")
    advice = controller.advise().json()
    where = f"/v1/recommendations/{advice['id']}"
    service.clock.advance(seconds=2)
    claim = controller.post(
        f"{where}/claim", json={"controller_id": "c-1", "observed_generation": 1, "lease_s": 60}
    ).json()
    for step in ("requeue_hold", "release"):
        for phase in ("intent", "done"):
            service.clock.advance(seconds=1)
            said = {"recommendation_id": advice["id"], "step": step, "phase": phase, "idempotency_key": step + phase}
            assert controller.post("/v1/milestones", json=said).status_code == 201
    report = {"observed_generation": 1, "disposition": "CONVERGED", "reason": "desired_state_observed",
              "observation": {"job_state": "PENDING"}, "claim_token": claim["claim_token"]}  # fmt: skip
    assert controller.put(f"{where}/reconciliation", json=report).status_code == 200
    service.clock.advance(minutes=2)
    controller.put_attempt("a-2", attempt_index=1, allocated_nodes=["n1", "n3", "n4", "n5"])
    for number in (1, 2):
        service.clock.advance(seconds=30)
        progress(controller, number)
    return IncidentId(advice["incident_id"])


def progress(service: Service, number: int) -> None:
    said = {"source": "trainer", "source_event_id": f"s-{number}", "event_time": service.clock.at.isoformat(),
            "attempt_id": "a-2", "progress": {"step": number, "checkpoint_step": number}}  # fmt: skip
    assert service.post("/v1/signals", json={"signals": [said]}).json()["accepted"] == 1
