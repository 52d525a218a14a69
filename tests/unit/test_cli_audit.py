# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The audit log from the command line: a sound chain, a broken one, a missing one, each with its exit code."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import duckdb
import pytest
from typer.testing import CliRunner, Result

from relight.events import ServiceStarted
from service.bootstrap import open_audit
from service.cli import app
from service.config import load_settings


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(f"[audit]\npath = '{tmp_path / 'audit.duckdb'}'\n", "utf-8")
    return file


def started(version: str) -> ServiceStarted:
    raise NotImplementedError


def run(config: Path, *args: str) -> Result:
    return CliRunner().invoke(app, ["audit", *args, "--config", str(config)])
