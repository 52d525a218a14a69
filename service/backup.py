# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A backup: the whole record as Parquet, what stands beside it, and a list that says what must be there."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from relight.ports import Head

RECORD = "events.parquet"
LIST = "backup.json"
BESIDE = "beside"
_SCHEMA = 1


class BackupDamaged(ValueError):
    """Not everything that was backed up is there as it was; the message names the first thing amiss."""


class BackupUnreachable(RuntimeError):
    """The running service did not hand out its record."""


class BackupRefused(RuntimeError):
    """The running service does not hand its record to this token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """What a backup holds: the head of its record, and the SHA-256 of each file by its name."""

    version: str
    at: str
    position: int
    hash: str
    files: Mapping[str, str] = field(default_factory=dict)


def back_up(
    folder: Path,
    beside: Mapping[str, Path],
    record: Callable[[Path], object],
    prove: Callable[[Path], Head],
    *,
    at: datetime,
    version: str,
) -> Listed:
    """Write a backup into `folder`, which must not exist; complete or not at all.

    What stands beside the record is copied first: a place that was read up to may lag behind the record and
    must not lead. Errors: FileExistsError, OSError, and whatever `record` and `prove` raise.
    """
    if folder.exists():
        raise FileExistsError(f"{folder} exists; give the name of a folder that does not")
    unfinished = folder.with_name(f".{folder.name}.unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    try:
        (unfinished / BESIDE).mkdir(parents=True)
        for name, path in beside.items():
            _copy(path, unfinished / BESIDE / name)
        record(unfinished / RECORD)
        head = prove(unfinished / RECORD)
        listed = Listed(version=version, at=at.isoformat(), position=head.position, hash=head.hash,
                        files=dict(_digests(unfinished)))  # fmt: skip
        (unfinished / LIST).write_text(json.dumps({"schema": _SCHEMA, **asdict(listed)}, indent=1), "utf-8")
        _sync(unfinished)
        unfinished.replace(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    return listed


def read_list(folder: Path) -> Listed:
    """What the backup says that it holds, after each file was compared. Errors: BackupDamaged."""
    try:
        said = json.loads((folder / LIST).read_bytes())
        schema = said.pop("schema")
        if schema != _SCHEMA:
            raise BackupDamaged(f"{folder / LIST} is of schema {schema}, this Relight knows {_SCHEMA}: use a newer one")
        listed = Listed(**said)
    except FileNotFoundError as why:
        raise BackupDamaged(f"{folder} holds no {LIST}: it is not a finished backup") from why
    except (ValueError, TypeError, KeyError, AttributeError) as why:
        raise BackupDamaged(f"{folder / LIST} can't be read: {why}") from why
    found = dict(_digests(folder))
    for name, sha256 in listed.files.items():
        if found.get(name) != sha256:
            raise BackupDamaged(f"{folder / name} is {'changed' if name in found else 'missing'}")
    return listed


def put_back(folder: Path, listed: Listed, beside: Mapping[str, Path]) -> tuple[str, ...]:
    """Copy what stood beside the record to its places, over what is there; the names of what was put back."""
    names = {name.partition("/")[2].partition("/")[0] for name in listed.files if name.startswith(f"{BESIDE}/")}
    for name in sorted(names & set(beside)):
        _copy(folder / BESIDE / name, beside[name])
    return tuple(sorted(names & set(beside)))


def _copy(source: Path, target: Path) -> None:
    """A file or a whole folder; nothing, if it went away meanwhile or never was."""
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True)
    elif source.is_file():
        shutil.copy2(source, target)


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != LIST:
            with path.open("rb") as file:
                yield path.relative_to(folder).as_posix(), hashlib.file_digest(file, "sha256").hexdigest()


def _sync(folder: Path) -> None:
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
