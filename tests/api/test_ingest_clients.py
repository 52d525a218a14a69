# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Clients as sites use them, sending to a service that listens: nothing here builds a request by hand."""

from __future__ import annotations

import logging
import shutil
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from service import bootstrap
from service.bootstrap import Running
from service.config import Audit, Recommend, Server, Settings
from tests.api.running import XID_79

ATTEMPT = {
    "workload_id": "llm-7b", "scheduler": {"kind": "slurm", "job_id": "4711"}, "allocated_nodes": ["n1", "n2"],
    "state": "RUNNING", "observed_at": "2026-11-02T12:00:00Z",
}  # fmt: skip


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("service") / "relight.duckdb"
    settings = Settings(audit=Audit(path=path), server=Server(port=0), recommend=Recommend())
    with bootstrap.running(settings) as running:
        yield running


@pytest.fixture
def attempt(service: Running, request: pytest.FixtureRequest) -> str:
    """A fresh attempt of a job of its own."""
    name = f"a-{abs(hash(request.node.name)) % 10**9}"
    body = ATTEMPT | {"scheduler": {"kind": "slurm", "job_id": name}, "workload_id": name,
                      "observed_at": datetime.now(UTC).isoformat()}  # fmt: skip
    httpx.put(f"{service.url}/v1/attempts/{name}", json=body, headers=auth(service)).raise_for_status()
    return name


def auth(service: Running) -> dict[str, str]:
    return {"Authorization": f"Bearer {service.token}"}


def lines(service: Running, attempt: str) -> int:
    said: int = httpx.get(f"{service.url}/v1/attempts/{attempt}", headers=auth(service)).json()["log_lines"]
    return said


def eventually(service: Running, attempt: str, wanted: int, within_s: float = 20) -> int:
    """What a client in another process has sent by then."""
    until = time.monotonic() + within_s
    while (found := lines(service, attempt)) < wanted and time.monotonic() < until:
        time.sleep(0.1)
    return found


def say(exporter: Any, attempt: str, *texts: str) -> None:
    provider = LoggerProvider(resource=Resource.create({"slurm.job.id": attempt, "host.name": "n2"}))
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    logger = provider.get_logger("train")
    for text in texts:
        logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                body=text,
                severity_number=SeverityNumber.INFO,
                attributes={"training.rank": 0},
            )
        )
    assert provider.force_flush()
    provider.shutdown()


@pytest.mark.parametrize("compression", (Compression.NoCompression, Compression.Gzip))
def test_the_opentelemetry_sdk_delivers(service: Running, attempt: str, compression: Compression) -> None:
    exporter = OTLPLogExporter(
        endpoint=f"{service.url}/v1/logs", headers={"Authorization": f"Bearer {service.token}"}, compression=compression
    )
    say(exporter, attempt, "step 1 loss=2.0", "step 2 loss=1.9")
    assert lines(service, attempt) == 2


def test_python_logging_loki_delivers_with_a_password(service: Running, attempt: str) -> None:
    logging_loki = pytest.importorskip("logging_loki")
    handler = logging_loki.LokiHandler(
        url=f"{service.url}/loki/api/v1/push", tags={"job_id": attempt}, auth=("relight", service.token), version="1"
    )
    logger = logging.getLogger(f"train.{attempt}")
    logger.propagate = False
    logger.addHandler(handler)
    logger.error("oops\nmulti line")
    logger.removeHandler(handler)
    handler.close()
    assert lines(service, attempt) == 2


def test_a_real_alertmanager_delivers(service: Running, attempt: str, tmp_path: Path) -> None:
    binary = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
    if binary is None:
        pytest.skip("no alertmanager: apt-get install prometheus-alertmanager")
    config = tmp_path / "alertmanager.yml"
    config.write_text(
        f"route: {{receiver: relight, group_wait: 0s, group_interval: 1s}}\nreceivers:\n- name: relight\n"
        f"  webhook_configs:\n  - url: {service.url}/v1/webhooks/alertmanager\n"
        f"    http_config: {{authorization: {{credentials: {service.token}}}}}\n"
    )
    port = free_port()
    command = [binary, f"--config.file={config}", f"--storage.path={tmp_path}/data", "--cluster.listen-address=",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            alert = {"labels": {"alertname": "GpuXid", "job_id": attempt, "node": "n2"},
                     "annotations": {"summary": XID_79}}  # fmt: skip
            raise_alert(f"http://127.0.0.1:{port}/api/v2/alerts", alert)
            found = wait_for_anomaly(service, attempt)
        finally:
            process.terminate()
    assert found["attempt_id"] == attempt


def raise_alert(url: str, alert: dict[str, Any], within_s: float = 15) -> None:
    until = time.monotonic() + within_s
    while True:
        try:
            httpx.post(url, json=[alert]).raise_for_status()
            return
        except httpx.TransportError:
            assert time.monotonic() < until, "alertmanager did not start"
            time.sleep(0.1)


def wait_for_anomaly(service: Running, attempt: str, within_s: float = 20) -> dict[str, Any]:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        items = httpx.get(f"{service.url}/v1/anomalies", headers=auth(service)).json()["items"]
        for item in items:
            if item["attempt_id"] == attempt:
                found: dict[str, Any] = item
                return found
        time.sleep(0.1)
    raise AssertionError(f"no anomaly of {attempt} within {within_s} s")


def test_rotel_forwards_in_gzip_as_a_collector_would(service: Running, attempt: str, tmp_path: Path) -> None:
    binary = shutil.which("rotel-agent") or _rotel()
    if binary is None:
        pytest.skip("no rotel: pip install --pre rotel")
    port = free_port()
    grpc = free_port()
    command = [binary, "start", "--exporter", "otlp", "--otlp-http-endpoint", f"127.0.0.1:{port}",
               "--otlp-grpc-endpoint", f"127.0.0.1:{grpc}",
               "--otlp-exporter-endpoint", service.url, "--otlp-exporter-protocol", "http",
               "--otlp-exporter-custom-headers", f"Authorization=Bearer {service.token}"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=tmp_path) as process:
        try:
            wait_for_port(port)
            say(OTLPLogExporter(endpoint=f"http://127.0.0.1:{port}/v1/logs"), attempt, "step 1", "step 2")
            assert eventually(service, attempt, 2) == 2
        finally:
            process.terminate()


def _rotel() -> str | None:
    try:
        import rotel
    except ImportError:
        return None
    found = Path(rotel.__file__).parent / "rotel-agent"
    return str(found) if found.is_file() else None


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def wait_for_port(port: int, within_s: float = 15) -> None:
    import socket

    until = time.monotonic() + within_s
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            assert time.monotonic() < until, f"nothing listens on {port}"
            time.sleep(0.1)


def test_a_real_prometheus_scrapes_the_figures(service: Running, tmp_path: Path) -> None:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("no prometheus: apt-get install prometheus")
    port, target = free_port(), service.url.removeprefix("http://")
    (tmp_path / "prometheus.yml").write_text(
        f"scrape_configs:\n- job_name: relight\n  scrape_interval: 1s\n  static_configs: [{{targets: ['{target}']}}]\n"
        f"  authorization: {{credentials: {service.token}}}\n"
    )
    command = [binary, f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/tsdb",
               f"--web.listen-address=127.0.0.1:{port}"]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_port(port)
            assert scraped(port, "relight_audit_chain_length") > 0
        finally:
            process.terminate()


def scraped(port: int, name: str, within_s: float = 20) -> float:
    until = time.monotonic() + within_s
    while time.monotonic() < until:
        answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": name})
        found = answer.json().get("data", {}).get("result", []) if answer.status_code == 200 else []
        if found:
            return float(found[0]["value"][1])
        time.sleep(0.2)
    raise AssertionError(f"prometheus has no {name} after {within_s} s")
