# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Who this rank is and where its signals go, read from the environment of the job."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar
from urllib.parse import urlsplit

Value = TypeVar("Value")

_RANK = ("RELIGHT_RANK", "RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK")
_NODE = ("RELIGHT_NODE", "SLURMD_NODENAME", "NODE_NAME")
_OFF = frozenset({"0", "off", "false", "no"})
_IDENTIFIER = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:@/+-]{0,199}")
_NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,252}")
_MAX_RANK = 10_000_000


class SettingsError(ValueError):
    """A setting that can't be used; says which, what it holds, and what would do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where a rank reports and how much it may hold back.

    Units:  seconds, bytes, signals. `timing_interval_s` bounds the rate of step timings: quicker steps
            are sent as the mean of those since the last one; 0 sends every step.
    Errors: SettingsError.
    """

    attempt: str
    rank: int = 0
    node: str | None = None
    cluster: str | None = None
    url: str | None = None
    token_file: Path | None = None
    file: Path | None = None
    queue: int = 4_096
    batch: int = 1_000
    flush_s: float = 1.0
    heartbeat_s: float = 10.0
    timing_interval_s: float = 1.0
    stall_s: float = 60.0
    timeout_s: float = 5.0
    close_s: float = 2.0
    max_file_bytes: int = 64 << 20

    def __post_init__(self) -> None:
        if not _IDENTIFIER.fullmatch(self.attempt):
            raise SettingsError(f"attempt {self.attempt!r} is no identifier; need {_IDENTIFIER.pattern}")
        if self.node is not None and not _NODE_NAME.fullmatch(self.node):
            raise SettingsError(f"node {self.node!r} is no host name; set RELIGHT_NODE")
        if not 0 <= self.rank <= _MAX_RANK:
            raise SettingsError(f"need 0 <= rank <= {_MAX_RANK}, got {self.rank}")
        if (self.url is None) == (self.file is None):
            raise SettingsError(f"need a url or a file, and not both; got url={self.url!r} file={self.file}")
        if self.url is not None and urlsplit(self.url).scheme not in {"http", "https"}:
            raise SettingsError(f"url {self.url!r} must begin with http:// or https://")
        for name in ("flush_s", "heartbeat_s", "timeout_s"):
            if not 0 < getattr(self, name) < 86_400:
                raise SettingsError(f"need 0 < {name} < 86400, got {getattr(self, name)}")
        for name in ("timing_interval_s", "stall_s", "close_s"):
            if not 0 <= getattr(self, name) < 86_400:
                raise SettingsError(f"need 0 <= {name} < 86400, got {getattr(self, name)}")
        if not 1 <= self.batch <= 1_000 or self.queue < 1 or self.max_file_bytes < 1:
            raise SettingsError(
                f"need 1 <= batch <= 1000, queue and max_file_bytes >= 1, "
                f"got {self.batch}, {self.queue} and {self.max_file_bytes}"
            )


def settings_from(environ: Mapping[str, str]) -> Settings | None:
    """What the environment says, or None where it asks for no reports.

    Errors: SettingsError for a value that can't be used.
    """
    url, file = environ.get("RELIGHT_URL") or None, environ.get("RELIGHT_SIGNALS_FILE") or None
    if environ.get("RELIGHT_CLIENT", "").strip().lower() in _OFF or (url is None and file is None):
        return None
    rank = _first(environ, _RANK, "0")
    token = environ.get("RELIGHT_TOKEN_FILE")
    return Settings(
        attempt=environ.get("RELIGHT_ATTEMPT_ID") or _attempt_of_scheduler(environ),
        rank=_number(int, "rank", rank),
        node=_first(environ, _NODE, "") or _host(),
        cluster=environ.get("RELIGHT_CLUSTER_ID") or None,
        url=url,
        token_file=Path(token) if token else None,
        file=_file_of_rank(file, rank) if file else None,
        heartbeat_s=_setting(float, environ, "RELIGHT_HEARTBEAT_S", 10.0),
        timing_interval_s=_setting(float, environ, "RELIGHT_TIMING_INTERVAL_S", 1.0),
        stall_s=_setting(float, environ, "RELIGHT_STALL_S", 60.0),
        flush_s=_setting(float, environ, "RELIGHT_FLUSH_S", 1.0),
        queue=_setting(int, environ, "RELIGHT_QUEUE", 4_096),
    )


def own_settings() -> Settings | None:
    """`settings_from` this process's environment."""
    # The job's environment is not the service's: relight.client shares no configuration with it.
    return settings_from(os.environ)  # noqa: TID251


def _attempt_of_scheduler(environ: Mapping[str, str]) -> str:
    job = environ.get("SLURM_JOB_ID")
    if not job:
        raise SettingsError("no RELIGHT_ATTEMPT_ID and no SLURM_JOB_ID; set RELIGHT_ATTEMPT_ID")
    return f"slurm:{job}:{environ.get('SLURM_RESTART_COUNT', '0')}"


def _file_of_rank(file: str, rank: str) -> Path:
    """Each rank writes a file of its own: two writers could cut each other's lines."""
    return Path(file.replace("{rank}", rank) if "{rank}" in file else f"{file}.rank{rank}")


def _first(environ: Mapping[str, str], names: tuple[str, ...], otherwise: str) -> str:
    return next((environ[name] for name in names if environ.get(name)), otherwise)


def _setting(kind: Callable[[str], Value], environ: Mapping[str, str], name: str, otherwise: Value) -> Value:
    text = environ.get(name)
    return _number(kind, name, text) if text else otherwise


def _number(kind: Callable[[str], Value], name: str, text: str) -> Value:
    try:
        return kind(text)
    except ValueError as why:
        raise SettingsError(f"{name}={text!r} is no number") from why


def _host() -> str | None:
    name = socket.gethostname().partition(".")[0]
    return name if _NODE_NAME.fullmatch(name) else None
