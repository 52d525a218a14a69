# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""The real Slurm keeps the contract that the fake one keeps, on this host and over SSH."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controllers.slurm.command_line import SlurmCommandLine
from controllers.slurm.runners import LocalRunner, Runner, SshRunner
from relight.jobs import BatchScheduler, SchedulerRefused, SchedulerUnreachable
from relight.testing.scheduler import BatchSchedulerContract
from tests.slurm.cluster import SlurmCluster

pytestmark = pytest.mark.slurm


class OnRealSlurm(BatchSchedulerContract):
    @pytest.fixture(autouse=True)
    def reach(self, cluster: SlurmCluster, tmp_path: Path) -> Iterator[None]:
        self._cluster, self._folder, self._jobs = cluster, tmp_path, list[str]()
        self._slurm = SlurmCommandLine(runner=self.runner(cluster))
        yield
        for job_id in self._jobs:
            cluster.client("scancel", job_id, check=False)

    def runner(self, cluster: SlurmCluster) -> Runner:
        raise NotImplementedError

    def scheduler(self) -> BatchScheduler:
        return self._slurm

    def now(self) -> datetime:
        return datetime.now(UTC)

    def submit(self, *, nodes: int = 1, requeueable: bool = True, exclude: tuple[str, ...] = ()) -> str:
        said = self._cluster.client(
            "sbatch", "--parsable", f"-N{nodes}", "-o", "/dev/null", "--requeue" if requeueable else "--no-requeue",
            *([f"--exclude={','.join(exclude)}"] if exclude else []), "--wrap",
            f"while [ ! -e {self._folder}/end-$SLURM_JOB_ID ]; do sleep 0.1; done; rm {self._folder}/end-$SLURM_JOB_ID; exit 3",
        )  # fmt: skip
        self._jobs.append(said.strip())
        return said.strip()

    def fail(self, job_id: str) -> None:
        (self._folder / f"end-{job_id}").touch()

    def wait(self, claim: Callable[[], bool]) -> None:
        until = time.monotonic() + 40
        while not claim():
            assert time.monotonic() < until, self._cluster.client("squeue", "-a", "-t", "all", check=False)
            time.sleep(0.1)


class TestCommandLine(OnRealSlurm):
    def runner(self, cluster: SlurmCluster) -> Runner:
        return LocalRunner(environment={"SLURM_CONF": cluster.environment["SLURM_CONF"]})


def ssh(cluster: SlurmCluster, known_hosts: Path | None = None, control: Path | None = None) -> SshRunner:
    here = cluster.folder / "ssh"
    return SshRunner(
        host="127.0.0.1", user="root", port=cluster.ssh_port, key_file=str(here / "client"),
        known_hosts=str(known_hosts or here / "known_hosts"), control_path=str(control or here / "%C"),
    )  # fmt: skip


class TestOverSsh(OnRealSlurm):
    def runner(self, cluster: SlurmCluster) -> Runner:
        return ssh(cluster)


def test_a_host_that_is_not_the_pinned_one_is_not_talked_to(cluster: SlurmCluster, tmp_path: Path) -> None:
    empty = tmp_path / "known_hosts"
    empty.touch()
    stranger = ssh(cluster, empty, tmp_path / "none")
    assert SlurmCommandLine(runner=stranger).survey(datetime.now(UTC)).is_blind


def test_the_restricted_key_runs_no_other_command(cluster: SlurmCluster) -> None:
    for argv in (["id"], ["squeue; id"], ["scontrol", "shutdown"], ["scontrol", "reconfigure"]):
        assert ssh(cluster).run(argv, 20).code == 126, argv


def test_a_cluster_whose_slurmctld_is_gone_is_blind(cluster: SlurmCluster, tmp_path: Path) -> None:
    conf = tmp_path / "slurm.conf"
    text = Path(cluster.environment["SLURM_CONF"]).read_text()
    conf.write_text(text.replace(f"SlurmctldPort={cluster.base_port + 17}", "SlurmctldPort=9"))
    slurm = SlurmCommandLine(runner=LocalRunner(environment={"SLURM_CONF": str(conf)}))
    reading = slurm.survey(datetime.now(UTC))
    assert reading.is_blind
    with pytest.raises((SchedulerUnreachable, SchedulerRefused)):
        slurm.release("1")
