# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""slurmrestd's answers, recorded from two generations, and what is none."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controllers.slurm.rest_reader import SlurmRestReader, newest_version
from controllers.slurm.scontrol_text import Garbled
from relight.jobs import SchedulerUnreachable
from relight.types import AttemptState

ANSWERS: dict[str, Any] = json.loads(Path(__file__).with_name("slurm_answers.json").read_text("utf-8"))
NOON = datetime(2026, 11, 2, 12, 0, tzinfo=UTC)
JOBS = {"jobs": [ANSWERS["failed"]["json"]], "errors": []}
NEWER = {"jobs": [ANSWERS["slurm-24.11"]["json"]], "errors": [], "warnings": []}


class Recorded:
    def __init__(self, answers: Mapping[str, tuple[int, Any]]) -> None:
        self.answers, self.headers = answers, list[Mapping[str, str]]()

    def __call__(self, path: str, headers: Mapping[str, str]) -> tuple[int, bytes]:
        self.headers.append(headers)
        status, said = self.answers[path.split("/", 3)[3]]
        if status == 0:
            raise SchedulerUnreachable("connection refused")
        return status, said if isinstance(said, bytes) else json.dumps(said).encode()


def reader(tmp_path: Path, answers: Mapping[str, tuple[int, Any]], version: int = 38) -> SlurmRestReader:
    (tmp_path / "token").write_text("SLURM_JWT=abc\n")
    return SlurmRestReader(fetch=Recorded(answers), user="relight", token_file=tmp_path / "token", version=version)


@pytest.mark.parametrize(
    ("version", "jobs", "state"), [(38, JOBS, AttemptState.FAILED), (42, NEWER, AttemptState.RUNNING)]
)
def test_both_generations_are_read(tmp_path: Path, version: int, jobs: Any, state: AttemptState) -> None:
    reading = reader(tmp_path, {"jobs": (200, jobs), "nodes": (200, ANSWERS["nodes-22.05"])}, version).survey(NOON)
    assert not reading.is_blind, reading.why_blind
    assert reading.jobs[0].state is state
    assert reading.nodes


@pytest.mark.parametrize("answer", [(0, None), (500, b"x"), (401, b""), (200, b""), (200, b"{}"),
                                    (200, {"jobs": [], "errors": [{"error": "no"}]})])  # fmt: skip
def test_everything_else_is_blind(tmp_path: Path, answer: tuple[int, Any]) -> None:
    slurm = reader(tmp_path, {"jobs": answer, "nodes": (200, ANSWERS["nodes-22.05"]), "job/7": answer})
    assert slurm.survey(NOON).is_blind
    assert slurm.show("7", NOON).is_blind


def test_a_missing_job_is_absent_in_the_words_of_both_generations(tmp_path: Path) -> None:
    for answer in ((404, {}), (500, {"errors": [{"error_number": 2017}]})):
        assert reader(tmp_path, {"job/7": answer}).show("7", NOON).is_absent


def test_the_token_is_read_again_at_every_call(tmp_path: Path) -> None:
    slurm = reader(tmp_path, {"job/16": (200, JOBS)})
    assert slurm.show("16", NOON).job is not None
    (tmp_path / "token").write_text("def")
    slurm.show("16", NOON)
    assert isinstance(slurm.fetch, Recorded)
    assert [one["X-SLURM-USER-TOKEN"] for one in slurm.fetch.headers] == ["abc", "def"]


def test_the_newest_common_version_is_chosen_and_others_are_refused_politely(tmp_path: Path) -> None:
    assert (
        newest_version({"paths": {"/slurm/v0.0.41/jobs": {}, "/slurm/v0.0.44/jobs": {}, "/slurm/v0.0.99/jobs": {}}})
        == 44
    )
    with pytest.raises(Garbled, match="supported"):
        newest_version({"paths": {"/slurm/v0.0.99/jobs": {}}})
    with pytest.raises(ValueError, match="not supported"):
        reader(tmp_path, {}, 39)
