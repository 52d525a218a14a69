# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""From a piece of a growing file to whole lines, and from packed bytes to plain ones."""

from __future__ import annotations

import os
import re
import zlib

MAX_LINE_BYTES = 64_000
SPLIT_MARK = b" [line continues]"
_CHUNK = 1 << 16
_REWRITE_SHAPE = re.compile(rb"[\d.:%,?-]+|[#=>\s|]+|\xe2[\x94-\x97][\x80-\xbf]")
_UNWRITTEN = b"\0" * 8


def lines_of(data: bytes, *, is_complete: bool) -> tuple[list[bytes], int]:
    """Whole lines and rewrites, and how many bytes they took.

    A carriage return ends a rewrite: a progress bar that never ends its line still shows progress. Of
    rewrites that follow each other and look alike only the last is kept: a bar of 100,000 steps is no log of
    100,000 lines. `is_complete` says that no more will come soon, so that the last line may lack its end.
    Bytes that a network file system has not shown yet read as zeros: they are waited for.
    """
    if not is_complete and _UNWRITTEN in data:
        data = data[: data.index(_UNWRITTEN)]
    pieces: list[bytes] = []
    shape: bytes | None = None
    used = 0
    while used < len(data):
        end, width = _line_end(data, used)
        if (end if end >= 0 else len(data)) - used > MAX_LINE_BYTES:
            pieces.append(data[used : used + MAX_LINE_BYTES] + SPLIT_MARK)
            used, shape = used + MAX_LINE_BYTES, None
            continue
        if end < 0:
            if is_complete:
                pieces.append(data[used:].rstrip(b"\r"))
                used = len(data)
            break
        text, is_rewrite = data[used:end], width == 1 and data[end : end + 1] == b"\r"
        used = end + width
        if not is_rewrite:
            pieces.append(text)
            shape = None
        elif text.strip():
            before, shape = shape, _REWRITE_SHAPE.sub(b"", text[:400])
            if before == shape:
                pieces.pop()
            pieces.append(text)
    return pieces, used


def _line_end(data: bytes, start: int) -> tuple[int, int]:
    """Where the line ends and how long its end is; -1 if it does not end in this piece.

    A return at the very end waits: its line feed may be in the next piece.
    """
    feed, back = data.find(b"\n", start), data.find(b"\r", start)
    if back < 0 or 0 <= feed < back:
        return feed, 1
    if back + 1 == len(data):
        return -1, 0
    return back, 2 if data[back + 1 : back + 2] == b"\n" else 1


def unpacked(descriptor: int, skip: int, limit: int) -> bytes:
    """`limit` plain bytes of a gzip file behind the first `skip`; damage ends the text where it begins."""
    out, position, done = bytearray(), 0, 0
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    packed = b""
    while len(out) < limit:
        if not packed:
            packed = os.pread(descriptor, _CHUNK, position)
            position += len(packed)
            if not packed:
                break
        try:
            text = unpacker.decompress(packed, _CHUNK)
        except zlib.error:
            break
        out += text[max(0, min(len(text), skip - done)) :]
        done += len(text)
        packed = unpacker.unconsumed_tail
        if unpacker.eof:
            packed, unpacker = unpacker.unused_data, zlib.decompressobj(zlib.MAX_WBITS | 16)
    return bytes(out[:limit])
