# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Spans as OTLP over HTTP, by OpenTelemetry's own exporter; imported only where traces are switched on."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta

import requests
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags

from service.tracing import Receipt
from service.tracing_spans import Span

_REFUSED = frozenset({400, 413, 415, 422})  # the same again would be refused again; a token may be in rotation
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class OtlpTraces:
    """Sends spans to `endpoint`, the full address with its path; never raises for what a collector does.

    What the controller did is told under a service of its own, so that both show in one trace.
    """

    def __init__(
        self, endpoint: str, *, service: str, version: str, headers: Mapping[str, str], timeout_s: float
    ) -> None:
        logging.getLogger("opentelemetry").addHandler(logging.NullHandler())  # its failures are our figures
        logging.getLogger("opentelemetry").propagate = False
        self._status = 0
        session = requests.Session()
        session.trust_env = False
        session.hooks["response"].append(self._answered)
        self._exporter = OTLPSpanExporter(
            endpoint=endpoint, headers=headers, timeout=timeout_s, compression=Compression.Gzip, session=session
        )
        self._scope = InstrumentationScope("relight", version)
        ours = {"service.name": service, "service.version": version}
        self._resource = Resource.create(ours)
        self._controllers = Resource.create({**ours, "service.name": f"{service}-controller"})

    def __call__(self, spans: Sequence[Span]) -> Receipt:
        self._status = 0
        result = self._exporter.export([self._readable(one) for one in spans])
        if result is SpanExportResult.SUCCESS:
            return Receipt.TAKEN
        return Receipt.REFUSED if self._status in _REFUSED else Receipt.UNREACHED

    def _answered(self, response: requests.Response, *_: object, **__: object) -> None:
        self._status = response.status_code

    def _readable(self, said: Span) -> ReadableSpan:
        # Built directly: the SDK's tracer makes ids and times of its own, and ours come from the record.
        resource = self._resource
        if said.actor:
            resource = self._controllers.merge(Resource({"service.instance.id": said.actor}))
        return ReadableSpan(
            name=said.name,
            context=_context(said.trace_id, said.span_id),
            parent=_context(said.trace_id, said.parent_id) if said.parent_id else None,
            resource=resource,
            attributes=dict(said.attributes),
            events=[Event(one.name, dict(one.attributes), timestamp=_nanoseconds(one.at)) for one in said.marks],
            links=[Link(_context(trace, span)) for trace, span in said.links],
            kind=SpanKind.CLIENT if said.actor else SpanKind.INTERNAL,
            status=Status(StatusCode.ERROR, said.error) if said.error else Status(StatusCode.UNSET),
            start_time=_nanoseconds(said.begun_at),
            end_time=_nanoseconds(said.ended_at),
            instrumentation_scope=self._scope,
        )


def _context(trace: str, span: str) -> SpanContext:
    return SpanContext(int(trace, 16), int(span, 16), is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _nanoseconds(at: datetime) -> int:
    return (at - _EPOCH) // _MICROSECOND * 1_000
