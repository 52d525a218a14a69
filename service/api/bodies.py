# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Bodies of senders, read within bounds: what is held, packed and unpacked, is admitted byte by byte."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import cramjam
import zstandard
from fastapi import Request

from service.api.logs import RATIO_FROM, Admission, Inflater, Share
from service.api.problems import Problem
from service.config import Server

JSON: Final = "application/json"
PROTOBUF: Final = "application/x-protobuf"
GZIP = frozenset({"gzip", "x-gzip"})
_PIECE = 512  # four bytes of zstd may stand for 128 KiB
_MAX_WINDOW = 1 << 23


def in_both(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What is described once and may be in JSON or in protobuf, as OpenAPI's `content`."""
    return {JSON: {"schema": dict(schema)}, PROTOBUF: {"schema": {"type": "string", "format": "binary"}}}


def asks_for(title: str) -> dict[str, Any]:
    """The `openapi_extra` of a door whose body, named by its protocol, is read by the door itself."""
    return {"requestBody": {"required": True, "content": in_both({"type": "object", "title": title})}}


def media_type(headers: Mapping[str, str]) -> str:
    """What a request says that its body is, without parameters."""
    return headers.get("content-type", "").partition(";")[0].strip().lower()


@asynccontextmanager
async def body_of(request: Request, *, is_snappy: bool = False) -> AsyncIterator[bytes]:
    """The unpacked body, admitted for as long as the block runs; gzip and zstd by the content encoding.

    `is_snappy`: the body is one block of snappy whatever the headers say, as Loki's protobuf is.
    Errors: Problem 413 beyond the limit or the ratio, 415 for another encoding, 400 if it does not unpack,
    503 while too much is in work.
    """
    server: Server = request.app.state.application.settings.server
    admission: Admission = request.app.state.admission
    encoding = request.headers.get("content-encoding", "").strip().lower()
    with admission.entered() as share:
        if is_snappy and encoding in {"", "identity", "snappy"}:
            body = _unsnapped(await _raw(request, share, server), server, share)
        elif encoding == "zstd":
            body = _unzstd(await _raw(request, share, server), server, share)
        elif encoding in {"", "identity"} | GZIP:
            body = await _inflated(request, encoding, server, share)
        else:
            raise Problem("unsupported_media_type", f"content encoding {encoding!r}: send gzip, zstd or none")
        yield _unsnapped(body, server, share) if is_snappy and encoding in GZIP | {"zstd"} else body


async def _raw(request: Request, share: Share, server: Server) -> bytes:
    parts, size = list[bytes](), 0
    async for chunk in request.stream():
        share.take(len(chunk))
        size += len(chunk)
        if size > server.max_ingest_bytes:
            raise Problem("body_too_large", f"more than {server.max_ingest_bytes} bytes")
        parts.append(chunk)
    return b"".join(parts)


async def _inflated(request: Request, encoding: str, server: Server, share: Share) -> bytes:
    inflater = Inflater(encoding, server.max_ingest_bytes, server.max_compression_ratio)
    async for chunk in request.stream():
        before = inflater.made
        inflater.feed(chunk)
        share.take(max(inflater.made - before, len(chunk)))
    return inflater.whole()


def _unzstd(packed: bytes, server: Server, share: Share) -> bytes:
    """Frame by frame in pieces so small that a bomb overshoots the limit by no more than the limit."""
    parts, made, left = list[bytes](), 0, memoryview(packed)
    unpacker = _frame()
    is_begun = False
    while left:
        piece, left, is_begun = left[:_PIECE], left[_PIECE:], True
        try:
            part = unpacker.decompress(piece)
        except zstandard.ZstdError as why:
            raise Problem("malformed_body", f"broken zstd: {why}") from why
        made += len(part)
        _check(made, len(packed), server)
        share.take(len(part))
        parts.append(part)
        if unpacker.eof:  # frames may follow one another
            left = memoryview(packed)[len(packed) - len(left) - len(unpacker.unused_data) :]
            unpacker, is_begun = _frame(), False
    if is_begun:
        raise Problem("malformed_body", "the zstd stream ends early")
    return b"".join(parts)


def _frame() -> zstandard.ZstdDecompressionObj:
    return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()


def _unsnapped(packed: bytes, server: Server, share: Share) -> bytes:
    """A snappy block states its size, so that nothing is unpacked that would not fit."""
    try:
        size = cramjam.snappy.decompress_raw_len(packed)
        _check(size, len(packed), server)
        share.take(size)
        return bytes(cramjam.snappy.decompress_raw(packed))
    except (cramjam.DecompressionError, ValueError) as why:
        raise Problem("malformed_body", f"broken snappy: {why}") from why


def _check(made: int, read: int, server: Server) -> None:
    if made > server.max_ingest_bytes:
        raise Problem("body_too_large", f"more than {server.max_ingest_bytes} bytes after decompression")
    if made > RATIO_FROM and made > server.max_compression_ratio * read:
        raise Problem("body_too_large", f"decompresses to more than {server.max_compression_ratio} times its size")
