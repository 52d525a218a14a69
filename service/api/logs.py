# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`POST /v1/logs/ndjson`: log lines in bulk, without a model per line, bounded after decompression."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from fastapi import Request, Response
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from relight.types import ClusterId
from service.api.access import App, cluster_of, resource
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.wire import Told
from service.application import Application
from service.doors.delivery import addressee, attempt_of
from service.doors.ndjson import Reading
from service.holding import HELD, Addressee
from service.observing import Fate
from service.tokens import Permission, Principal

router = resource("ingest")
MEDIA_TYPES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json"})
RATIO_FROM = 1 << 16
_CHUNK = 1 << 20


class LineFault(Told):
    line: int = Field(description="counted from 1 within the body")
    detail: str


class LinesTold(Told):
    """Every line is in one of the four counts; `errors` names the first hundred rejected ones.

    `held` lines name an attempt or a job that is not registered yet: they are on disk, and its own once it is.
    """

    accepted: int
    duplicates: int
    rejected: int
    held: int = Field(default=0, description="kept for `ingest.hold_s` at least, unless their job is registered sooner")
    errors: list[LineFault]


class Admission:
    """How many bytes may be in work at once; beyond that senders are asked to come again."""

    def __init__(self, limit: int, retry_after_s: int) -> None:
        self._limit = limit
        self._retry_after_s = retry_after_s
        self._lock = threading.Lock()
        self._taken = 0

    @contextmanager
    def entered(self) -> Iterator[Share]:
        share = Share(self)
        try:
            yield share
        finally:
            with self._lock:
                self._taken -= share.taken

    def take(self, share: Share, count: int) -> None:
        with self._lock:
            if self._taken + count > self._limit:
                raise Problem(
                    "overloaded", f"{self._taken} bytes are in work, at most {self._limit}",
                    headers={"Retry-After": str(self._retry_after_s)},
                )  # fmt: skip
            self._taken += count
            share.taken += count


class Share:
    """What one request has taken of the admission."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.taken = 0

    def take(self, count: int) -> None:
        self._admission.take(self, count)


class Inflater:
    """A body as it comes, decompressed step by step so that a bomb never unfolds.

    Errors: Problem 413 beyond `limit` bytes or a ratio above `ratio`, 400 for broken gzip, 415 for other
    encodings.
    """

    def __init__(self, encoding: str, limit: int, ratio: int) -> None:
        if encoding not in {"", "identity", "gzip", "x-gzip"}:
            raise Problem("unsupported_media_type", f"content encoding {encoding!r}: send gzip or none")
        self._gzip = zlib.decompressobj(31) if encoding.endswith("gzip") else None
        self._limit, self._ratio = limit, ratio
        self._read = self.made = 0
        self._is_open = self._is_full = False
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        self._read += len(chunk)
        if self._gzip is None:
            self._keep(chunk)
            return
        while chunk or self._is_full:
            self._is_open = True
            try:
                part = self._gzip.decompress(chunk, _CHUNK)
            except zlib.error as why:
                raise Problem("malformed_body", f"broken gzip: {why}") from why
            self._keep(part)
            self._is_full = len(part) == _CHUNK
            chunk = self._gzip.unconsumed_tail
            if self._gzip.eof:  # members may follow one another
                chunk, self._is_open, self._is_full = self._gzip.unused_data, False, False
                self._gzip = zlib.decompressobj(31)

    def whole(self) -> bytes:
        if self._is_open:
            raise Problem("malformed_body", "the gzip stream ends early")
        return b"".join(self._parts)

    def _keep(self, part: bytes) -> None:
        self.made += len(part)
        if self.made > self._limit:
            raise Problem("body_too_large", f"more than {self._limit} bytes after decompression")
        if self.made > RATIO_FROM and self.made > self._ratio * self._read:
            raise Problem("body_too_large", f"decompresses to more than {self._ratio} times its size")
        self._parts.append(part)


@router.post(
    "/logs/ndjson",
    operation_id="sendLogLines",
    responses={
        202: {"model": LinesTold, "description": "Taken, and some lines wait for their job"},
        **documented(413, 415),
    },
    openapi_extra={
        "requestBody": {
            "required": True,
            "content": {
                "application/x-ndjson": {
                    "schema": {"type": "string"},
                    "example": '{"attempt_id":"a-1","file":"rank0.log","number":7,"rank":0,"text":"..."}\n',
                }
            },
        }
    },
)
@permits(Permission.INGEST)
async def send_log_lines(request: Request, response: Response, caller: Caller, app: App) -> LinesTold:
    """One JSON object a line: text, and attempt_id or job_id; file, number, stream, node, rank, at.

    Plain or gzip. A line without number and time is known again only if its whole batch is sent again; equal
    lines of one time count as often as the batch holds them. Lines of jobs that are not registered yet are held,
    and answered with 202.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in MEDIA_TYPES:
        raise Problem("unsupported_media_type", f"need application/x-ndjson, got {kind or 'none'}")
    cluster = cluster_of(caller, app, request.query_params.get("cluster"))
    settings, admission = app.settings.server, request.app.state.admission
    encoding = request.headers.get("content-encoding", "").strip().lower()
    body = Inflater(encoding, settings.max_ingest_bytes, settings.max_compression_ratio)
    with admission.entered() as share:
        async for chunk in request.stream():
            before = body.made
            body.feed(chunk)
            share.take(max(body.made - before, len(chunk)))
        told = await run_in_threadpool(_taken_in, app, caller, cluster, body.whole())
    if told.held:
        response.status_code = 202
    return told


def _taken_in(app: Application, caller: Principal, cluster: ClusterId, body: bytes) -> LinesTold:
    if body.count(b"\n") > app.settings.ingest.max_lines_per_request:
        raise Problem("body_too_large", f"more than {app.settings.ingest.max_lines_per_request} lines")
    read = reading(app, caller, cluster)
    read.take(body)
    if read.faults and not (read.lines or read.unclaimed) and read.broken == read.rejected:
        raise Problem("malformed_body", f"line {read.faults[0].line}: {read.faults[0].detail}")
    digest = hashlib.sha256(cluster.encode() + b"\0" + body).digest()
    new, old = app.intake.accept_lines(read.lines, digest, "ndjson", caller.client)
    held = app.intake.hold_lines(read.unclaimed, digest, "ndjson", caller.client) if read.unclaimed else {}
    for to, fate in held.items():
        if fate.refused:
            read.reject(read.places[to], f"unknown {to}: PUT /v1/attempts first; {fate.refusal}", fate.refused)
    told = LinesTold(
        accepted=new + sum(one.accepted for one in held.values()),
        duplicates=old + sum(one.duplicates for one in held.values()),
        held=sum(one.held for one in held.values()),
        rejected=read.rejected,
        errors=[LineFault(line=one.line, detail=one.detail) for one in read.faults],
    )
    _count(app, told, read.newest)
    return told


def reading(app: Application, caller: Principal, cluster: ClusterId) -> Reading:
    """An empty reading of lines that a caller sends for a cluster."""

    def address(attempt: str | None, job: str | None, restart: int | None) -> Addressee:
        return addressee(caller, cluster, attempt, job, restart)

    return Reading(address, lambda to: attempt_of(app, caller, to), app.settings.ingest.max_line_bytes)


def _count(app: Application, told: LinesTold, newest: datetime | None) -> None:
    counts = {Fate.ACCEPTED: told.accepted, Fate.DUPLICATE: told.duplicates, Fate.FAILED: told.rejected,
              HELD: told.held}  # fmt: skip
    for fate, count in counts.items():
        app.metrics.records.labels("ndjson", fate).inc(count)
    if newest is not None:
        lag = app.journal.now() - newest
        app.metrics.lag.observe(max(lag.total_seconds(), 0.0))
