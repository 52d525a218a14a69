# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The demo is a promise: every case of its story, through a service that really listens."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from service.cli import app
from service.demo import STORY
from service.demo_fleet import Fleet
from service.demo_plan import WANTED
from service.terminal import ExitCode


def test_the_demo_reaches_every_verdict_and_an_audit_log_that_verifies() -> None:
    said = CliRunner().invoke(app, ["demo", "--no-wait"])
    assert said.exit_code == 0, said.stderr
    assert re.search(r"stopped at step \d+, confirmed \d+\.\d s later: hang: .* rank 1\b", said.stderr)
    assert f"all {len(STORY)} verdicts are as expected" in said.stderr
    assert "the audit log verifies" in said.stderr
    assert f"all {len(WANTED)} expected incidents are there" in said.stderr


def test_a_missing_incident_is_named_and_fails_the_demo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fleet, "play", lambda _: None)
    said = CliRunner().invoke(app, ["demo", "--no-wait"])
    assert said.exit_code == ExitCode.FINDINGS
    assert all(f"missing: {one}" in said.stderr for one in WANTED)
