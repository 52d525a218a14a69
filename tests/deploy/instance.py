# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Relight as its operator has it: a folder of data, commands in processes of their own, a service on a port."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from typer.testing import CliRunner

from service.cli import app
from tests.deploy.tools import ROOT

XID_79 = "NVRM: Xid (PCI:0000:1a:00): 79, pid=4242, name=python, GPU has fallen off the bus."


@dataclass
class Instance:
    """One machine's installation: `tree` is the version of the code, `folder` the data."""

    folder: Path
    tree: Path = ROOT
    port: int = 0
    token: str = ""
    extra: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder.mkdir(exist_ok=True)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def audit(self) -> Path:
        return self.folder / "relight.duckdb"

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "PYTHONPATH": str(self.tree),
            "RELIGHT__AUDIT__PATH": str(self.audit),
            "RELIGHT__AUTH__TOKENS_FILE": str(self.folder.parent / "tokens.json"),
            "RELIGHT__SERVER__PORT": str(self.port),
            "RELIGHT__RECOMMEND__MODE": "act",
            **self.extra,
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-c", "from service.cli import main; main()", *words]

    def cli(self, *words: str) -> subprocess.CompletedProcess[str]:
        """One command; in this process where it is this version, which is much quicker."""
        if self.tree != ROOT:
            return subprocess.run(self.command(*words), env=self.environment(), cwd=self.tree, capture_output=True,
                                  text=True, timeout=120)  # fmt: skip
        done = CliRunner().invoke(app, list(words), env=self.environment())
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)

    def new_token(self, client: str, *words: str) -> str:
        made = self.cli("token", "new", client, *words)
        assert made.returncode == 0, made.stderr
        return made.stdout.strip()

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The service as a process, ready when the block begins, told to stop at its end."""
        self.token = self.token or self.new_token(f"ada-{self.port}", "--role", "admin")
        process = subprocess.Popen(self.command("serve"), env=self.environment(), cwd=self.tree,
                                   stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        self._wait(process)
        try:
            yield
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said

    def _wait(self, process: subprocess.Popen[str]) -> None:
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if httpx.get(f"{self.url}/readyz", timeout=2).status_code == 200:
                    return
            except httpx.TransportError:
                time.sleep(0.05)
        process.kill()
        raise AssertionError(f"not ready: {process.communicate()[0][-3000:]}")

    def ask(self, method: str, path: str, **said: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **said.pop("headers", {})}
        return httpx.request(method, self.url + path, headers=headers, timeout=30, **said)

    def told(self, path: str) -> Any:
        answer = self.ask("GET", path)
        assert answer.status_code == 200, answer.text
        return answer.json()

    # ---------------------------------------------------------- the usual story

    def put_attempt(self, name: str, **over: Any) -> int:
        body = {
            "workload_id": f"w-{name}", "scheduler": {"kind": "slurm", "job_id": "4711"}, "attempt_index": 0,
            "partition": "gpu", "allocated_nodes": ["n1", "n2", "n3", "n4"], "requested_nodes": 4,
            "partition_nodes": 100, "eligible_nodes": 90, "requeueable": True, "state": "RUNNING",
            "observed_at": datetime.now(UTC).isoformat(),
        } | over  # fmt: skip
        return self.ask("PUT", f"/v1/attempts/{name}", json=body).status_code

    def crash(self, name: str, node: str) -> dict[str, Any]:
        """A GPU of `node` falls off the bus, the attempt fails, and advice is asked for."""
        self.put_attempt(name)
        line = {"attempt_id": name, "file": "kern.log", "number": 1, "stream": "kernel", "node": node,
                "at": datetime.now(UTC).isoformat(), "text": XID_79}  # fmt: skip
        sent = self.ask("POST", "/v1/logs/ndjson", json=line, headers={"Content-Type": "application/x-ndjson"})
        assert sent.status_code == 200, sent.text
        self.put_attempt(name, state="FAILED", exit_code=1)
        advice: dict[str, Any] = self.ask(
            "POST", "/v1/recommendations", json={"attempt_id": name, "trigger": "exited"}
        ).json()  # fmt: skip
        return advice

    def claim(self, advice: Mapping[str, Any]) -> dict[str, Any]:
        body = {"controller_id": "c-1", "observed_generation": advice["generation"], "lease_s": 600}
        answer = self.ask("POST", f"/v1/recommendations/{advice['id']}/claim", json=body)
        assert answer.status_code == 200, answer.text
        lease: dict[str, Any] = answer.json()
        return lease

    def converge(self, advice: Mapping[str, Any], token: str) -> httpx.Response:
        body = {"observed_generation": advice["generation"], "disposition": "CONVERGED",
                "reason": "desired_state_observed", "observation": {"job_state": "PENDING"},
                "claim_token": token}  # fmt: skip
        return self.ask("PUT", f"/v1/recommendations/{advice['id']}/reconciliation", json=body)
