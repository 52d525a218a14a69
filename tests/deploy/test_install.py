# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Image, units and the snippets of the guides: what they promise is what is in them."""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import httpx
import pytest
import yaml
from typer.testing import CliRunner

from service.bootstrap.serving import DRAIN_S, Running, running
from service.cli import app
from service.config import Audit, Server, Settings, load_settings
from tests.deploy.tools import DEPLOY, ROOT, run, tool

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
SNIPPET = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COLLECTORS = SNIPPET.findall((ROOT / "docs" / "collectors.md").read_text())
GUIDE = SNIPPET.findall((ROOT / "docs" / "operators-guide.md").read_text())


# ------------------------------------------------------------------ image


def test_the_image_runs_as_a_number_that_is_not_root_and_installs_by_hash() -> None:
    users = re.findall(r"^USER (\S+)", DOCKERFILE, re.MULTILINE)
    assert users == ["10001:10001"]
    installs = re.findall(r"pip install ([^\n\\]+)", DOCKERFILE)
    assert installs and all("--require-hashes" in one or "--no-deps" in one for one in installs)
    assert "latest" not in DOCKERFILE and "curl" not in DOCKERFILE


def test_the_image_takes_every_package_of_the_tree_and_nothing_else() -> None:
    import tomllib

    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    copied = re.findall(r"^COPY (\w+) \w+$", DOCKERFILE, re.MULTILINE)
    assert sorted(copied) == sorted(packages)
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*" and {f"!{name}" for name in packages} <= set(ignored)


def pins(name: str) -> set[str]:
    return set(re.findall(r"^[\w.-]+==\S+", (ROOT / name).read_text(), re.MULTILINE))


def hashes(name: str) -> set[str]:
    return set(re.findall(r"--hash=\S+", (ROOT / name).read_text()))


@pytest.mark.parametrize("name", ["deploy/requirements.lock", "deploy/build.lock"])
def test_what_is_installed_in_production_is_what_was_tested(name: str) -> None:
    assert pins(name) <= pins("requirements.lock") and hashes(name) <= hashes("requirements.lock")


def test_the_lock_of_production_holds_every_dependency_and_no_tool() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["otel"]]
    names = {re.match(r"[\w.-]+", one)[0].lower() for one in wanted}  # type: ignore[index]
    locked = {one.partition("==")[0].lower() for one in pins("deploy/requirements.lock")}
    assert names <= locked
    assert not locked & {"pytest", "mypy", "ruff", "uv", "hatchling", "torch"}


# ------------------------------------------------------------------ systemd


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(DEPLOY / "systemd" / name)
    return parser


def test_the_unit_has_no_right_that_it_does_not_need() -> None:
    service = unit("relight.service")["Service"]
    assert service["User"] == "relight" and service["NoNewPrivileges"] == "yes"
    assert service["ProtectSystem"] == "strict" and service["CapabilityBoundingSet"] == ""
    assert service["Restart"] == "always" and service["StateDirectory"] == "relight"


def test_a_stop_is_given_longer_than_the_service_drains() -> None:
    assert int(unit("relight.service")["Service"]["TimeoutStopSec"]) > DRAIN_S


def test_systemd_can_read_the_unit() -> None:
    analyze = tool("systemd-analyze", "systemd")
    done = run(analyze, "verify", str(DEPLOY / "systemd" / "relight.service"), check=False)
    complaints = [one for one in done.stderr.splitlines() if "relight.service" in one and "not executable" not in one]
    assert not complaints, complaints


def test_the_settings_shipped_with_the_unit_are_known_ones() -> None:
    settings = load_settings(DEPLOY / "systemd" / "config.toml").settings
    assert settings.recommend.mode == "monitor" and not settings.server.is_loopback
    service = unit("relight.service")["Service"]
    state = Path("/var/lib") / service["StateDirectory"]
    assert settings.audit.path.parent == state, "commands on the machine would not find what the service writes"
    assert service["WorkingDirectory"] == f"%S/{service['StateDirectory']}" and "AUDIT" not in service["Environment"]


# ------------------------------------------------------------------ guides


def test_the_guides_settings_are_known_ones(tmp_path: Path) -> None:
    (text,) = (body for kind, body in GUIDE if kind == "toml")
    (tmp_path / "config.toml").write_text(text)
    channels = load_settings(tmp_path / "config.toml").settings.notify.channels
    assert [one.kind for one in channels] == ["pagerduty", "slack", "webhook", "alertmanager"]


def test_every_path_that_a_guide_names_is_served() -> None:
    from service.api.app import routes

    served = {re.sub(r"\{[^}]+\}", "{}", path) for path, _ in routes()}
    for name in ("collectors.md", "operators-guide.md"):
        text = (ROOT / "docs" / name).read_text()
        for path in set(re.findall(r"`(?:[A-Z]+ )?(/(?:v1|loki)/[\w/{}.-]+)`", text)):
            assert re.sub(r"\{[^}]+\}", "{}", path) in served, f"{name}: {path}"


def test_every_file_that_the_guide_names_is_there() -> None:
    text = (ROOT / "docs" / "operators-guide.md").read_text() + (ROOT / "docs" / "collectors.md").read_text()
    for name in set(re.findall(r"(?<!tests/)\bdeploy/[\w./-]+\w", text)):
        assert (ROOT / name).exists(), name


def test_every_command_of_the_guide_is_known_with_its_options() -> None:
    text = (ROOT / "docs" / "operators-guide.md").read_text()
    found = re.findall(r"(?:^|[`/ ])relight ((?:audit|token|replay|rules|controller|config|serve)\b[^`\n|&#]*)", text)
    assert len(found) >= 8
    for words in ([one for one in command.split() if not one.startswith("$")] for command in found):
        path = list(takewhile(lambda one: re.fullmatch(r"[a-z]+", one), words))[:2]
        path = path[:1] if path[0] in {"replay", "serve"} else path
        told = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
        assert told.exit_code == 0, words
        for option in (one for one in words if one.startswith("--")):
            assert option in told.stdout, f"relight {' '.join(words)}"


@pytest.mark.parametrize("body", [body for kind, body in COLLECTORS if kind == "yaml"], ids=lambda one: one[2:20])
def test_the_snippets_in_yaml_can_be_read(body: str) -> None:
    assert isinstance(yaml.safe_load(body), dict)
    assert "relight:8756" in body or "host: relight" in body


def test_alertmanager_takes_its_snippet(tmp_path: Path) -> None:
    amtool = tool("amtool", "prometheus-alertmanager")
    (body,) = (body for kind, body in COLLECTORS if kind == "yaml" and "webhook_configs" in body)
    (tmp_path / "relight.token").write_text("secret")
    (tmp_path / "alertmanager.yml").write_text(body.replace("/etc/alertmanager", str(tmp_path)))
    run(amtool, "check-config", str(tmp_path / "alertmanager.yml"))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    path = tmp_path_factory.mktemp("service") / "relight.duckdb"
    with running(Settings(audit=Audit(path=path), server=Server(port=0))) as started:
        body = {"workload_id": "w", "scheduler": {"kind": "slurm", "job_id": "4711"}, "state": "RUNNING",
                "observed_at": "2026-11-02T12:00:00Z"}  # fmt: skip
        httpx.put(f"{started.url}/v1/attempts/a-1", json=body, headers=auth(started)).raise_for_status()
        yield started


def auth(service: Running) -> dict[str, str]:
    return {"Authorization": f"Bearer {service.token}"}


@pytest.mark.parametrize("kind", ["sh", "python"])
def test_the_snippets_for_scripts_and_programs_deliver(service: Running, kind: str) -> None:
    (body,) = (body for found, body in COLLECTORS if found == kind and "RELIGHT_URL" in body)
    before = lines(service)
    command = [tool("curl", "curl") and "sh", "-c", body] if kind == "sh" else [sys.executable, "-c", body]
    environment = os.environ | {"RELIGHT_URL": service.url, "RELIGHT_TOKEN": service.token}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert lines(service) == before + 1, done.stdout


def lines(service: Running) -> int:
    said: int = httpx.get(f"{service.url}/v1/attempts/a-1", headers=auth(service)).json()["log_lines"]
    return said
