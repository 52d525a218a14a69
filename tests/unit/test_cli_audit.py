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


def run(config: Path, *args: str) -> Result:
    return CliRunner().invoke(app, ["audit", *args, "--config", str(config)])


@pytest.fixture
def recorded(config: Path) -> Path:
    log = open_audit(load_settings(config).settings)
    at = datetime(2026, 1, 2, tzinfo=UTC)
    log.append([ServiceStarted(at=at, version=f"1.{n}", actor="\x1b[31mme") for n in range(5)])
    log.close()
    return config


def test_a_sound_chain_is_told_with_its_head(recorded: Path) -> None:
    done = run(recorded, "verify", "--json")
    said = json.loads(done.stdout)
    assert (done.exit_code, said["is_sound"], said["events"]) == (0, True, 5)
    assert run(recorded, "verify", "--anchor", said["head"]).exit_code == 0


def test_a_head_remembered_elsewhere_shows_that_the_tail_was_cut(recorded: Path) -> None:
    done = run(recorded, "verify", "--anchor", "6:" + "0" * 64)
    assert done.exit_code == 6
    assert "BROKEN" in done.stdout


def test_a_changed_event_breaks_the_chain_with_an_exit_code_of_its_own(recorded: Path, tmp_path: Path) -> None:
    with duckdb.connect(str(tmp_path / "audit.duckdb")) as file:
        file.execute("UPDATE event SET payload = replace(payload, '1.2', '9.9') WHERE position = 3")
    done = run(recorded, "verify")
    assert done.exit_code == 6
    assert "BROKEN at 3" in done.stdout


def test_a_log_that_is_not_there_is_unreachable_and_is_not_made(config: Path, tmp_path: Path) -> None:
    done = run(config, "verify")
    assert done.exit_code == 4
    assert "no audit log at" in done.stderr
    assert not (tmp_path / "audit.duckdb").exists()


def test_a_log_held_by_another_is_unreachable(recorded: Path) -> None:
    held = open_audit(load_settings(recorded).settings)
    done = run(recorded, "verify")
    held.close()
    assert done.exit_code == 4
    assert "while a server runs, ask it instead" in done.stderr


def test_the_tail_is_the_newest_last_with_control_characters_as_codes(recorded: Path) -> None:
    done = run(recorded, "tail", "-n", "2")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["4", "5"]
    assert "\x1b" not in done.stdout
    rows = [json.loads(line) for line in run(recorded, "tail", "-n", "2", "--json").stdout.splitlines()]
    assert [row["event"]["version"] for row in rows] == ["1.3", "1.4"]
    assert run(recorded, "tail", "--kind", "mode.changed").stderr == "no events\n"


def test_an_export_prints_where_it_wrote(recorded: Path, tmp_path: Path) -> None:
    done = run(recorded, "export", str(tmp_path))
    assert done.exit_code == 0
    assert Path(done.stdout.strip()).is_file()


@pytest.mark.parametrize("anchor", ["5", "5:abc", "x:" + "0" * 64])
def test_a_malformed_anchor_is_a_usage_error(recorded: Path, anchor: str) -> None:
    assert run(recorded, "verify", "--anchor", anchor).exit_code == 2
