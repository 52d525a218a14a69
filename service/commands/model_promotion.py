# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight models promote`: through a running service, or into the audit log of one that stands still."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from models.artefact import ArtefactRefused
from relight.ports import AuditLog, AuditUnavailable
from service import bootstrap
from service.commands.options import ConfigFile, settings_from
from service.commands.server import DEFAULT_URL, TokenFile, Url, server
from service.config import Settings
from service.model_promotion import candidate, check_contract
from service.model_reports import show_objections
from service.plugins import PluginError
from service.terminal import ExitCode, message, result, stop

StoreFolder = Annotated[
    Path | None, typer.Option("--store", help="Where artefacts are, instead of beside the audit log.")
]


def promote(
    reference: Annotated[str, typer.Argument(help="NAME@VERSION, as in attribution@3.")],
    reason: Annotated[str, typer.Option(help="Why, for the audit log.")],
    actor: Annotated[str | None, typer.Option(help="Who; else whoever runs this command.")] = None,
    store: StoreFolder = None,
    even_if_worse: Annotated[bool, typer.Option("--even-if-worse", help="Despite the objections shown.")] = False,
    url: Url = DEFAULT_URL,
    token_file: TokenFile = None,
    config: ConfigFile = None,
) -> None:
    """Put an artefact into use: recorded in the audit log with who and why. It gives hints and moves no action.

    With a token, the service at --url does it and goes on running; without, the service must be stopped. The way
    back is to promote what was in use before.
    """
    if not reason.strip():
        raise stop("--reason is empty; say why this model is better", ExitCode.USAGE)
    who = actor or _user()
    if token_file is None:
        _promote_in_file(settings_from(config), reference, reason, who, store, even_if_worse)
        return
    if store is not None:
        raise stop("--store is for a service that stands still; the running one knows its own", ExitCode.USAGE)
    body = {"model": reference, "actor": who, "reason": reason, "even_if_worse": even_if_worse}
    told = server(url, token_file).ask("POST", "/v1/models/promotions", body=body).body
    show_objections(told["objections"])
    if told["is_new"]:
        result(f"{told['model']}  {told['digest']}  recorded at {told['position']}, in use")
    else:
        message(f"{reference} is in use already")


def _promote_in_file(
    settings: Settings, reference: str, reason: str, actor: str, store: Path | None, even_if_worse: bool
) -> None:
    shelf = bootstrap.model_store(settings, store)
    with refusals(), audit_of(settings) as log:
        found = candidate(shelf, reference, log)
        if found.is_in_use:
            message(f"{reference} is in use already")
            return
        show_objections(found.objections)
        if found.objections and not even_if_worse:
            raise stop(f"{reference} was not promoted; --even-if-worse does it nevertheless", ExitCode.REFUSED)
        check_contract(shelf, found.sealed)
        (position,) = log.append([found.event(bootstrap.clock().now(), actor, reason)])
    result(f"{reference}  {found.sealed.digest}  recorded at {position}")


@contextmanager
def refusals() -> Iterator[None]:
    """Artefacts that must not be opened end the command with code 6, too few cases with code 2."""
    try:
        yield
    except ArtefactRefused as why:
        raise stop(str(why), ExitCode.INTEGRITY) from why
    except ValueError as why:
        raise stop(str(why), ExitCode.USAGE) from why


@contextmanager
def audit_of(settings: Settings) -> Iterator[AuditLog]:
    """The audit log, closed afterwards; ends with code 4 where it is missing or can't be opened."""
    where = settings.audit.path
    if settings.audit.log == "duckdb" and not where.exists():
        raise stop(f"no audit log at {where}, so nothing can be promoted; set [audit] path", ExitCode.CANNOT_REACH)
    try:
        log = bootstrap.open_audit(settings)
    except PluginError as error:
        raise stop(str(error), ExitCode.CONFIG) from error
    except (RuntimeError, OSError) as error:  # a store refuses its file in its own words
        way_out = "while a service runs, go through it: --token-file FILE (of an author or admin)"
        raise stop(f"audit log: {error}; {way_out}", ExitCode.CANNOT_REACH) from error
    try:
        try:
            yield log
        finally:
            log.close()
    except (AuditUnavailable, OSError) as error:
        raise stop(f"audit log: {error}", ExitCode.CANNOT_REACH) from error


def _user() -> str:
    """By the process, not by the environment, which anyone may set."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"uid {os.getuid()}"
