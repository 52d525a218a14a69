# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""slurmrestd and slurmdbd as Debian ships them: a cluster of its own, with tokens, a socket, and accounting."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from controllers.slurm.command_line import SlurmCommandLine
from controllers.slurm.rest import SlurmRest, spoken_version
from controllers.slurm.rest_versions import RestVersion
from controllers.slurm.rest_wire import HttpRestWire
from controllers.slurm.runners import LocalRunner
from relight.jobs import BatchScheduler, JobRecord, SchedulerRefused
from relight.testing.scheduler import BatchSchedulerContract
from relight.types import AttemptState, NodeName
from service.adapters.clock import SystemClock
from tests.slurm.accounting import AccountedCluster
from tests.slurm.cluster import CannotRun

pytestmark = pytest.mark.slurm

RELIGHT = "from service.cli import main; main()"


@pytest.fixture(scope="module")
def accounted() -> Iterator[AccountedCluster]:
    folder = Path(tempfile.mkdtemp(prefix="rla-"))
    try:
        made = AccountedCluster.installed(folder, base_port=30_000 + (os.getpid() % 40) * 50)
    except CannotRun as why:
        shutil.rmtree(folder, ignore_errors=True)
        pytest.skip(f"NO SLURMRESTD HERE: {why}")
    try:
        made.start()
        yield made
    finally:
        made.stop()


def commands(accounted: AccountedCluster, marks_in: str = "AdminComment") -> SlurmCommandLine:
    runner = LocalRunner(environment={"SLURM_CONF": accounted.slurm.environment["SLURM_CONF"]})
    return SlurmCommandLine(runner=runner, marks_in=marks_in)


class OnSlurmrestd(BatchSchedulerContract):
    @pytest.fixture(autouse=True)
    def reach(self, accounted: AccountedCluster, tmp_path: Path) -> Iterator[None]:
        self._cluster, self._folder, self._jobs = accounted.slurm, tmp_path, list[str]()
        self._wire = self.wire(accounted)
        self._slurm = SlurmRest(
            wire=self._wire, version=spoken_version(self._wire), clock=SystemClock(),
            commands=commands(accounted, self.marks_in()), marks_in=self.marks_in(),
        )  # fmt: skip
        yield
        self._wire.close()
        for job_id in self._jobs:
            self._cluster.client("scancel", job_id, check=False)

    def wire(self, accounted: AccountedCluster) -> HttpRestWire:
        raise NotImplementedError

    def marks_in(self) -> str:
        raise NotImplementedError

    def scheduler(self) -> BatchScheduler:
        return self._slurm

    def now(self) -> datetime:
        return datetime.now(UTC)

    def submit(self, *, nodes: int = 1, requeueable: bool = True, exclude: tuple[str, ...] = ()) -> str:
        end = f"{self._folder}/end-$SLURM_JOB_ID"
        said = self._cluster.client(
            "sbatch", "--parsable", f"-N{nodes}", "-o", "/dev/null", "--requeue" if requeueable else "--no-requeue",
            *([f"--exclude={','.join(exclude)}"] if exclude else []),
            "--wrap", f"while [ ! -e {end} ]; do sleep 0.1; done; rm {end}; exit 3",
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

    def test_nothing_of_a_job_changes_but_what_was_asked_for(self) -> None:
        """slurmrestd 22.05 fills in what an update leaves out: what a recovery relies on must stay as it was."""
        job_id = self._running(nodes=2, requeueable=False)
        before = self._record(job_id)
        self._slurm.mark(job_id, "relight:x")
        self._slurm.mark(job_id, "")
        after = self._record(job_id)
        assert before == after

    def _record(self, job_id: str) -> JobRecord:
        found = commands_of(self._slurm).show(job_id, self.now()).job
        assert found is not None
        return found


def commands_of(rest: SlurmRest) -> BatchScheduler:
    assert rest.commands is not None
    return rest.commands


class TestByToken(OnSlurmrestd):
    def wire(self, accounted: AccountedCluster) -> HttpRestWire:
        return HttpRestWire(accounted.url, "root", accounted.token_file)

    def marks_in(self) -> str:
        return "AdminComment"


class TestBySocket(OnSlurmrestd):
    """No token: slurmrestd knows its caller by the socket; and marks that it can make itself."""

    def wire(self, accounted: AccountedCluster) -> HttpRestWire:
        return HttpRestWire(f"unix:{accounted.socket}", "root", None)

    def marks_in(self) -> str:
        return "Comment"


@contextmanager
def rest(accounted: AccountedCluster, token_file: Path | None = None, version: int = 38) -> Iterator[SlurmRest]:
    wire = HttpRestWire(accounted.url, "root", token_file or accounted.token_file)
    yield SlurmRest(wire=wire, version=RestVersion(version), clock=SystemClock())
    wire.close()


def test_debians_slurmrestd_speaks_what_we_speak(accounted: AccountedCluster) -> None:
    wire = HttpRestWire(accounted.url, "root", accounted.token_file)
    assert spoken_version(wire) == RestVersion(38)
    wire.close()


def test_it_refuses_what_its_version_lacks_as_we_say_it_does(accounted: AccountedCluster) -> None:
    """So that the table of what a version can do is no hearsay."""
    job_id = accounted.slurm.client("sbatch", "--parsable", "-H", "--wrap", "true").strip()
    with rest(accounted) as slurm:
        for body in ({"excluded_nodes": ["node1"]}, {"admin_comment": "x"}):
            with pytest.raises(SchedulerRefused, match="key"):
                slurm._update(job_id, body)
        with pytest.raises(SchedulerRefused, match="no request for requeue_hold"):
            slurm.requeue_hold(job_id)
    accounted.slurm.client("scancel", job_id, check=False)


def test_a_wrong_token_is_blind_and_a_renewed_one_sees_again(accounted: AccountedCluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("SLURM_JWT=eyJhbGciOiJIUzI1NiJ9.e30.wrong")
    with rest(accounted, token) as slurm:
        assert slurm.survey(datetime.now(UTC)).is_blind
        token.write_text(accounted.token_file.read_text())
        assert not slurm.survey(datetime.now(UTC)).is_blind


def test_a_version_that_is_not_served_is_blind_and_no_absence(accounted: AccountedCluster) -> None:
    with rest(accounted, version=45) as newer:
        reading = newer.show("1", datetime.now(UTC))
    assert reading.is_blind
    assert not reading.is_absent


def test_the_controller_and_the_doctor_start_on_it(accounted: AccountedCluster, tmp_path: Path) -> None:
    """One round and one walk as processes, as sites start them; what slurmrestd lacks is said at the start."""
    (tmp_path / "controller.token").write_text("rlt_none")
    environment = {**os.environ, "SLURM_CONF": accounted.slurm.environment["SLURM_CONF"]}
    reach = ["--backend", "slurmrestd", "--rest-url", accounted.url, "--rest-user", "root",
             "--rest-token-file", str(accounted.token_file)]  # fmt: skip

    def relight(*argv: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", RELIGHT, *argv, *reach], env={**environment, **changes}, cwd=tmp_path, text=True,
            capture_output=True, timeout=60, check=False,
        )  # fmt: skip

    once = ["--once", "--state", str(tmp_path / "state"), "--slips", str(tmp_path / "slips"),
            "--url", "http://127.0.0.1:9"]  # fmt: skip
    seen = relight("controller", "slurm", *once)
    assert "mark, requeue_hold, set_exclusions: these go by scontrol" in seen.stderr
    assert "jobs" in seen.stdout
    walked = relight("doctor", "slurm")
    assert walked.returncode == 0, walked.stderr
    assert "accounting" not in walked.stdout, "there is one"
    alone = relight("controller", "slurm", *once, SLURM_CONF=os.devnull)
    assert alone.returncode == 2
    assert "name a login node with --ssh" in alone.stderr


# ------------------------------------------------------------------ accounting


def test_accounting_remembers_every_run_of_a_requeued_job(accounted: AccountedCluster, tmp_path: Path) -> None:
    """sacct with slurmdbd: each run in order, its exit code, its nodes, and the first submit time.

    The requeue rewrites the word for how the run before had ended: FAILED becomes REQUEUED, which tells no cause.
    """
    slurm, cluster = commands(accounted), accounted.slurm
    end = tmp_path / "end"
    job_id = cluster.client("sbatch", "--parsable", "-N2", "-o", "/dev/null", "--wrap",
                            f"while [ ! -e {end} ]; do sleep 0.1; done; rm {end}; exit 5").strip()  # fmt: skip
    _until(lambda: _state(slurm, job_id) is AttemptState.RUNNING)
    first = slurm.show(job_id, datetime.now(UTC)).job
    assert first is not None
    end.touch()
    _until(lambda: _state(slurm, job_id) is AttemptState.FAILED)
    slurm.requeue_hold(job_id)
    _until(lambda: _state(slurm, job_id) is AttemptState.PENDING)
    slurm.set_exclusions(job_id, (NodeName("node1"),))
    slurm.release(job_id)
    slurm.start_after(job_id, 3)
    _until(lambda: _state(slurm, job_id) is AttemptState.RUNNING)
    slurm.cancel(job_id)
    _until(lambda: len(slurm.history(job_id, datetime.now(UTC)) or ()) == 2 and _closed(slurm, job_id))
    one, two = slurm.history(job_id, datetime.now(UTC)) or ()
    assert (one.restart_index, one.native_state, one.state, one.exit_code) == (0, "REQUEUED", None, 5)
    assert one.submit_at == first.submit_at
    assert one.nodes == first.nodes
    assert (two.restart_index, two.state) == (1, AttemptState.CANCELLED_BY_USER)
    assert two.cancelled_by == "0"
    assert "node1" not in two.nodes


def test_what_slurm_says_of_its_clocks_and_accounting_is_read(accounted: AccountedCluster) -> None:
    clocks = commands(accounted).clocks()
    assert (clocks.has_accounting, clocks.min_job_age_s, clocks.version[:5]) == (True, 300, "22.05")


# ------------------------------------------------------------------ ranks


@pytest.mark.parametrize(
    ("submit", "run", "is_told"),
    [
        (("-N4",), "", True),
        (("-N2", "--ntasks-per-node=2"), "", True),
        (("-N2", "--ntasks-per-node=2"), "-m cyclic", True),
        (("-N2", "--exclusive"), "-n4", True),
        (("-N2", "-n4"), "", False),  # laid out three and one
        (("-N2", "--ntasks-per-node=2"), "-m plane=2", False),
        (("-N3", "--ntasks-per-node=2"), "-N2 -n2", False),
    ],
)
def test_where_ranks_run_is_told_as_it_is_or_not_at_all(
    accounted: AccountedCluster, tmp_path: Path, submit: tuple[str, ...], run: str, is_told: bool
) -> None:
    """Each task writes where it runs, and what the controller would publish is held against that."""
    slurm, out, program = commands(accounted), tmp_path / "out", tmp_path / "train.py"
    program.write_text(
        "#!/usr/bin/python3\nimport os, time\n"
        "print(os.environ['SLURM_PROCID'], os.environ['SLURMD_NODENAME'], flush=True)\n"
        "time.sleep(60)\n"
    )
    program.chmod(0o755)
    tmp_path.chmod(0o755)
    job_id = accounted.slurm.client(
        "sbatch", "--parsable", *submit, "-o", str(out), "--wrap", f"srun {run} {program}"
    ).strip()
    try:
        _until(lambda: _state(slurm, job_id) is AttemptState.RUNNING)
        job = slurm.show(job_id, datetime.now(UTC)).job
        assert job is not None
        _until(lambda: job_id in slurm.rank_nodes([job]) or (out.exists() and not is_told and bool(out.read_text())))
        told = slurm.rank_nodes([job]).get(job_id, ())
        if not is_told:
            assert told == ()
            return
        _until(lambda: len(out.read_text().splitlines()) == len(told))
        really = dict(line.split() for line in out.read_text().splitlines())
        assert {str(rank): node for rank, node in enumerate(told)} == really
    finally:
        accounted.slurm.client("scancel", job_id, check=False)
        _until(lambda: set(accounted.slurm.states().values()) == {"idle"})


def _state(slurm: BatchScheduler, job_id: str) -> AttemptState | None:
    job = slurm.show(job_id, datetime.now(UTC)).job
    return job.state if job is not None else None


def _closed(slurm: BatchScheduler, job_id: str) -> bool:
    return all(run.end_at is not None for run in slurm.history(job_id, datetime.now(UTC)) or ())


def _until(claim: Callable[[], bool], limit_s: float = 40) -> None:
    until = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < until, "it never came true"
        time.sleep(0.2)
