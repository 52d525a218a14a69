# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight version`: which release this is, and on what it runs."""

from __future__ import annotations

import platform
from importlib.metadata import version as installed_version
from typing import Annotated

import typer

from service.terminal import result, result_json


def version(as_json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Print the version."""
    ours, python = installed_version("relight"), platform.python_version()
    if as_json:
        result_json({"relight": ours, "python": python})
    else:
        result(f"relight {ours} (Python {python})")
