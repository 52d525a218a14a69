# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight audit backup` and `restore`: a service's data out of a running service, and into a fresh machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from relight.ports import AuditUnavailable
from service.backup import BackupDamaged, BackupRefused, BackupUnreachable
from service.bootstrap import keeping
from service.commands.options import AsJson, ConfigFile, settings_from
from service.config import Settings
from service.plugins import PluginError
from service.terminal import ExitCode, message, result, result_json, stop


def backup(
    folder: Annotated[Path, typer.Argument(help="Where to write the backup; must not exist.")],
    url: Annotated[
        str, typer.Option(help="The running service; without it the file is read, which it must not be.")
    ] = "",
    token_file: Annotated[Path | None, typer.Option(help="File with a viewer's token, for --url.")] = None,
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Write the whole record and what stands beside it, proved, while the service runs."""
    settings = _duckdb(settings_from(config))
    if bool(url) != (token_file is not None):
        raise stop("give --url and --token-file together", ExitCode.USAGE)
    if not url and not settings.audit.path.exists():
        raise stop(f"no audit log at {settings.audit.path}; set [audit] path, or give --url", ExitCode.CANNOT_REACH)
    try:
        token = token_file.read_text("ascii").strip() if token_file is not None else ""
        done = keeping.back_up(settings, folder, url, token)
    except BackupDamaged as why:
        raise stop(str(why), ExitCode.INTEGRITY) from why
    except BackupRefused as why:
        raise stop(str(why), ExitCode.REFUSED) from why
    except FileExistsError as why:
        raise stop(str(why), ExitCode.USAGE) from why
    except (BackupUnreachable, AuditUnavailable, OSError, ValueError) as why:
        raise stop(str(why), ExitCode.CANNOT_REACH) from why
    except RuntimeError as why:  # a store refuses its file in its own words
        hint = "; while the service runs: --url http://127.0.0.1:8756 --token-file FILE"
        raise stop(f"{why}{hint}", ExitCode.CANNOT_REACH) from why
    head = f"{done.position}:{done.hash}"
    if as_json:
        result_json({"path": str(folder), "events": done.position, "head": head, "files": sorted(done.files)})
    else:
        result(str(folder))
        message(f"{done.position} events, head {head}, {len(done.files)} files")


def restore(
    folder: Annotated[Path, typer.Argument(help="A backup, as `relight audit backup` wrote it.")],
    as_json: AsJson = False,
    config: ConfigFile = None,
) -> None:
    """Make the service's data from a backup, where there are none yet; every link of the chain is proved."""
    settings = _duckdb(settings_from(config))
    try:
        head, beside = keeping.restore(settings, folder)
    except BackupDamaged as why:
        raise stop(str(why), ExitCode.INTEGRITY) from why
    except (OSError, RuntimeError, PluginError) as why:
        raise stop(str(why), ExitCode.CANNOT_REACH) from why
    said = f"{head.position}:{head.hash}"
    if as_json:
        result_json({"path": str(settings.audit.path), "events": head.position, "head": said, "beside": list(beside)})
    else:
        result(str(settings.audit.path))
        message(f"{head.position} events, head {said}, beside it: {', '.join(beside) or 'nothing'}")


def _duckdb(settings: Settings) -> Settings:
    if settings.audit.log != "duckdb":
        raise stop(f"[audit] log is {settings.audit.log!r}; back it up by its own means", ExitCode.CONFIG)
    return settings
