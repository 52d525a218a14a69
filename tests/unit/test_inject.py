# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight inject`: the right process, no other one, and orders that a job understands."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from examples.job_faults import Faults
from examples.run_folder import RunFolder, started_at
from service.commands.inject import app


def inject(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def announced(folder: Path, pid: int, **other: Any) -> RunFolder:
    run = RunFolder(folder)
    said = {"pid": pid, "started": started_at(pid), "host": socket.gethostname(), **other}
    run.pid_file(2).parent.mkdir(parents=True)
    run.pid_file(2).write_text(json.dumps(said))
    return run


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_kill_ends_the_process_and_says_when(tmp_path: Path, victim: subprocess.Popen[bytes]) -> None:
    announced(tmp_path, victim.pid)
    done = inject("kill", "--run", tmp_path, "--rank", 2)
    assert done.exit_code == 0, done.output
    assert victim.wait(10) == -9
    said = json.loads(done.stdout)
    assert (said["fault"], said["rank"], said["pid"]) == ("SIGKILL", 2, victim.pid)
    assert said["at_unix_s"] > 1.7e9


def test_stop_and_continue(tmp_path: Path, victim: subprocess.Popen[bytes]) -> None:
    announced(tmp_path, victim.pid)
    assert inject("stop", "--run", tmp_path, "--rank", 2).exit_code == 0
    os.waitid(os.P_PID, victim.pid, os.WSTOPPED | os.WNOWAIT)
    assert state_of(victim.pid) == "T"
    assert inject("continue", "--run", tmp_path, "--rank", 2).exit_code == 0
    os.waitid(os.P_PID, victim.pid, os.WCONTINUED | os.WNOWAIT)
    assert state_of(victim.pid) != "T"


def test_a_plain_pid_file_will_do(tmp_path: Path, victim: subprocess.Popen[bytes]) -> None:
    file = tmp_path / "any.pid"
    file.write_text(f"{victim.pid}\n")
    assert inject("kill", "--pid-file", file).exit_code == 0
    assert victim.wait(10) == -9


def test_a_process_that_took_over_the_pid_is_left_alone(tmp_path: Path, victim: subprocess.Popen[bytes]) -> None:
    announced(tmp_path, victim.pid, started=started_at(victim.pid) - 1)
    done = inject("kill", "--run", tmp_path, "--rank", 2)
    assert done.exit_code == 4
    assert "has ended" in done.stderr
    assert victim.poll() is None


def test_a_rank_of_another_host_is_left_alone(tmp_path: Path, victim: subprocess.Popen[bytes]) -> None:
    announced(tmp_path, victim.pid, host="elsewhere")
    done = inject("kill", "--run", tmp_path, "--rank", 2)
    assert done.exit_code == 2
    assert "'elsewhere'" in done.stderr
    assert victim.poll() is None


def test_a_process_that_is_no_rank_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    for pid in (-1, 0, 1, os.getpid()):
        file.write_text(str(pid))
        assert inject("kill", "--pid-file", file).exit_code == 2


@pytest.mark.parametrize("text", ["", "x", "[]", '{"pid": null}', "{}"])
def test_a_file_without_a_pid_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "pid"
    file.write_text(text)
    done = inject("stop", "--pid-file", file)
    assert done.exit_code == 2
    assert "holds no pid" in done.stderr


@pytest.mark.parametrize("words", [["kill"], ["kill", "--run", "/nowhere"], ["nan", "--run", "/nowhere"], ["clear"]])
def test_a_run_that_is_not_there_is_named(words: list[str]) -> None:
    assert inject(*words).exit_code == 2


def test_orders_are_those_that_the_example_understands(tmp_path: Path) -> None:
    run = announced(tmp_path, os.getpid())
    faults = Faults(run.control(2), 2)
    assert faults.before_collective(1) == 1.0
    assert inject("nan", "--run", tmp_path, "--rank", 2, "--from-step", 5).exit_code == 0
    assert faults.before_collective(4) == 1.0
    assert math.isnan(faults.before_collective(5))
    assert inject("full-disk", "--run", tmp_path, "--rank", 2).exit_code == 0
    assert faults.disk(tmp_path / "part", 5) == Path("/dev/full")
    assert inject("slow", "--run", tmp_path, "--rank", 2, "--delay-s", 0).exit_code == 0
    assert faults.before_collective(6) == 1.0
    assert inject("clear", "--run", tmp_path, "--rank", 2).exit_code == 0
    assert faults.disk(tmp_path / "part", 6) == tmp_path / "part"
    assert inject("clear", "--run", tmp_path, "--rank", 2).exit_code == 2


@pytest.mark.parametrize("keep", [[], ["--keep"]])
def test_an_exception_happens_once_unless_it_is_kept(tmp_path: Path, keep: list[str]) -> None:
    run = announced(tmp_path, os.getpid())
    assert inject("exception", "--run", tmp_path, "--rank", 2, "--text", "bad shard", *keep).exit_code == 0
    with pytest.raises(ValueError, match="bad shard"):
        Faults(run.control(2), 2).before_collective(1)
    assert run.control(2).exists() == bool(keep)


def test_an_order_for_a_rank_that_has_not_begun_is_refused(tmp_path: Path) -> None:
    announced(tmp_path, os.getpid())
    done = inject("nan", "--run", tmp_path, "--rank", 3)
    assert done.exit_code == 2
    assert "rank 3" in done.stderr


def test_an_unknown_order_is_an_error_of_the_job(tmp_path: Path) -> None:
    control = tmp_path / "rank0.json"
    control.write_text('{"fault": "melt"}')
    with pytest.raises(ValueError, match="no fault 'melt'"):
        Faults(control, 0).before_collective(1)


def test_a_large_file_system_is_not_filled(tmp_path: Path) -> None:
    done = inject("full-disk", "--fill", tmp_path, "--max-mib", 1)
    assert done.exit_code == 2
    assert "more than --max-mib 1" in done.stderr
    assert list(tmp_path.iterdir()) == []
