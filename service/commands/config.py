# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight config`: what is set, and by which layer."""

from __future__ import annotations

import typer

from service.commands.options import AsJson, ConfigFile, loaded_from
from service.terminal import escaped, result, result_json

app = typer.Typer(help="Show the settings and where each came from.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:
    """A callback keeps `show` a sub-command of its own, ready for others beside it."""


@app.command()
def show(as_json: AsJson = False, config: ConfigFile = None) -> None:
    """Print every setting, secrets redacted, with the layer that decided it."""
    rows = loaded_from(config).describe()
    if as_json:
        result_json({row.key: {"value": row.value, "origin": row.origin} for row in rows})
        return
    width = max(len(row.key) for row in rows)
    for row in rows:
        result(f"{row.key:<{width}}  {escaped(row.value)}  ({escaped(row.origin)})")
