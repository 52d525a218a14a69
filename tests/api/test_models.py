# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Models promoted in a running service: checked, recorded, then in use; refused with the reason; and the way back."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import anyio.from_thread
import httpx
import pytest
from typer.testing import CliRunner, Result

from models.attribution_contract import contract_faults
from models.attribution_model import AttributionModel, Hint
from models.attribution_training import train
from relight.events import ModelPromoted
from relight.types import FailureClass
from service import bootstrap
from service.adapters.model_store import ModelStore
from service.cli import app
from service.config import Audit, Server, Settings
from service.rules_store import RuleStore
from service.tokens import Role
from tests.api.running import BrittleAuditLog, Service, start
from tests.unit.lessons import SMALL, WORDS, lessons

MADE = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture(scope="module")
def artefacts() -> list[Any]:
    """Two good ones, one that was taught nonsense, and one with a class that no failure has."""
    kinds = list(WORDS)
    nonsense = [
        replace(e, failure_class=kinds[(kinds.index(e.failure_class) + n) % 3]) for n, e in enumerate(lessons())
    ]
    strange = [replace(e, failure_class=e.failure_class.replace("storage", "witchcraft")) for e in lessons()]
    taught = (lessons(), lessons(4), nonsense, strange)
    return [train(one, version=str(number), at=MADE, settings=SMALL, views=()) for number, one in enumerate(taught, 1)]


class Desk:
    """A service with artefacts beside its audit log, and whoever promotes them."""

    def __init__(
        self, folder: Path, rules: RuleStore, portal: anyio.from_thread.BlockingPortal, artefacts: list[Any]
    ) -> None:
        settings = Settings(audit=Audit(path=folder / "audit.duckdb"))
        self.shelf: ModelStore = bootstrap.model_store(settings)
        for one in artefacts:
            self.shelf.save(one)
        self.audit = BrittleAuditLog()
        self.service: Service = start(rules, portal, audit=self.audit, settings=settings)
        self._parts = (rules, portal, settings)

    def restart(self) -> None:
        rules, portal, settings = self._parts
        self.service = start(rules, portal, audit=self.audit, settings=settings)

    def promote(self, version: int, role: Role = Role.AUTHOR, **over: Any) -> httpx.Response:
        body = {"model": f"attribution@{version}", "actor": "ada", "reason": "more cases"} | over
        return self.service.as_(role).post("/v1/models/promotions", json=body)

    def in_use(self) -> list[str]:
        return [one["model"] for one in self.service.get("/v1/models").json()["items"] if one["is_in_use"]]

    def recorded(self) -> list[ModelPromoted]:
        return [event for event in self.audit.events() if isinstance(event, ModelPromoted)]

    def hint(self) -> dict[str, Any]:
        said: dict[str, Any] = self.service.get("/v1/attempts/a-1/hint").json()
        return said


@pytest.fixture
def desk(
    tmp_path: Path, rules: RuleStore, portal: anyio.from_thread.BlockingPortal, artefacts: list[Any]
) -> Desk:  # fmt: skip
    return Desk(tmp_path, rules, portal, artefacts)


def unexplained(service: Service) -> None:
    """An attempt that fails with lines that no signature knows."""
    service.put_attempt("a-1")
    service.send_lines(
        {"attempt_id": "a-1", "file": "job.out", "number": 1, "at": service.clock.at.isoformat(),
         "text": "device uncorrectable memory fault on board"}
    )  # fmt: skip
    service.put_attempt("a-1", state="FAILED", exit_code=1)


def test_a_promoted_model_speaks_from_then_on_without_a_stop(desk: Desk) -> None:
    unexplained(desk.service)
    assert desk.hint()["reason"] == "no attribution model was promoted: rules alone"
    told = desk.promote(1).json()
    assert (told["is_new"], told["objections"], told["previous"]) == (True, [], None)
    assert (desk.hint()["model"], desk.hint()["class"]) == ("attribution@1", "hardware")
    assert desk.promote(2).json()["previous"] == told["digest"]
    assert (desk.hint()["model"], desk.in_use()) == ("attribution@2", ["attribution@2"])


def test_a_promotion_is_recorded_with_who_why_what_and_what_before_and_outlives_a_restart(desk: Desk) -> None:
    desk.promote(1)
    desk.promote(2, reason="October's cases", actor="grace")
    event = desk.recorded()[-1]
    assert (event.version, event.actor, event.reason, event.previous) == (
        "2", "grace", "October's cases", desk.shelf.find("attribution@1").digest,
    )  # fmt: skip
    desk.restart()
    unexplained(desk.service)
    assert desk.hint()["model"] == "attribution@2"


def test_repeating_a_promotion_changes_nothing(desk: Desk) -> None:
    desk.promote(1)
    again = desk.promote(1, reason="once more")
    assert (again.status_code, again.json()["is_new"], again.json()["reason"]) == (200, False, "more cases")
    assert len(desk.recorded()) == 1


def test_what_its_own_figures_speak_against_is_refused_with_the_reason_unless_it_is_wanted(desk: Desk) -> None:
    desk.promote(1)
    refused = desk.promote(3)
    assert (refused.status_code, refused.json()["code"]) == (409, "worse_model")
    assert "macro-F1 falls" in refused.json()["detail"]
    assert desk.in_use() == ["attribution@1"]
    told = desk.promote(3, even_if_worse=True, reason="a drill").json()
    assert any("macro-F1 falls" in one for one in told["objections"])
    assert desk.recorded()[-1].metrics["objections"] == told["objections"]


def test_the_way_back_is_to_promote_what_was_in_use_before(desk: Desk) -> None:
    desk.promote(2)
    desk.promote(3, even_if_worse=True)
    desk.promote(1)
    back = desk.promote(3, reason="1 says hardware of everything")
    assert back.status_code == 409, "even so what is no better than a constant stays out"
    assert desk.promote(2, reason="back").json()["is_new"] is True
    assert desk.recorded()[-1].metrics["is_way_back"] is True
    assert desk.in_use() == ["attribution@2"]


def test_a_model_that_breaks_its_contract_never_comes_into_use_whatever_is_wanted(desk: Desk) -> None:
    refused = desk.promote(4, even_if_worse=True)
    assert (refused.status_code, refused.json()["code"]) == (409, "model_refused")
    assert "it names class 'witchcraft', which no failure has" in refused.json()["detail"]
    assert (desk.recorded(), desk.in_use()) == ([], [])


def test_an_artefact_that_is_missing_or_was_changed_is_refused(desk: Desk) -> None:
    assert "no attribution@9" in desk.promote(9).json()["detail"]
    (desk.shelf.folder / desk.shelf.find("attribution@1").digest / "card.md").write_text("better", "utf-8")
    refused = desk.promote(1)
    assert (refused.status_code, refused.json()["code"]) == (409, "model_refused")
    assert "card.md has digest" in refused.json()["detail"]
    assert desk.recorded() == []


def test_an_artefact_that_was_lost_and_restored_speaks_again_once_it_is_promoted_again(
    desk: Desk, artefacts: list[Any]
) -> None:
    digest = desk.promote(1).json()["digest"]
    shutil.rmtree(desk.shelf.folder / digest)
    desk.restart()
    unexplained(desk.service)
    assert "rules alone" in desk.hint()["reason"]
    desk.shelf.save(artefacts[0])
    assert desk.promote(1).json()["is_new"] is False
    assert (desk.hint()["model"], len(desk.recorded())) == ("attribution@1", 1)


def test_what_can_not_be_recorded_does_not_come_into_use(desk: Desk) -> None:
    unexplained(desk.service)
    desk.promote(1)
    desk.audit.is_broken = True
    assert desk.promote(2).status_code == 503
    assert desk.hint()["model"] == "attribution@1"


def test_only_who_may_change_models_promotes_them(desk: Desk) -> None:
    for role in (Role.VIEWER, Role.INGESTER, Role.CONTROLLER, Role.OPERATOR):
        assert desk.promote(1, role).status_code == 403, role
    assert desk.promote(1, Role.ADMIN).status_code == 200


def test_a_hint_is_silent_where_the_rules_name_the_cause(desk: Desk) -> None:
    desk.promote(1)
    desk.service.crash("a-1")
    said = desk.hint()
    assert (said["model"], said["reason"]) == (None, "the rules name the cause: gpu_fell_off_bus")


def test_the_command_promotes_through_a_running_service(tmp_path: Path, artefacts: list[Any]) -> None:
    settings = Settings(audit=Audit(path=tmp_path / "audit.duckdb"), server=Server(port=0))
    shelf = bootstrap.model_store(settings)
    for one in artefacts:
        shelf.save(one)
    config, secret = tmp_path / "config.toml", tmp_path / "token"
    config.write_text(f"[audit]\npath = '{settings.audit.path}'\n", "utf-8")
    with bootstrap.running(settings) as service:
        secret.write_text(service.token, "ascii")

        def promote(version: int, *more: str) -> Result:
            words = ["models", "promote", f"attribution@{version}", "--reason", "why", "--config", str(config), *more]
            return CliRunner().invoke(app, words)

        through = ("--url", service.url, "--token-file", str(secret))
        held = promote(1)
        assert (held.exit_code, "--token-file" in held.stderr) == (4, True), "the service holds the log for itself"
        done = promote(1, *through)
        assert (done.exit_code, "recorded at" in done.stdout) == (0, True), done.output
        assert "in use already" in promote(1, *through).stderr
        refused = promote(3, *through)
        assert (refused.exit_code, "macro-F1 falls" in refused.stderr) == (5, True)
        forced = promote(3, "--even-if-worse", *through)
        assert (forced.exit_code, "objection: macro-F1 falls" in forced.stderr) == (0, True)
        assert promote(2, "--store", str(tmp_path), *through).exit_code == 2


class Odd(AttributionModel):
    """A model that answers whatever a test says."""

    def __init__(self, *answers: list[Hint]) -> None:
        self._answers = list(answers)

    def hints(self, asked: Any, **_: Any) -> list[Hint]:
        if not self._answers:
            raise ValueError("no idea")
        return self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]


def hint(*classes: tuple[str, float]) -> Hint:
    return Hint(
        model="m", failure_class=classes[0][0], confidence=classes[0][1], is_confident=False, classes=classes, failures=()
    )  # fmt: skip


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Odd([hint(("hardware", 0.7))] * 4), None),
        (Odd(), "it fails on a probe: ValueError('no idea')"),
        (Odd([hint(("hardware", 0.7))]), "it gives 1 answers to 4 probes"),
        (Odd([hint(("hardware", 0.7))] * 4, [hint(("network", 0.7))] * 4), "it answers the same question in two ways"),
        (Odd([hint(("luck", 0.7))] * 4), "it names class 'luck', which no failure has"),
        (Odd([hint(("hardware", 1.7))] * 4), "a probability is not between 0 and 1: [1.7]"),
        (Odd([hint(("hardware", float("nan")))] * 4), "a probability is not between 0 and 1: [nan]"),
        (Odd([hint(("hardware", 0.7), ("network", 0.6))] * 4), "probabilities of its classes add up to 1.300"),
        (
            Odd([replace(hint(("hardware", 0.7)), failure_class="network")] * 4),
            "its guess is not the likeliest of its classes",
        ),
    ],
)
def test_the_contract_names_what_is_odd(model: Odd, said: str | None) -> None:
    faults = contract_faults(model, set(FailureClass))
    assert faults == () if said is None else said in faults
