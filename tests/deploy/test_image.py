# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The image, built and run: no rights, nothing writable but the volume, and a record that outlives it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.trace_receiver import collecting
from tests.deploy.image_tools import LIMITS, LOCKED, UID, Container, built, podman, running

pytestmark = [pytest.mark.image, pytest.mark.slow]
MAX_BYTES = 900_000_000


@pytest.fixture(scope="module")
def image() -> str:
    return built()


@pytest.fixture(scope="module")
def service(image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    with running(image, tmp_path_factory.mktemp("image") / "data", 18_756) as container:
        yield container


def test_it_answers_the_probes_with_a_read_only_root(service: Container) -> None:
    assert service.get("/livez").json()["status"] == "ok"
    assert service.get("/readyz").json()["is_ready"]
    refused = service.sh("touch /opt/relight/x /etc/x /x")
    assert refused.returncode and refused.stderr.count("Read-only file system") == 3


def test_it_runs_as_a_number_without_a_right(service: Container) -> None:
    said = dict(line.split(":", 1) for line in service.sh("cat /proc/1/status").stdout.splitlines() if ":" in line)
    assert said["Uid"].split() == [str(UID)] * 4 and said["Gid"].split() == [str(UID)] * 4
    assert {int(said[name], 16) for name in ("CapPrm", "CapEff", "CapBnd", "CapInh", "CapAmb")} == {0}
    assert said["NoNewPrivs"].strip() == "1"


def test_the_audit_log_is_written_to_the_volume(service: Container) -> None:
    before = service.get("/v1/stats").json()["audit_position"]
    assert before > 0
    assert (service.volume / "relight.duckdb").stat().st_uid == UID
    assert (service.volume / "relight.duckdb.head").read_text().startswith(f"{before:020} ")


def test_the_console_and_its_files_are_in_the_image(service: Container) -> None:
    assert "Relight" in service.get("/console/login").text
    assert service.sh("relight rules lint").returncode == 0


def test_what_only_builds_and_installs_is_not_in_the_image(service: Container) -> None:
    found = service.sh("cd /opt/relight/bin && ls pip uv hatchling pytest; python -c 'import pytest'")
    assert not found.stdout and "No module named 'pytest'" in found.stderr


def test_the_health_check_of_the_image_holds(image: str, service: Container) -> None:
    said = json.loads(podman("image", "inspect", image).stdout)[0]
    words = (said.get("HealthCheck") or said["Healthcheck"])["Test"]
    assert words[0] == "CMD"
    command = ["env", "-i", "/opt/relight/bin/python", *words[2:]]
    command[-1] = command[-1].replace(":8756", ":18756")
    assert podman("exec", service.name, *command, check=False).returncode == 0


def test_a_stop_is_clean_and_what_was_recorded_is_there_at_the_next_start(image: str, tmp_path: Path) -> None:
    with running(image, tmp_path / "data", 18_757) as first:
        head = first.get("/v1/stats").json()["audit_position"]
        took, code = first.stop()
    assert code == 0 and took < 25
    with running(image, tmp_path / "data", 18_757) as second:
        assert second.get("/v1/stats").json()["audit_position"] > head
        second.stop()
    said = podman("run", "--rm", *LOCKED, *LIMITS, "-v", f"{tmp_path}/data:/var/lib/relight", image, "audit", "verify")
    assert said.stdout.startswith("sound: ")


def test_traces_can_be_switched_on_without_installing_anything(image: str, tmp_path: Path) -> None:
    with (
        collecting() as collector,
        running(image, tmp_path / "data", 18_758, RELIGHT__TRACING__ENDPOINT=collector.url) as container,
    ):
        assert "relight_trace_spans" in container.get("/metrics").text


def test_an_address_for_all_without_a_token_is_refused_with_the_way_out(image: str) -> None:
    done = podman("run", "--rm", *LOCKED, *LIMITS, image, check=False)
    assert done.returncode == 3 and "relight token new" in done.stderr


def test_its_size_is_bounded_and_told(image: str, record_property: pytest.FixtureRequest) -> None:
    size = int(podman("image", "inspect", image, "--format", "{{.Size}}").stdout)
    record_property("image_bytes", size)  # type: ignore[operator]
    print(f"image: {size / 1e6:.0f} MB")
    assert size < MAX_BYTES
