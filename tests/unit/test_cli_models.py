# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight models` from the command line: train, compare, promote with a reason, and refuse what is worse."""

from __future__ import annotations

import json
import os
import pwd
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from models.attribution_training import VIEWS, rounds, train
from relight.events import ModelPromoted, ServiceStarted
from service import bootstrap
from service.adapters.model_store import ModelStore
from service.cli import app
from service.config import load_settings
from service.model_hints import promotions
from tests.unit.lessons import SMALL, WORDS, lessons

AT = datetime(2026, 1, 1, tzinfo=UTC)
FAILURES = Path(__file__).parents[2] / "datasets" / "failures"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    file = tmp_path / "config.toml"
    file.write_text(f"[audit]\npath = '{tmp_path / 'audit.duckdb'}'\n", "utf-8")
    return file


@pytest.fixture
def shelf(config: Path) -> ModelStore:
    """Three artefacts: a good one, the same again, and one that was taught nonsense; and an audit log."""
    settings = load_settings(config).settings
    log = bootstrap.open_audit(settings)
    log.append([ServiceStarted(at=AT, version="1")])
    log.close()
    store = bootstrap.model_store(settings)
    kinds = list(WORDS)
    nonsense = [
        replace(e, failure_class=kinds[(kinds.index(e.failure_class) + n) % 3]) for n, e in enumerate(lessons())
    ]
    for version, taught in (("1", lessons()), ("2", lessons()), ("3", nonsense)):
        store.save(train(taught, version=version, at=AT, settings=SMALL, views=()))
    return store


def run(config: Path, *args: str) -> Result:
    return CliRunner().invoke(app, ["models", *args, "--config", str(config)])


def recorded(config: Path) -> dict[str, ModelPromoted]:
    log = bootstrap.open_audit(load_settings(config).settings)
    try:
        return promotions(log)
    finally:
        log.close()


def test_a_promotion_is_recorded_with_who_why_what_and_what_before(config: Path, shelf: ModelStore) -> None:
    assert run(config, "promote", "attribution@1", "--reason", "first", "--actor", "ada").exit_code == 0
    assert run(config, "promote", "attribution@2", "--reason", "more cases").exit_code == 0
    event = recorded(config)["attribution"]
    assert (event.version, event.reason) == ("2", "more cases")
    assert event.digest == shelf.find("attribution@2").digest
    assert event.previous == shelf.find("attribution@1").digest
    assert event.actor == pwd.getpwuid(os.getuid()).pw_name
    assert event.metrics["majority_accuracy"] == 0.333


def test_a_promoted_model_is_what_hints_come_from(config: Path, shelf: ModelStore) -> None:
    settings = load_settings(config).settings
    assert "rules alone" in bootstrap.model_hints(settings).reason
    run(config, "promote", "attribution@1", "--reason", "first")
    assert bootstrap.model_hints(settings).reference == "attribution@1"
    shutil.rmtree(shelf.folder)
    assert "rules alone" in bootstrap.model_hints(settings).reason


def test_what_is_worse_is_refused_unless_it_is_wanted_and_then_the_log_says_so(config: Path, shelf: ModelStore) -> None:
    run(config, "promote", "attribution@1", "--reason", "first")
    refused = run(config, "promote", "attribution@3", "--reason", "new")
    assert refused.exit_code == 5
    assert "objection" in refused.stderr
    assert recorded(config)["attribution"].version == "1"
    assert run(config, "promote", "attribution@3", "--reason", "drill", "--even-if-worse").exit_code == 0
    assert recorded(config)["attribution"].metrics["objections"]


def test_promoting_what_is_in_use_records_nothing(config: Path, shelf: ModelStore) -> None:
    run(config, "promote", "attribution@1", "--reason", "first")
    again = run(config, "promote", "attribution@1", "--reason", "second")
    assert (again.exit_code, "already" in again.stderr) == (0, True)
    assert recorded(config)["attribution"].reason == "first"


def test_what_is_unknown_damaged_or_without_a_reason_is_not_promoted(config: Path, shelf: ModelStore) -> None:
    assert run(config, "promote", "attribution@9", "--reason", "x").exit_code == 6
    assert run(config, "promote", "attribution", "--reason", "x").exit_code == 6
    assert run(config, "promote", "attribution@1").exit_code == 2
    assert run(config, "promote", "attribution@1", "--reason", " ").exit_code == 2
    (shelf.folder / shelf.find("attribution@1").digest / "card.md").write_text("better", "utf-8")
    assert run(config, "promote", "attribution@1", "--reason", "x").exit_code == 6
    assert recorded(config) == {}


def test_without_an_audit_log_nothing_is_promoted_and_none_is_made(config: Path, tmp_path: Path) -> None:
    done = run(config, "promote", "attribution@1", "--reason", "x")
    assert (done.exit_code, "no audit log at" in done.stderr) == (4, True)
    assert not (tmp_path / "audit.duckdb").exists()


def test_a_list_shows_which_one_is_in_use(config: Path, shelf: ModelStore) -> None:
    run(config, "promote", "attribution@2", "--reason", "x")
    rows = json.loads(run(config, "list", "--json").stdout)
    assert {row["model"]: row["is_promoted"] for row in rows} == {
        "attribution@1": False, "attribution@2": True, "attribution@3": False,
    }  # fmt: skip
    (in_use,) = [line for line in run(config, "list").stdout.splitlines() if "in use" in line]
    assert "attribution@2" in in_use


def test_a_comparison_ends_with_findings_if_there_are_objections(config: Path, shelf: ModelStore) -> None:
    assert run(config, "compare", "attribution@1", "attribution@2").exit_code == 0
    worse = run(config, "compare", "attribution@1", "attribution@3", "--json")
    assert worse.exit_code == 1
    said = json.loads(worse.stdout)
    assert said["objections"]
    assert said["cases"] < len(lessons()), "cases whose label was changed are not compared"


def test_an_artefact_that_nobody_promoted_is_opened_only_on_demand(
    config: Path, shelf: ModelStore, tmp_path: Path
) -> None:
    cases = tmp_path / "cases"
    for name in ("c0004", "c0005"):
        shutil.copytree(FAILURES / name, cases / name)
    refused = run(config, "evaluate", "attribution@1", "--data", str(cases))
    assert (refused.exit_code, "never promoted" in refused.stderr) == (6, True)
    done = run(config, "evaluate", "attribution@1", "--data", str(cases), "--unpickle", "--json")
    assert done.exit_code == 0
    assert json.loads(done.stdout)["was_taught_these"] is False


def test_folders_without_labels_and_labels_without_a_class_are_usage_errors(config: Path, tmp_path: Path) -> None:
    assert run(config, "train", "--data", str(tmp_path)).exit_code == 2
    shutil.copytree(FAILURES / "c0004", tmp_path / "c0004")
    (tmp_path / "c0004" / "label.json").write_text('{"class": "network"}', "utf-8")
    done = run(config, "train", "--data", str(tmp_path))
    assert (done.exit_code, "class and failure" in done.stderr) == (2, True)


@pytest.mark.slow
def test_training_on_the_shipped_cases_beats_the_commonest_class_and_gets_the_next_number(
    config: Path, shelf: ModelStore
) -> None:
    done = run(config, "train", "--quick", "--json")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    judged = said["metrics"]["unseen_family"]
    assert said["model"] == "attribution@4"
    assert judged["cases"] == 206
    assert judged["accuracy"] >= 0.5 > 2 * judged["majority_accuracy"]
    assert judged["macro_f1"] >= 0.5
    assert judged["top3"] >= 0.8


@pytest.mark.parametrize("views", [(), tuple(VIEWS)])
def test_training_tells_of_every_model_that_it_fits(views: tuple[str, ...]) -> None:
    ticks: list[None] = []
    train(lessons(), version="1", at=AT, settings=SMALL, views=views, done=lambda: ticks.append(None))
    assert len(ticks) == rounds(views)
