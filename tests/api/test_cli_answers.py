# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight approve | reject | silence | promotion` against a service that really listens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner, Result

from service import bootstrap
from service.cli import app
from service.config import Audit, Recommend, Server, Settings
from tests.api.running import XID_79


@dataclass
class Site:
    """A service in approve mode, and a person with a token beside it."""

    url: str
    token_file: Path
    token: str

    def run(self, *args: str, stdin: str = "", **environment: str) -> Result:
        known = {"RELIGHT_URL": self.url, "RELIGHT_TOKEN_FILE": str(self.token_file), "USER": "ada"}
        return CliRunner().invoke(app, list(args), input=stdin, env=known | environment)

    def call(self, method: str, path: str, **said: Any) -> dict[str, Any]:
        answer = httpx.request(method, self.url + path, headers={"Authorization": f"Bearer {self.token}"}, **said)
        assert answer.is_success, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def waiting(self, name: str) -> dict[str, Any]:
        """An advice that waits for a person's answer."""
        body = {"workload_id": f"w-{name}", "scheduler": {"kind": "slurm", "job_id": name}, "attempt_index": 0,
                "allocated_nodes": ["n1", "n2"], "requested_nodes": 2, "partition_nodes": 100, "eligible_nodes": 90,
                "requeueable": True, "state": "RUNNING", "observed_at": datetime.now(UTC).isoformat()}  # fmt: skip
        self.call("PUT", f"/v1/attempts/{name}", json=body)
        line = {"attempt_id": name, "file": "kern.log", "number": 1, "stream": "kernel", "node": "n2", "text": XID_79}
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/x-ndjson"}
        assert httpx.post(f"{self.url}/v1/logs/ndjson", content=json.dumps(line), headers=headers).is_success
        ended = body | {"state": "FAILED", "exit_code": 1, "observed_at": datetime.now(UTC).isoformat()}
        self.call("PUT", f"/v1/attempts/{name}", json=ended)
        return self.call("POST", "/v1/recommendations", json={"attempt_id": name, "trigger": "exited"})


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    settings = Settings(
        audit=Audit(path=folder / "audit.duckdb"), server=Server(port=0), recommend=Recommend(mode="approve")
    )
    with bootstrap.running(settings) as running:
        token_file = folder / "ada.token"
        token_file.write_text(running.token + "\n")
        yield Site(running.url, token_file, running.token)


def state(site: Site, advice: dict[str, Any]) -> tuple[str, bool]:
    known = site.call("GET", f"/v1/recommendations/{advice['id']}")
    return known["state"], known["actionable"]


def test_an_approval_shows_what_it_does_and_asks_once_more(site: Site) -> None:
    advice = site.waiting("a-1")
    refused = site.run("approve", advice["id"], stdin="n\n")
    assert refused.exit_code == 5
    assert "restart_excluding without n2, since gpu_fell_off_bus" in refused.stderr
    assert "the scheduler's own rule applies" in refused.stderr
    assert state(site, advice) == ("PROPOSED", False)
    done = site.run("approve", advice["id"], "--note", "seen", stdin="y\n")
    assert (done.exit_code, done.stdout.splitlines()[-1]) == (0, "APPROVED: restart_excluding without n2")
    assert state(site, advice) == ("APPROVED", True)
    (event,) = site.call("GET", "/v1/audit?kind=recommendation.approved")["items"]
    assert (event["event"]["actor"], event["event"]["note"]) == ("ada", "seen")


def test_a_rejection_needs_no_question_where_told_so(site: Site) -> None:
    advice = site.waiting("a-2")
    done = site.run("reject", advice["id"], "--yes", "--actor", "bo", "--json")
    assert (done.exit_code, json.loads(done.stdout)["state"]) == (0, "REJECTED")
    again = site.run("approve", advice["id"], "--yes")
    assert again.exit_code == 5 and "409" in again.stderr


def test_what_cannot_be_reached_or_read_has_its_own_exit_code(site: Site, tmp_path: Path) -> None:
    assert site.run("approve", "no-such", "--yes").exit_code == 5
    assert site.run("approve", "x", "--yes", RELIGHT_URL="http://127.0.0.1:9").exit_code == 4
    assert site.run("approve", "x", "--yes", RELIGHT_TOKEN_FILE=str(tmp_path / "none")).exit_code == 3
    nobody = tmp_path / "wrong"
    nobody.write_text("rlt_admin_wrong")
    assert site.run("approve", "x", "--yes", RELIGHT_TOKEN_FILE=str(nobody)).exit_code == 5
    assert CliRunner().invoke(app, ["approve", "x"], env={"USER": "ada"}).exit_code == 3


def test_a_silence_is_added_listed_and_ended(site: Site) -> None:
    made = site.run("silence", "add", "--workload", "w-9", "--node", "n2", "--for", "2h", "--reason", "bench")
    assert made.exit_code == 0, made.stderr
    name = made.stdout.strip()
    assert "controllers go on" in made.stderr
    listed = site.run("silence", "list").stdout
    assert name in listed and "workload w-9 and node n2" in listed and "(ada: bench)" in listed
    assert "over since" in site.run("silence", "end", name, "--reason", "done").stdout
    assert "nothing is silenced" in site.run("silence", "list").stderr
    assert json.loads(site.run("silence", "list", "--over", "--json").stdout)[0]["ended_by"] == "ada"
    for wrong, code in (
        (("--for", "2h"), 2),
        (("--workload", "w", "--for", "soon"), 2),
        (("--workload", "w", "--for", "31d"), 5),
    ):
        assert site.run("silence", "add", "--reason", "x", *wrong).exit_code == code, wrong


def test_classes_are_shown_and_lowered_and_not_raised_below_the_bar(site: Site) -> None:
    shown = site.run("promotion", "show").stdout
    assert "network            act      held 0 of 0" in shown
    lowered = site.run("promotion", "set", "network", "notify", "--reason", "new fabric")
    assert lowered.exit_code == 0, lowered.stderr
    assert "approve: 0 decided cases, 10 are needed" in lowered.stdout
    refused = site.run("promotion", "set", "network", "approve", "--reason", "hurry")
    assert refused.exit_code == 5
    assert "may not rise to approve: 0 decided cases" in refused.stderr
    known = json.loads(site.run("promotion", "show", "--json").stdout)
    assert next(one for one in known["classes"] if one["class"] == "network")["actor"] == "ada"
