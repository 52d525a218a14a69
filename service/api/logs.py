# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`POST /v1/logs/ndjson`: log lines in bulk, without a model per line, bounded after decompression."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import orjson
from fastapi import Request
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from relight.types import AttemptId, ClusterId, LogLine, NodeName, Rank, Stream
from service.api.access import App, cluster_of, resource
from service.api.problems import Problem, documented
from service.api.security import Caller, permits
from service.api.wire import Told
from service.application import Application
from service.observing import Fate
from service.tokens import Permission, Principal

router = resource("ingest")
MEDIA_TYPES = frozenset({"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json"})
MAX_TOLD_ERRORS = 100
RATIO_FROM = 1 << 16
_CHUNK = 1 << 20
_JOB_ALIASES = ("job_id", "SLURM_JOB_ID", "slurm.job.id")
_RESTART_ALIASES = ("restart_count", "SLURM_RESTART_COUNT", "slurm.job.restart_count")
_STREAMS = {one.value: one for one in Stream}


class LineFault(Told):
    line: int = Field(description="counted from 1 within the body")
    detail: str


class LinesTold(Told):
    """Every line is in one of the three counts; `errors` names the first hundred rejected ones."""

    accepted: int
    duplicates: int
    rejected: int
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
    responses=documented(413, 415),
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
async def send_log_lines(request: Request, caller: Caller, app: App) -> LinesTold:
    """One JSON object a line: text, and attempt_id or job_id; file, number, stream, node, rank, at.

    Plain or gzip. A line without number and time is known again only if its whole batch is sent again.
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
        return await run_in_threadpool(_taken_in, app, caller, cluster, body.whole())


def _taken_in(app: Application, caller: Principal, cluster: ClusterId, body: bytes) -> LinesTold:
    if body.count(b"\n") > app.settings.ingest.max_lines_per_request:
        raise Problem("body_too_large", f"more than {app.settings.ingest.max_lines_per_request} lines")
    read = Reading(app, caller, cluster)
    read.take(body)
    if read.faults and not read.lines and read.broken == read.rejected:
        raise Problem("malformed_body", f"line {read.faults[0].line}: {read.faults[0].detail}")
    digest = hashlib.sha256(cluster.encode() + b"\0" + body).digest()
    new, old = app.intake.accept_lines(read.lines, digest, "ndjson", caller.client)
    counts = {Fate.ACCEPTED: new, Fate.DUPLICATE: old, Fate.FAILED: read.rejected}
    for fate, count in counts.items():
        app.metrics.records.labels("ndjson", fate).inc(count)
    if read.newest is not None:
        lag = app.journal.now() - read.newest
        app.metrics.lag.observe(max(lag.total_seconds(), 0.0))
    return LinesTold(accepted=new, duplicates=old, rejected=read.rejected, errors=read.faults)


@dataclass(slots=True)
class Reading:
    """The lines of one body, with every one that can't be used on record."""

    app: Application
    caller: Principal
    cluster: ClusterId
    lines: list[LogLine] = field(default_factory=list)
    faults: list[LineFault] = field(default_factory=list)
    rejected: int = 0
    broken: int = 0
    newest: datetime | None = None
    _attempts: dict[tuple[str, int | None, bool], AttemptId | None] = field(default_factory=dict)

    def take(self, body: bytes) -> None:
        for number, raw in enumerate(body.split(b"\n"), 1):
            if not raw.strip():
                continue
            try:
                said = orjson.loads(raw)
            except orjson.JSONDecodeError as why:
                self.broken += 1
                self._reject(number, f"not JSON: {why}")
                continue
            try:
                self.lines.append(self._line(said))
            except ValueError as why:
                self._reject(number, str(why))

    def _reject(self, number: int, detail: str) -> None:
        self.rejected += 1
        if len(self.faults) < MAX_TOLD_ERRORS:
            self.faults.append(LineFault(line=number, detail=detail))

    def _line(self, said: Any) -> LogLine:
        if not isinstance(said, dict):
            raise ValueError(f"need an object, got {type(said).__name__}")
        text, at = _text(said, "text", None), _moment(said.get("at"))
        if len(text) > self.app.settings.ingest.max_line_bytes:
            raise ValueError(f"text has {len(text)} characters, at most {self.app.settings.ingest.max_line_bytes}")
        if at is not None and (self.newest is None or at > self.newest):
            self.newest = at
        node, rank, stream = said.get("node"), _whole(said, "rank"), said.get("stream", "application")
        if stream not in _STREAMS:
            raise ValueError(f"no stream {stream!r}, choose from {', '.join(_STREAMS)}")
        return LogLine(
            attempt=self._attempt(said),
            file=_text(said, "file", "stdout")[:1_000],
            number=_whole(said, "number") or 0,
            stream=_STREAMS[stream],
            text=text,
            at=at,
            node=NodeName(_text(said, "node", "")[:253]) if node else None,
            rank=Rank(rank) if rank is not None else None,
        )

    def _attempt(self, said: dict[str, Any]) -> AttemptId:
        name = said.get("attempt_id")
        job = next((said[key] for key in _JOB_ALIASES if key in said), None)
        restart = next((_whole(said, key) for key in _RESTART_ALIASES if key in said), None)
        if not isinstance(name, str) and not isinstance(job, str | int):
            raise ValueError("need attempt_id or job_id")
        key = (name, None, True) if isinstance(name, str) else (str(job), restart, False)
        if key not in self._attempts:
            self._attempts[key] = self._resolved(*key)
        found = self._attempts[key]
        if found is None:
            raise ValueError(f"unknown {'attempt' if key[2] else 'job'} {key[0]!r}: PUT /v1/attempts first")
        return found

    def _resolved(self, name: str, restart: int | None, is_attempt: bool) -> AttemptId | None:
        with self.app.journal.view:
            state = self.app.journal.state
            if not is_attempt:
                return state.attempt_of_job(self.cluster, name, restart)
            known = state.attempts.get(AttemptId(name))
            is_visible = known is not None and self.caller.may_see(known.seen.cluster)
            return AttemptId(name) if is_visible else None


def _text(said: dict[str, Any], key: str, default: str | None) -> str:
    value = said.get(key, default)
    if not isinstance(value, str):
        raise ValueError(f"{key}: need text, got {type(value).__name__}")
    return value


def _whole(said: dict[str, Any], key: str) -> int | None:
    value = said.get(key)
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if value is None or (isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53):
        return value
    raise ValueError(f"{key}: need a whole number from 0, got {value!r}")


def _moment(value: Any) -> datetime | None:
    if value is None:
        return None
    if isinstance(value, str):
        at = datetime.fromisoformat(value)
        if at.tzinfo is not None:
            return at.astimezone(UTC)
    raise ValueError(f"at: need RFC 3339 with a zone, got {value!r}")
