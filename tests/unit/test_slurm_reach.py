# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""How a cluster is reached: what is refused at the start, in words that say the way out."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from controllers.slurm.command_line import SlurmCommandLine
from controllers.slurm.opt_in import opt_in
from controllers.slurm.rest import SlurmRest
from controllers.slurm.rest_versions import RestVerb
from relight.types import Mode
from service.cli import app
from service.commands.slurm_reach import WATCHDOG_VERBS, Backend, SlurmReach
from service.terminal import ExitCode


@pytest.fixture
def no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Commands that answer nothing, whether or not they are installed: the settings name no cluster."""
    monkeypatch.setenv("SLURM_CONF", os.devnull)
    (tmp_path / "jwt").write_text("abc")
    return tmp_path


def reach(folder: Path, **over: str) -> SlurmReach:
    said = {"rest_version": "v0.0.38", **over}
    return SlurmReach(
        state=folder, backend=Backend.SLURMRESTD, rest_token_file=folder / "jwt", rest_version=said["rest_version"]
    )


def test_slurmrestd_that_lacks_verbs_is_no_backend_without_commands(no_slurm: Path) -> None:
    with pytest.raises(ValueError, match=r"mark, requeue_hold, set_exclusions.* name a login node with --ssh"):
        reach(no_slurm).scheduler(tuple(RestVerb))


def test_it_is_one_for_who_needs_none_of_them(no_slurm: Path) -> None:
    slurm, remark = reach(no_slurm).scheduler(())
    assert isinstance(slurm, SlurmRest)
    assert (slurm.commands, remark) == (None, "")
    with pytest.raises(ValueError, match="no request for mark"):
        reach(no_slurm).scheduler(WATCHDOG_VERBS)


def test_a_version_that_has_every_verb_needs_no_commands(no_slurm: Path) -> None:
    slurm, _ = reach(no_slurm, rest_version="v0.0.45").scheduler(tuple(RestVerb))
    assert isinstance(slurm, SlurmRest)


def test_commands_stay_the_default(tmp_path: Path) -> None:
    slurm, remark = SlurmReach(state=tmp_path).scheduler(tuple(RestVerb))
    assert isinstance(slurm, SlurmCommandLine)
    assert remark == ""


@pytest.mark.parametrize(("said", "why"), [("v0.0.39", "not supported"), ("newest", "must be auto or such as")])
def test_a_version_that_is_none_is_refused(no_slurm: Path, said: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        reach(no_slurm, rest_version=said).scheduler()


@pytest.mark.parametrize(
    ("mode", "partitions", "jobs_choose", "may"),
    [("monitor", [], True, True), ("monitor", [], False, False), ("off", ["gpu=act"], False, True),
     ("monitor", ["gpu=monitor"], False, False), ("approve", [], False, True)],
)  # fmt: skip
def test_whether_any_job_could_be_acted_on_is_known_from_the_options(
    mode: str, partitions: list[str], jobs_choose: bool, may: bool
) -> None:
    assert opt_in(mode, partitions, jobs_choose=jobs_choose).may_act is may


def test_options_become_rules_or_are_refused() -> None:
    assert opt_in("act", ["gpu=off"], jobs_choose=True).partitions == {"gpu": None}
    assert opt_in("act", [], jobs_choose=True).default is Mode.ACT
    for mode, partitions in (("bold", []), ("act", ["gpu"]), ("act", ["gpu=bold"])):
        with pytest.raises(ValueError, match=r"no mode|PARTITION=MODE"):
            opt_in(mode, partitions, jobs_choose=True)


@pytest.mark.parametrize("command", [["doctor", "slurm"], ["controller", "doctor"]])
def test_the_walk_has_two_names_and_says_where_it_ends(no_slurm: Path, command: list[str]) -> None:
    said = CliRunner().invoke(app, [*command, "4711"])
    assert said.exit_code == ExitCode.FINDINGS, said.output
    assert "ends here" in said.output
    assert "scheduler" in said.output


def test_slurmrestd_that_does_not_answer_ends_the_start(no_slurm: Path) -> None:
    said = CliRunner().invoke(
        app, ["doctor", "slurm", "--backend", "slurmrestd", "--rest-url", "http://127.0.0.1:9",
              "--rest-token-file", str(no_slurm / "jwt")],
    )  # fmt: skip
    assert said.exit_code == ExitCode.CANNOT_REACH
    assert "slurmrestd at http://127.0.0.1:9" in said.output


def test_doctor_alone_says_which_two_there_are() -> None:
    said = CliRunner().invoke(app, ["doctor"])
    assert said.exit_code == ExitCode.USAGE
    assert "relight doctor slurm JOB" in said.output
