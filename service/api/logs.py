# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`POST /v1/logs/ndjson`: log lines in bulk, read without a model per line and bounded after decompression."""

from __future__ import annotations

import hashlib
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
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
MEDIA_TYPES = frozenset(
    {"application/x-ndjson", "application/ndjson", "application/jsonl", "application/json"}
)
MAX_TOLD_ERRORS = 100
MAX_DEPTH_BYTES = 1 << 20
_RATIO_FROM = 1 << 16
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
    def entered(self) -> Iterator[_Share]:
        share = _Share(self)
        try:
            yield share
        finally:
            with self._lock:
                self._taken -= share.taken

    def take(self, share: _Share, count: int) -> None:
        with self._lock:
            if self._taken + count > self._limit:
                raise Problem(
                    "overloaded", f"{self._taken} bytes are in work, at most {self._limit}",
                    headers={"Retry-After": str(self._retry_after_s)},
                )  # fmt: skip
            self._taken += count
            share.taken += count


class _Share:
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
        self._read = self._made = 0
        self._parts: list[bytes] = []

    def feed(self, chunk: bytes) -> None:
        self._read += len(chunk)
        if self._gzip is None:
            self._keep(chunk)
            return
        while chunk:
            try:
                self._keep(self._gzip.decompress(chunk, _CHUNK))
            except zlib.error as why:
                raise Problem("malformed_body", f"broken gzip: {why}") from why
            chunk = self._gzip.unconsumed_tail
            if self._gzip.eof:  # members may follow one another
                chunk = self._gzip.unused_data
                self._gzip = zlib.decompressobj(31)

    def whole(self) -> bytes:
        if self._gzip is not None and self._read and not self._is_between_members():
            raise Problem("malformed_body", "the gzip stream ends early")
        return b"".join(self._parts)

    def _is_between_members(self) -> bool:
        return self._gzip is not None and not self._gzip.unconsumed_tail and self._members_done()

    def _members_done(self) -> bool:
        assert self._gzip is not None
        fresh = zlib.decompressobj(31)
        return self._gzip.flush() == fresh.flush() and self._gzip.eof == fresh.eof and self._made > 0

    def _keep(self, part: bytes) -> None:
        self._made += len(part)
        if self._made > self._limit:
            raise Problem("body_too_large", f"more than {self._limit} bytes after decompression")
        if self._made > _RATIO_FROM and self._made > self._ratio * self._read:
            raise Problem("body_too_large", f"decompresses to more than {self._ratio} times its size")
        self._parts.append(part)
