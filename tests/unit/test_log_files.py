# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""Logs from disk: gzip whole and broken, described folders, and what is told from names alone."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from relight.types import Stream
from service.adapters.log_files import LogUnreadable, case_folders, read_files, read_folder


def test_gzip_files_are_read_whatever_they_are_called(tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(gzip.compress(b"a\n") + gzip.compress(b"b\n"))
    (log,) = read_files([str(path)]).logs
    assert log.lines == [b"a", b"b"]


def test_a_truncated_gzip_yields_what_came_before_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    whole = gzip.compress(b"".join(b"line %d of the job\n" % i for i in range(5_000)))
    path.write_bytes(whole[: len(whole) // 2])
    case = read_files([str(path)])
    assert len(case.logs[0].lines) > 100
    assert "ends too early" in case.notes[0]


def test_damaged_gzip_data_says_so(tmp_path: Path) -> None:
    path = tmp_path / "job.log.gz"
    path.write_bytes(gzip.compress(b"x" * 50)[:12] + b"\xff" * 40)
    assert "damaged" in read_files([str(path)]).notes[0]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LogUnreadable, match=r"cannot read .*gone\.log: No such file"):
        read_files([str(tmp_path / "gone.log")])


def test_a_described_folder_takes_streams_and_hosts_from_its_description(tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("x\n")
    (tmp_path / "input.json").write_text(json.dumps({"streams": {"a.log": "kernel"}, "node_of_log": {"a.log": "n7"}}))
    (log,) = read_folder(tmp_path).logs
    assert (log.stream, log.node) == (Stream.KERNEL, "n7")


@pytest.mark.parametrize("name", ["../secret", "/etc/passwd", "sub/../../x"])
def test_a_description_may_not_lead_out_of_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "input.json").write_text(json.dumps({"streams": {name: "kernel"}}))
    with pytest.raises(LogUnreadable, match="leaves the folder"):
        read_folder(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"streams": {"a.log": "printer"}}', '{"streams": 3}'])
def test_a_faulty_description_says_what_is_expected(tmp_path: Path, text: str) -> None:
    (tmp_path / "input.json").write_text(text)
    with pytest.raises(LogUnreadable, match=r"expected .*one of application"):
        read_folder(tmp_path)


def test_an_undescribed_run_is_read_by_the_names_of_its_files(tmp_path: Path) -> None:
    for name in ("srun/rank2-node3.err", "slurmctld.log", "dmesg.txt", "slurm.err", "README.md", "truth.json"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("x\n")
    found = {log.name: (log.stream, log.rank, log.node) for log in read_folder(tmp_path).logs}
    assert found == {
        "srun/rank2-node3.err": (Stream.APPLICATION, 2, "node3"),
        "slurmctld.log": (Stream.SCHEDULER, None, None),
        "dmesg.txt": (Stream.KERNEL, None, None),
        "slurm.err": (Stream.APPLICATION, None, None),
    }


def test_a_launchers_copies_count_only_where_the_output_itself_is_missing(tmp_path: Path) -> None:
    copy = tmp_path / "torchrun" / "attempt_0" / "0" / "stderr.log"
    copy.parent.mkdir(parents=True)
    copy.write_text("boom\n")
    assert [log.name for log in read_folder(tmp_path).logs] == ["torchrun/attempt_0/0/stderr.log"]
    (tmp_path / "slurm.out").write_text("boom\n")
    assert [log.name for log in read_folder(tmp_path).logs] == ["slurm.out"]


def test_a_folder_without_logs_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "notes.md").write_text("x")
    with pytest.raises(LogUnreadable, match=r"add an input\.json"):
        read_folder(tmp_path)


def test_case_folders_are_those_that_describe_themselves_else_those_with_logs(tmp_path: Path) -> None:
    for name in ("b/run1/slurm.err", "b/run1/srun/rank0-n1.out", "a/run2/job.log"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x\n")
    assert [str(p.relative_to(tmp_path)) for p in case_folders(tmp_path)] == ["a/run2", "b/run1"]
    (tmp_path / "a" / "input.json").write_text("{}")
    assert [str(p.relative_to(tmp_path)) for p in case_folders(tmp_path)] == ["a"]
