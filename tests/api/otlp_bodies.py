# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""OTLP and Loki requests as the protocols spell them, built for the tests of the doors."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import cramjam
import orjson
from google.rpc.status_pb2 import Status
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.common.v1.common_pb2 import KeyValue

from service.doors import loki
from tests.api.running import START, Service

JSON = {"Content-Type": "application/json"}
PROTOBUF = {"Content-Type": "application/x-protobuf"}


def nanos(at: datetime = START, **later: float) -> int:
    return int((at + timedelta(**later)).timestamp()) * 1_000_000_000


def attribute(key: str, value: Any) -> dict[str, Any]:
    kind = "intValue" if isinstance(value, int) else "stringValue"
    return {"key": key, "value": {kind: value}}


def record(text: Any, at: int | str | None = None, **attributes: Any) -> dict[str, Any]:
    body = {"stringValue": text} if isinstance(text, str) else text
    said = {"timeUnixNano": str(nanos()) if at is None else at, "body": body}
    return said | {"attributes": [attribute(name.replace("__", "."), value) for name, value in attributes.items()]}


def logs(*records: Any, **resource: Any) -> dict[str, Any]:
    attributes = [attribute(name.replace("__", "."), value) for name, value in resource.items()]
    return {"resourceLogs": [{"resource": {"attributes": attributes}, "scopeLogs": [{"logRecords": list(records)}]}]}


def post(service: Service, said: Any, **more: Any) -> Any:
    body = said if isinstance(said, bytes) else orjson.dumps(said)
    return service.post("/v1/logs", content=body, headers=JSON | more)


def protobuf(*texts: str, **resource: str) -> bytes:
    said = ExportLogsServiceRequest()
    inside = said.resource_logs.add()
    for name, value in resource.items():
        pair: KeyValue = inside.resource.attributes.add()
        pair.key, pair.value.string_value = name.replace("__", "."), value
    scope = inside.scope_logs.add()
    for number, text in enumerate(texts):
        one = scope.log_records.add()
        one.time_unix_nano, one.body.string_value = nanos(seconds=number), text
    return said.SerializeToString()


def read_success(body: bytes) -> tuple[int, str]:
    answer = ExportLogsServiceResponse()
    answer.ParseFromString(body)
    return answer.partial_success.rejected_log_records, answer.partial_success.error_message


def read_status(body: bytes) -> tuple[int, str]:
    status = Status()
    status.ParseFromString(body)
    return status.code, status.message


def push(labels: dict[str, str], *values: Any) -> dict[str, Any]:
    return {"streams": [{"stream": labels, "values": list(values)}]}


def snappy_push(labels: str, *lines: str, **metadata: str) -> bytes:
    said = loki._PushRequest()
    stream = said.streams.add()
    stream.labels = labels
    for number, line in enumerate(lines):
        entry = stream.entries.add()
        entry.line, entry.timestamp.seconds, entry.timestamp.nanos = line, nanos() // 10**9, number
        for name, value in metadata.items():
            entry.structured_metadata.add(name=name, value=value)
    return bytes(cramjam.snappy.compress_raw(said.SerializeToString()))


def lines_of(service: Service, attempt: str = "a-1") -> int:
    said: int = service.get(f"/v1/attempts/{attempt}").json()["log_lines"]
    return said
