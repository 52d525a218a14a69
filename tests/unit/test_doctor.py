# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight doctor`: what it reads in a log, what it misses, and a template that really loads."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from typer.testing import CliRunner

from detectors.log_text import read_log
from relight.types import Stream
from service.cli import app
from service.diagnosis import Diagnostician
from service.doctor import Findings, examine, template

AT = datetime(2026, 1, 2, tzinfo=UTC)


def examined(shipped: Diagnostician, text: str) -> Findings:
    return examine([read_log("job.out", text.encode(), Stream.APPLICATION)], shipped.progress, AT)


def test_it_names_the_signature_and_the_values_it_read(shipped: Diagnostician) -> None:
    found = examined(shipped, "".join(f"[rank0]: step={n} loss=1.5 grad_norm=0.3\n" for n in range(1, 30)))
    assert found.steps == 29
    assert found.signatures[0].count == 29
    assert found.signatures[0].values["step"] == "29"
    assert found.signatures[0].values["loss"] == "1.5"
    assert any("hang" in what for what in found.able)


def test_it_says_exactly_what_is_missing(shipped: Diagnostician) -> None:
    missing = " ".join(examined(shipped, "completed step: 12, seconds: 3.2, TFLOP/s/device: 1.0\n").missing)
    assert "only 1 step lines" in missing
    assert "no loss" in missing
    assert "checkpoint" in missing
    assert "one writer" in missing


def test_a_log_that_it_cannot_read_gets_a_template_of_its_own_line(tmp_path: Path) -> None:
    log = tmp_path / "job.out"
    log.write_text("hello\n" + "".join(f"finished batch no. {n}; objective 2.5\n" for n in range(9)))
    said = CliRunner().invoke(app, ["doctor", "--log", str(log)])
    assert said.exit_code == 1
    assert "no line tells a step" in said.output
    yaml = said.output[said.output.index("# yaml-language-server") :]
    mine = tmp_path / "my_progress.yaml"
    mine.write_text(yaml)
    tested = CliRunner().invoke(app, ["rules", "test", str(mine)])
    assert tested.exit_code == 0, tested.output


def test_a_template_captures_step_and_loss_and_survives_quotes() -> None:
    text = template("it's step #40 with 'total' loss: 2.31 today")
    assert "(?P<step>" in text
    assert "(?P<loss>" in text
    assert "it''s step" in text


def test_a_missing_file_is_a_usage_error() -> None:
    said = CliRunner().invoke(app, ["doctor", "--log", "/no/such/file"])
    assert said.exit_code == 2


def test_it_says_what_the_job_trains_with_or_that_nothing_tells_it(shipped: Diagnostician) -> None:
    steps = "".join(f"step={n} loss=1.5 grad_norm=0.3\n" for n in range(1, 30))
    assert "states the global batch size" in " ".join(examined(shipped, steps).missing)
    told = examined(shipped, f"  global_batch_size {'.' * 31} 512\n" + steps)
    assert "batch 512" in " ".join(told.able)
    assert "states the global batch size" not in " ".join(told.missing)
