# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight serve`: the API and the console, until told to stop."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from relight.jsonform import MalformedJson
from rules.problems import RulesInvalid
from service import bootstrap
from service.commands.options import ConfigFile, settings_from
from service.config import ConfigError, Settings
from service.plugins import PluginError
from service.terminal import ExitCode, message, result, stop
from service.tokens import TokenError


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.")] = None,
    print_openapi: Annotated[bool, typer.Option(help="Print the API's description instead.")] = False,
    config: ConfigFile = None,
) -> None:
    """Run the API and the console."""
    if print_openapi:
        result(_openapi())
        return
    settings = settings_from(config, {"server": {"host": host, "port": port}})
    message(f"relight: starting on http://{settings.server.host}:{settings.server.port}")
    try:
        bootstrap.serve(settings)
    except RulesInvalid as invalid:
        for problem in invalid.problems:
            message(str(problem))
        raise stop(f"the rules hold {len(invalid.problems)} problems", ExitCode.CONFIG) from invalid
    except (ConfigError, PluginError, TokenError) as error:
        raise stop(str(error), ExitCode.CONFIG) from error
    except (RuntimeError, MalformedJson, OSError) as error:  # the audit log, or a file of the settings
        raise stop(str(error), ExitCode.CANNOT_REACH) from error


def _openapi() -> str:
    """The description depends on no setting, so an audit log in a folder of its own will do."""
    with tempfile.TemporaryDirectory() as folder:
        app = bootstrap.build_app(Settings.model_validate({"audit": {"path": Path(folder, "audit.duckdb")}}))
        text = json.dumps(app.openapi(), indent=2, ensure_ascii=False)
        app.state.application.journal.audit.close()
    return text
