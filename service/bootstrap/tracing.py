# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Traces of recoveries, where the settings name a collector; nothing of OpenTelemetry is imported otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from service.adapters.rule_files import read_text
from service.bootstrap.kit import beside
from service.chores import Chore
from service.config import ConfigError, Settings

if TYPE_CHECKING:
    from service.journal import Journal
    from service.metrics import Metrics

_EXTRA = "tracing.endpoint is set, which needs OpenTelemetry's exporter: pip install 'relight[otel]'"


def tracing(settings: Settings, journal: Journal, metrics: Metrics, version: str) -> list[Chore]:
    """A thread of its own, so that a collector that hangs delays nothing.

    Errors: ConfigError if the exporter is not installed or the headers can't be read, KeepingUnreadable.
    """
    said = settings.tracing
    if not said.endpoint:
        return []
    from service.adapters.notify_keeping import FileKeeping
    from service.tracing import RecoveryTraces

    try:
        from service.adapters.otlp_traces import OtlpTraces
    except ImportError as why:
        raise ConfigError(_EXTRA) from why
    send = OtlpTraces(
        said.endpoint, service=said.service_name, version=version, headers=_headers(said.headers_file),
        timeout_s=said.timeout_s,
    )  # fmt: skip
    traces = RecoveryTraces(
        audit=journal.audit,
        keeping=FileKeeping(beside(settings.audit.path, said.state_file, "traces")),
        send=send,
        told=lambda outcome, spans: metrics.trace_spans.labels(outcome).inc(spans),
        max_pending=said.max_pending,
    )
    return [Chore("traces of recoveries", said.every_s, lambda: traces.look(journal.now()))]


def _headers(file: Path | None) -> dict[str, str]:
    if file is None:
        return {}
    try:
        lines = [line for line in read_text(file).splitlines() if line.strip()]
    except OSError as why:
        raise ConfigError(f"tracing.headers_file: {why}") from why
    pairs = [line.partition(":") for line in lines]
    if not all(name.strip() and colon for name, colon, _ in pairs):
        raise ConfigError(f"tracing.headers_file: {file} must hold lines like `name: value`")  # never the line itself
    return {name.strip(): value.strip() for name, _, value in pairs}
