# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A cluster and an advisor for as long as a block runs; for tests and for the benchmark."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from service.bootstrap import running
from service.config import Settings
from tests.slurm.cluster import SlurmCluster
from tests.slurm.policy_words import lift_limits
from tests.slurm.proof import Proof, end


@contextmanager
def a_cluster(base_port: int) -> Iterator[SlurmCluster]:
    """Four nodes. Errors: Broken."""
    folder = Path(tempfile.mkdtemp(prefix="rls-"))  # short: the names of UNIX sockets are
    made = SlurmCluster(folder=folder, base_port=base_port)
    try:
        made.start()
        yield made
    finally:
        made.stop()


@contextmanager
def advised(cluster: SlurmCluster) -> Iterator[Proof]:
    """An advisor in act mode in this process, and a collector that ships what jobs print.

    Its breaker is off: one rank after another is killed here, which elsewhere would be one cause for many jobs.
    """
    folder = Path(tempfile.mkdtemp(prefix="rlp-"))
    settings = Settings.model_validate(
        {"audit": {"path": str(folder / "audit.duckdb")}, "server": {"port": 0}, "recommend": {"mode": "act"}}
    )
    with running(settings) as service:
        (folder / "token").write_text(service.token)
        headers = {"Authorization": f"Bearer {service.token}"}
        with httpx.Client(base_url=service.url, headers=headers, timeout=20) as client:
            lift_limits(client)
            made = Proof(cluster=cluster, client=client, folder=folder)
            with made.shipping():
                yield made
            for job_id in list(made._jobs):
                made.cancel(job_id)
    shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def acted_upon(proof: Proof) -> Iterator[Proof]:
    """A controller and a watchdog as processes of their own."""
    controller, watchdog = proof.start_controller(), proof.start_watchdog()
    try:
        yield proof
    finally:
        end(controller)
        end(watchdog)
