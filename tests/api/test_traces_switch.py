# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Traces are off unless a collector is named, and a service that can't send them says why at its start."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio.from_thread
import pytest

from relight.types import Mode
from service.adapters.notify_keeping import FileKeeping
from service.adapters.otlp_traces import OtlpTraces
from service.config import ConfigError, Recommend, Settings, Tracing
from service.rules_store import RuleStore
from service.tracing import RecoveryTraces
from tests.api.running import Service, start
from tests.api.trace_receiver import Collector, collecting, recover


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as found:
        yield found


def chores(settings: Settings, rules: RuleStore, portal: anyio.from_thread.BlockingPortal) -> tuple[Service, Any]:
    service = start(rules, portal, settings=settings)
    return service, next((one for one in service.application.chores if one.name == "traces of recoveries"), None)


def tracing(folder: Path, **said: Any) -> Settings:
    return Settings(recommend=Recommend(mode=Mode.ACT), tracing=Tracing(state_file=folder / "traces.json", **said))


def test_it_is_off_unless_a_collector_is_named(
    rules: RuleStore, portal: anyio.from_thread.BlockingPortal, tmp_path: Path
) -> None:
    assert chores(tracing(tmp_path), rules, portal)[1] is None


def test_a_service_that_has_a_collector_tells_it_and_counts(
    rules: RuleStore, portal: anyio.from_thread.BlockingPortal, tmp_path: Path, collector: Collector
) -> None:
    (tmp_path / "headers").write_text("x-api-key: secret\n\nx-tenant: a:b\n")
    service, chore = chores(
        tracing(tmp_path, endpoint=collector.url, headers_file=tmp_path / "headers", service_name="recovery"), rules, portal
    )  # fmt: skip
    recover(service)
    chore.once()
    assert not chore.trouble and len(collector.spans) == 11
    assert collector.service_of("recovery") == "recovery" and collector.service_of("release") == "recovery-controller"
    assert (collector.headers[0]["x-api-key"], collector.headers[0]["x-tenant"]) == ("secret", "a:b")
    assert 'relight_trace_spans_total{outcome="exported"} 11.0' in service.get("/metrics").text


def test_headers_that_are_none_are_refused_without_being_shown(
    rules: RuleStore, portal: anyio.from_thread.BlockingPortal, tmp_path: Path
) -> None:
    (tmp_path / "headers").write_text("s3cret")
    with pytest.raises(ConfigError, match="must hold lines like") as caught:
        chores(tracing(tmp_path, endpoint="http://x/v1/traces", headers_file=tmp_path / "headers"), rules, portal)
    assert "s3cret" not in str(caught.value)


def test_without_the_extra_the_start_says_what_to_install(
    rules: RuleStore,
    portal: anyio.from_thread.BlockingPortal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "service.adapters.otlp_traces", None)  # as an import that fails leaves it
    with pytest.raises(ConfigError, match=r"pip install 'relight\[otel\]'"):
        chores(tracing(tmp_path, endpoint="http://x/v1/traces"), rules, portal)


@pytest.mark.parametrize("endpoint", ["localhost:4318", "http://collector:4318", "file:///etc/passwd"])
def test_an_address_without_scheme_or_path_is_refused(endpoint: str) -> None:
    with pytest.raises(ValueError, match="endpoint"):
        Tracing(endpoint=endpoint)


def test_a_real_collector_takes_them_and_hands_them_on(service: Service, tmp_path: Path, collector: Collector) -> None:
    """rotel, an OpenTelemetry collector in Rust, between us and the receiver."""
    binary = shutil.which("rotel-agent") or _rotel()
    if binary is None:
        pytest.skip("no rotel: pip install --pre rotel")
    http, grpc = free_port(), free_port()
    command = [binary, "start", "--exporter", "otlp", "--otlp-http-endpoint", f"127.0.0.1:{http}",
               "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
               "--otlp-exporter-endpoint", collector.url.removesuffix("/v1/traces"),
               "--otlp-exporter-protocol", "http"]  # fmt: skip
    send = OtlpTraces(
        f"http://127.0.0.1:{http}/v1/traces", service="relight", version="1", headers={}, timeout_s=5
    )  # fmt: skip
    told = RecoveryTraces(
        audit=service.audit, keeping=FileKeeping(tmp_path / "traces.json"), send=send, told=lambda *_: None
    )  # fmt: skip
    recover(service)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as process:
        try:
            wait_for_port(http)
            assert told.look(service.clock.at) == 11
            until = time.monotonic() + 15
            while len(collector.spans) < 11 and time.monotonic() < until:
                time.sleep(0.1)
        finally:
            process.terminate()
    assert len(collector.spans) == 11
    assert collector.named("release").parent_span_id == collector.named("act").span_id


def _rotel() -> str | None:
    found = importlib.util.find_spec("rotel")
    binary = Path(found.origin).parent / "rotel-agent" if found is not None and found.origin else None
    return str(binary) if binary is not None and binary.is_file() else None


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_for_port(port: int) -> None:
    until = time.monotonic() + 15
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until, f"nothing listens on {port}"
            time.sleep(0.1)
