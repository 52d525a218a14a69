# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A real cluster for the session, where there can be one; elsewhere these tests skip and say why."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from service.bootstrap import open_tokens
from service.config import load_settings
from service.tokens import Role
from tests.slurm.cluster import CannotRun, SlurmCluster, install
from tests.slurm.grounds import a_cluster, acted_upon, advised
from tests.slurm.proof import AdvisorProcess, Proof, end


@pytest.fixture(scope="session")
def cluster(worker_id: str) -> Iterator[SlurmCluster]:
    try:
        install()
    except CannotRun as why:
        pytest.skip(f"NO REAL SLURM HERE: {why}")
    number = int(worker_id.removeprefix("gw") or 0) if worker_id != "master" else 0
    with a_cluster(17_000 + (os.getpid() % 40) * 300 + number * 20_000 % 9_000) as made:
        yield made


@pytest.fixture(scope="module")
def proof(cluster: SlurmCluster) -> Iterator[Proof]:
    with advised(cluster) as made:
        yield made


@pytest.fixture(scope="module")
def apart(cluster: SlurmCluster) -> Iterator[Proof]:
    """Everything in processes of its own, as sites run it: advisor, watchdog, and a controller over SSH."""
    folder = Path(tempfile.mkdtemp(prefix="rlp-"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        advisor = AdvisorProcess(folder=folder, port=listener.getsockname()[1])
    advisor.write_settings()
    secret, _ = open_tokens(load_settings(advisor.settings).settings).issue(
        Role.ADMIN, "proof", at=datetime.now(UTC), days=1
    )
    (folder / "token").write_text(secret)
    advisor.start()
    with httpx.Client(base_url=advisor.url, headers={"Authorization": f"Bearer {secret}"}, timeout=20) as client:
        made = Proof(cluster=cluster, client=client, folder=folder, advisor=advisor)
        ssh = cluster.folder / "ssh"
        controller = made.start_controller(
            "--ssh", f"root@127.0.0.1:{cluster.ssh_port}", "--ssh-key", str(ssh / "client"),
            "--known-hosts", str(ssh / "known_hosts"),
        )  # fmt: skip
        watchdog = made.start_watchdog()
        try:
            yield made
        finally:
            for job_id in list(made._jobs):
                made.cancel(job_id)
            end(controller)
            end(watchdog)
            advisor.stop()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def acting(proof: Proof) -> Iterator[Proof]:
    with acted_upon(proof):
        yield proof
