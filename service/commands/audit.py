# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight audit`: prove that the audit log is whole, export it, back it up, read its end."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from relight.events import to_json
from relight.jsonform import MalformedJson
from relight.ports import AuditFilter, AuditLog, AuditUnavailable, Head, StoredEvent
from service import bootstrap
from service.commands import audit_backup
from service.commands.options import AsJson, ConfigFile, settings_from
from service.plugins import PluginError
from service.terminal import ExitCode, escaped, message, result, result_json, stop

app = typer.Typer(help="Verify, export, back up and read the audit log.", no_args_is_help=True, rich_markup_mode=None)
app.command()(audit_backup.backup)
app.command()(audit_backup.restore)
_ANCHOR = re.compile(r"(\d+):([0-9a-f]{64})")
Kind = Annotated[list[str] | None, typer.Option("--kind", help="Only events of this kind; repeatable.")]


@app.command()
def verify(
    anchor: Annotated[
        str | None, typer.Option(help="POSITION:HASH remembered outside; shows a tail that was cut off.")
    ] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Walk the hash chain from the first event to the last."""
    remembered = _head(anchor)
    with _opened(config) as log:
        found = log.verify(remembered)
    broken = found.broken
    if as_json:
        result_json(
            {
                "is_sound": found.is_sound,
                "events": found.events,
                "head": f"{found.head.position}:{found.head.hash}",
                "broken": None
                if broken is None
                else {"position": broken.position, "reason": broken.reason,
                      "expected": broken.expected, "found": broken.found},
            }
        )  # fmt: skip
    elif broken is None:
        result(f"sound: {found.events} events, head {found.head.position}:{found.head.hash}")
    else:
        result(f"BROKEN at {broken.position}: {escaped(broken.reason)}; {found.events} events before it are sound")
        result(f"  expected {escaped(broken.expected)}")
        result(f"  found    {escaped(broken.found)}")
    raise typer.Exit(ExitCode.OK if found.is_sound else ExitCode.INTEGRITY)


@app.command()
def export(
    folder: Annotated[Path, typer.Argument(help="Where to write the Parquet file.")],
    kinds: Kind = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Write the events to a Parquet file."""
    with _opened(config) as log:
        done = log.export(str(folder), AuditFilter(kinds=tuple(kinds or ())))
    if as_json:
        head = f"{done.head.position}:{done.head.hash}"
        result_json({"path": done.path, "events": done.events, "first": done.first, "last": done.last, "head": head})
    else:
        result(done.path)
        message(f"{done.events} events, head {done.head.position}:{done.head.hash}")


@app.command()
def tail(
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=10_000, help="How many events.")] = 20,
    kinds: Kind = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Print the last events, the newest last."""
    with _opened(config) as log:
        rows = _last(log, limit, AuditFilter(kinds=tuple(kinds or ())))
    for row in rows:
        body = to_json(row.event)
        if as_json:
            result(json.dumps({"position": row.position, "hash": row.hash, "event": body}, ensure_ascii=False))
        else:
            result(f"{row.position}  {escaped(json.dumps(body, ensure_ascii=False))}")
    if not rows:
        message("no events")


def _last(log: AuditLog, limit: int, where: AuditFilter) -> list[StoredEvent]:
    """Read backwards in growing windows: the events that fit a filter may stand far apart."""
    head, window = log.head().position, limit
    while True:
        after = max(0, head - window)
        rows = list(_after(log, after, where))
        if len(rows) >= limit or after == 0:
            return rows[-limit:]
        window *= 4


def _after(log: AuditLog, after: int, where: AuditFilter) -> Iterator[StoredEvent]:
    while rows := log.read(after, 1000, where):
        yield from rows
        after = rows[-1].position


@contextmanager
def _opened(config: Path | None) -> Iterator[AuditLog]:
    """The audit log of the settings, closed afterwards; ends with code 4 where it can't be opened or read."""
    settings = settings_from(config)
    where = settings.audit.path
    if settings.audit.log == "duckdb" and not where.exists():  # opening would make an empty, sound log
        raise stop(f"no audit log at {where}; set [audit] path", ExitCode.CANNOT_REACH)
    try:
        log = bootstrap.open_audit(settings)
    except PluginError as error:
        raise stop(str(error), ExitCode.CONFIG) from error
    except (RuntimeError, OSError) as error:  # a store refuses its file in its own words
        raise _unreachable(error) from error
    try:
        try:
            yield log
        finally:
            log.close()
    except (AuditUnavailable, MalformedJson, OSError) as error:
        raise _unreachable(error) from error


def _unreachable(error: Exception) -> typer.Exit:
    return stop(f"audit log: {error}; while a server runs, ask it instead", ExitCode.CANNOT_REACH)


def _head(anchor: str | None) -> Head | None:
    if anchor is None:
        return None
    found = _ANCHOR.fullmatch(anchor)
    if found is None:
        raise stop(f"anchor {anchor!r}: need POSITION:HASH with 64 hex digits", ExitCode.USAGE)
    return Head(position=int(found[1]), hash=found[2])
