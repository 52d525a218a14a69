# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Bearer tokens: who calls, in which role, and until when; only digests are kept."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
import threading
import zlib
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_RANDOM_LENGTH = 32
_CHECK_LENGTH = 6
_SHAPE = re.compile(rf"rlt_([a-z]+)_([0-9A-Za-z]{{{_RANDOM_LENGTH}}})([0-9A-Za-z]{{{_CHECK_LENGTH}}})")
LIVE_PER_CLIENT = 2


class Role(StrEnum):
    VIEWER = "viewer"
    INGESTER = "ingester"
    CONTROLLER = "controller"
    AUTHOR = "author"
    OPERATOR = "operator"
    ADMIN = "admin"


class Permission(StrEnum):
    """What a route asks for; every route names exactly one."""

    READ = "read"
    INGEST = "ingest"
    ADVISE = "advise"
    CONTROL = "control"
    AUTHOR = "author"
    OPERATE = "operate"
    FEEDBACK = "feedback"


GRANTS: dict[Role, frozenset[Permission]] = {
    Role.VIEWER: frozenset({Permission.READ}),
    Role.INGESTER: frozenset({Permission.INGEST}),
    Role.CONTROLLER: frozenset({Permission.READ, Permission.INGEST, Permission.ADVISE, Permission.CONTROL}),
    Role.AUTHOR: frozenset({Permission.READ, Permission.AUTHOR, Permission.FEEDBACK}),
    Role.OPERATOR: frozenset({Permission.READ, Permission.ADVISE, Permission.OPERATE, Permission.FEEDBACK}),
    Role.ADMIN: frozenset(Permission),
}


class TokenError(ValueError):
    """A token that can't be issued or a token file that can't be used."""


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller; `cluster` None means every cluster."""

    client: str
    role: Role
    cluster: str | None = None

    def may(self, permission: Permission) -> bool:
        return permission in GRANTS[self.role]

    def may_see(self, cluster: str) -> bool:
        return self.cluster is None or self.cluster == cluster


@dataclass(frozen=True, slots=True)
class Token:
    """What is kept of a token: its digest, not the secret."""

    sha256: str
    client: str
    role: Role
    created_at: datetime
    expires_at: datetime
    cluster: str | None = None
    is_revoked: bool = False

    def is_live(self, at: datetime) -> bool:
        return not self.is_revoked and self.created_at <= at < self.expires_at


def checksum(body: str) -> str:
    """Six base-62 digits of CRC-32, so that a leak scanner can tell a token from noise offline."""
    left, out = zlib.crc32(body.encode()), ""
    for _ in range(_CHECK_LENGTH):
        left, digit = divmod(left, len(_DIGITS))
        out = _DIGITS[digit] + out
    return out


def is_well_formed(secret: str) -> bool:
    """True if the text has the shape of one of our tokens and its checksum agrees."""
    found = _SHAPE.fullmatch(secret)
    return found is not None and found[1] in set(Role) and checksum(f"rlt_{found[1]}_{found[2]}") == found[3]


def digest(secret: str) -> str:
    """High-entropy secrets need no slow hash."""
    return hashlib.sha256(secret.encode()).hexdigest()


class TokenBook:
    """The tokens in force, kept in a file if one is given.

    Errors: TokenError if a client already has two live tokens, a controller names no cluster, or the file
    is not ours; OSError if it can't be read or written.
    """

    def __init__(self, file: Path | None = None, tokens: Iterable[Token] = (), max_days: int = 365) -> None:
        self._file = file
        self._max_days = max_days
        self._lock = threading.Lock()
        self._tokens = {token.sha256: token for token in tokens}
        self._stamp: tuple[int, int] | None = None
        if file is not None and file.exists():
            self._read(file)

    def __len__(self) -> int:
        return len(self._tokens)

    def tokens(self) -> tuple[Token, ...]:
        return tuple(self._tokens.values())

    def issue(
        self, role: Role, client: str, *, at: datetime, days: int = 90, cluster: str | None = None
    ) -> tuple[str, Token]:
        """A new secret, shown once, and what is kept of it."""
        if not client.strip():
            raise TokenError("a token needs the name of its client")
        if role is Role.CONTROLLER and cluster is None:
            raise TokenError(f"controller {client!r} needs the one cluster it acts on: --cluster NAME")
        if not 1 <= days <= self._max_days:
            raise TokenError(f"need 1 <= days <= {self._max_days}, got {days}")
        body = f"rlt_{role}_" + "".join(secrets.choice(_DIGITS) for _ in range(_RANDOM_LENGTH))
        secret = body + checksum(body)
        token = Token(digest(secret), client, role, at, at + timedelta(days=days), cluster)
        with self._lock:
            self._refresh()
            live = sum(held.client == client and held.is_live(at) for held in self._tokens.values())
            if live >= LIVE_PER_CLIENT:
                raise TokenError(f"{client!r} has {live} live tokens, revoke one first")
            self._keep({**self._tokens, token.sha256: token})
        return secret, token

    def revoke(self, sha256: str) -> Token:
        """Errors: TokenError unless exactly one digest begins so."""
        with self._lock:
            self._refresh()
            found = [token for key, token in self._tokens.items() if sha256 and key.startswith(sha256)]
            if len(found) != 1:
                raise TokenError(f"{len(found)} tokens have a digest beginning with {sha256!r}")
            revoked = replace(found[0], is_revoked=True)
            self._keep({**self._tokens, revoked.sha256: revoked})
        return revoked

    def verify(self, secret: str, *, at: datetime) -> Principal | None:
        """The caller, or None if the token is malformed, unknown, revoked or expired."""
        if not is_well_formed(secret):
            return None
        with self._lock:
            self._refresh()
            token = self._tokens.get(digest(secret))
        if token is None or not hmac.compare_digest(token.sha256, digest(secret)) or not token.is_live(at):
            return None
        return Principal(token.client, token.role, token.cluster)

    def _keep(self, tokens: dict[str, Token]) -> None:
        if self._file is not None:
            text = json.dumps({"schema": 1, "tokens": [_stored(t) for t in tokens.values()]}, indent=1)
            fresh = self._file.with_name(self._file.name + ".new")
            fresh.touch(mode=0o600)
            fresh.write_text(text, "utf-8")
            _give_to_owner(fresh, self._file)
            fresh.replace(self._file)
            self._stamp = _stamp(self._file)
        self._tokens = tokens

    def _refresh(self) -> None:
        """Another process (`relight token create`) may have written the file."""
        if self._file is not None and self._file.exists() and _stamp(self._file) != self._stamp:
            self._read(self._file)

    def _read(self, file: Path) -> None:
        stamp = _stamp(file)
        try:
            rows = json.loads(file.read_text("utf-8"))["tokens"]
            self._tokens = {row["sha256"]: _token(row) for row in rows}
        except (ValueError, KeyError, TypeError) as why:
            raise TokenError(f"{file} is not a token file of Relight: {why!r}") from why
        self._stamp = stamp


def _stamp(file: Path) -> tuple[int, int]:
    seen = file.stat()
    return seen.st_mtime_ns, seen.st_ino


def _give_to_owner(fresh: Path, file: Path) -> None:
    """Who may read the file may read the new one, also where root issues a token for a service of its own user."""
    if file.exists():
        kept = file.stat()
        with suppress(PermissionError):
            os.chown(fresh, kept.st_uid, kept.st_gid)


def _stored(token: Token) -> dict[str, object]:
    return {
        **asdict(token),
        "created_at": token.created_at.isoformat(),
        "expires_at": token.expires_at.isoformat(),
    }


def _token(row: dict[str, object]) -> Token:
    return Token(
        sha256=str(row["sha256"]),
        client=str(row["client"]),
        role=Role(str(row["role"])),
        created_at=datetime.fromisoformat(str(row["created_at"])),
        expires_at=datetime.fromisoformat(str(row["expires_at"])),
        cluster=None if row.get("cluster") is None else str(row["cluster"]),
        is_revoked=row.get("is_revoked") is True,
    )
