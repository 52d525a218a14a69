# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A secret key in a file that only we may read, made at the first need."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

KEY_BYTES = 32


class KeyUnusable(ValueError):
    """The file is there and holds no key of ours, or others may read it."""


def key_from(path: Path) -> bytes:
    """The key, in hex in the file; made and kept if there is none yet.

    Errors: KeyUnusable for a file that is not ours or that others may read; OSError.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return _read(path)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        key = secrets.token_bytes(KEY_BYTES)
        file.write(key.hex() + "\n")
        file.flush()
        os.fsync(file.fileno())
    return key


def _read(path: Path) -> bytes:
    if path.stat().st_mode & 0o077:
        raise KeyUnusable(f"{path} holds a key and others may read it: chmod 600 {path}")
    try:
        key = bytes.fromhex(path.read_text("ascii"))
    except ValueError as why:
        raise KeyUnusable(f"{path} holds no key in hex; remove it and links made so far end") from why
    if len(key) < KEY_BYTES:
        raise KeyUnusable(f"{path} holds {len(key)} bytes, need {KEY_BYTES}; remove it and links made so far end")
    return key
