# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Thousands of requests made from the API's own description, right and wrong ones, against a running service.

Runs with `make test-api-fuzz` only. What is checked: nothing answers 5xx, every answer fits its description, no
route that asks for a token answers without one. Which requests are refused is for the other tests: several rules
(If-Match, cursors that are ours) can't be told in a schema.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from service.bootstrap import running
from service.config import Settings

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance",
    "ignored_auth",
)  # fmt: skip
SECONDS = int(os.environ.get("RELIGHT_FUZZ_SECONDS", "60"))


@pytest.mark.fuzz
def test_no_request_breaks_the_service_or_its_description(tmp_path: Path) -> None:
    settings = Settings.model_validate(
        # A long poll is an answer that takes its time; the fuzzer would call it a dead server.
        {"audit": {"path": str(tmp_path / "audit.duckdb")}, "server": {"port": 0, "max_wait_s": 1}}
    )
    description = tmp_path / "openapi.json"
    printed = subprocess.run(
        [str(Path(sys.executable).with_name("relight")), "serve", "--print-openapi"], capture_output=True, check=True
    )
    description.write_bytes(printed.stdout)
    operations = sum(len(path) for path in json.loads(printed.stdout)["paths"].values())
    with running(settings) as service:
        report = tmp_path / "report.log"
        with report.open("wb") as said:
            ended = subprocess.run(
                [
                    str(Path(sys.executable).with_name("st")), "run", str(description), "--url", service.url,
                    "-H", f"Authorization: Bearer {service.token}", "--checks", ",".join(CHECKS),
                    "--phases", "coverage,fuzzing", "--max-time", str(SECONDS), "--continue-on-failure",
                    "--exclude-path", "/v1/logs/ndjson", "--warnings", "off", "--generation-database", "none",
                ],
                stdout=said, stderr=subprocess.STDOUT, cwd=tmp_path, timeout=SECONDS * 4 + 120, check=False,
            )  # fmt: skip
        alive = httpx.get(f"{service.url}/livez", timeout=10)
    lines = [line[:300] for line in report.read_text(errors="replace").splitlines()]
    assert ended.returncode == 0, "\n".join(lines[-200:])
    assert alive.status_code == 200
    made = [int(found[1]) for line in lines if (found := re.search(r"(\d+) generated", line))]
    assert operations > 30 and made[0] > 10 * operations
