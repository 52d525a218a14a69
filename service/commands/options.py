# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Options that several commands share, and the settings they lead to."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from service.config import ConfigError, Loaded, Settings, load_settings
from service.terminal import ExitCode, stop

AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Configuration file instead of /etc/relight/config.toml.")
]
Flags = Mapping[str, Mapping[str, Any]]


def loaded_from(config: Path | None, flags: Flags | None = None) -> Loaded:
    """Settings with their origins; ends the command with code 3 where they are at fault."""
    try:
        return load_settings(config, flags)
    except ConfigError as error:
        raise stop(str(error), ExitCode.CONFIG) from error


def settings_from(config: Path | None, flags: Flags | None = None) -> Settings:
    return loaded_from(config, flags).settings
