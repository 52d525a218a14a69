# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Log files from disk, standard input and gzip, as the logs of one attempt."""

from __future__ import annotations

import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from detectors.log_names import read_name
from detectors.log_text import LogText, read_log
from relight.types import NodeName, Stream

MAX_BYTES = 2 << 30
_GZIP_MAGIC = b"\x1f\x8b"


class LogUnreadable(ValueError):
    """A file or case folder that cannot be used; the message says which and why."""


@dataclass(frozen=True, slots=True)
class Case:
    """The logs of one attempt, and what had to be worked around to read them."""

    name: str
    logs: tuple[LogText, ...]
    notes: tuple[str, ...] = field(default=())


def read_bytes(path: str) -> tuple[bytes, str]:
    """The content of a file, of a gzip file, or of standard input (`-`), and a note if it is incomplete.

    Errors: LogUnreadable if the file is missing, is a folder, or is larger than 2 GiB once unpacked.
    """
    if path == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
    else:
        try:
            with Path(path).open("rb") as stream:
                data = stream.read(MAX_BYTES + 1)
        except OSError as why:
            raise LogUnreadable(f"cannot read {path}: {why.strerror or why}") from why
    if data[:2] == _GZIP_MAGIC:
        data, note = _gunzip(data, path)
    else:
        note = ""
    if len(data) > MAX_BYTES:
        raise LogUnreadable(f"{path} is larger than {MAX_BYTES} bytes; give the last part of it")
    return data, note


def _gunzip(data: bytes, path: str) -> tuple[bytes, str]:
    """Unpack all members; a truncated or damaged one yields what could be read, with a note."""
    out: list[bytes] = []
    size = 0
    while data:
        unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
        try:
            part = unpacker.decompress(data, MAX_BYTES + 1 - size)
        except zlib.error as why:
            return b"".join(out), f"{path}: gzip data is damaged after {size} bytes ({why}); judged what came before"
        out.append(part)
        size += len(part)
        if size > MAX_BYTES:
            return b"".join(out), ""
        if not unpacker.eof:
            return b"".join(out), f"{path}: gzip data ends too early; judged the {size} bytes that could be read"
        data = unpacker.unused_data
    return b"".join(out), ""


def read_files(
    paths: Sequence[str], streams: Mapping[str, Stream] | None = None, nodes: Mapping[str, str] | None = None
) -> Case:
    """The named files as one attempt; `streams` and `nodes` are by path as given and win over the name.

    Errors: LogUnreadable as in `read_bytes`.
    """
    logs, notes = [], []
    for path in paths:
        data, note = read_bytes(path)
        notes += [note] if note else []
        named = read_name(_without_gz(path))
        stream = (streams or {}).get(path) or (named.stream if named is not None else Stream.APPLICATION)
        host = (nodes or {}).get(path) or (named.node if named is not None else None)
        rank = named.rank if named is not None else None
        logs.append(read_log(path, data, stream, node=NodeName(host) if host else None, rank=rank))
    return Case(paths[0] if paths else "-", tuple(logs), tuple(notes))


def read_folder(folder: Path) -> Case:
    """A folder as one attempt: by its `input.json` if it has one, else by the names of its files.

    Errors: LogUnreadable if `input.json` is malformed or nothing in the folder is a log.
    """
    described = folder / "input.json"
    if described.is_file():
        return _described(folder, described)
    logs: list[LogText] = []
    copies: list[LogText] = []
    notes: list[str] = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = str(path.relative_to(folder))
        named = read_name(_without_gz(name))
        if named is None:
            continue
        data, note = read_bytes(str(path))
        notes += [note] if note else []
        log = read_log(name, data, named.stream, node=named.node, rank=named.rank)
        (copies if named.is_copy else logs).append(log)
    has_output = any(log.stream is Stream.APPLICATION and log.lines for log in logs)
    logs = logs if has_output else [*logs, *copies]
    if not logs:
        raise LogUnreadable(f"{folder} holds no log file; name the files, or add an input.json")
    return Case(folder.name, tuple(logs), tuple(notes))


def _described(folder: Path, described: Path) -> Case:
    try:
        given = json.loads(described.read_bytes())
        streams = {str(name): Stream(stream) for name, stream in given["streams"].items()}
        nodes = dict(given.get("node_of_log") or {})
    except (ValueError, KeyError, TypeError, AttributeError) as why:
        wanted = f"{{'streams': {{FILE: one of {', '.join(Stream)}}}, 'node_of_log': {{FILE: HOST or null}}}}"
        raise LogUnreadable(f"{described}: {why}; expected {wanted}") from why
    logs, notes = [], []
    for name, stream in sorted(streams.items()):
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise LogUnreadable(f"{described}: file name {name!r} leaves the folder; name files inside it")
        data, note = read_bytes(str(folder / name))
        notes += [note] if note else []
        host = nodes.get(name)
        named = read_name(name)
        rank = named.rank if named is not None else None
        logs.append(read_log(name, data, stream, node=NodeName(host) if host else None, rank=rank))
    return Case(folder.name, tuple(logs), tuple(notes))


def case_folders(root: Path) -> Iterator[Path]:
    """The case folders below `root`: those with an `input.json`, else each folder that holds files."""
    described = sorted(p.parent for p in root.rglob("input.json"))
    if described:
        yield from described
        return
    seen: list[Path] = []
    for path in sorted(p for p in root.rglob("*") if p.is_file()):
        folder = path.parent
        if folder == root or any(s == folder or s in folder.parents for s in seen):
            continue
        if read_name(path.name) is not None:
            seen.append(folder)
            yield folder


def _without_gz(name: str) -> str:
    return name.removesuffix(".gz")
