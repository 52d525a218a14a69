# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""`relight diagnose` as people and programs use it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from service.cli import app

DATASETS = Path(__file__).parents[2] / "datasets" / "failures"


def run(*words: str, text: str | None = None) -> Result:
    return CliRunner().invoke(app, ["diagnose", *words], input=text)


def test_a_failure_is_told_with_its_root_line_and_exit_code_1() -> None:
    said = run(str(DATASETS / "c0078" / "case.log"), "--stream", f"{DATASETS}/c0078/case.log=kernel")
    assert said.exit_code == 1
    assert "gpu_fell_off_bus  (hardware, established)" in said.stdout
    assert "case.log:4" in said.stdout
    assert "restart_excluding, keeping out node06" in said.stdout


def test_json_names_everything_a_program_needs() -> None:
    told = json.loads(run(str(DATASETS / "c0226" / "case.log"), "--json").stdout)
    assert told["failure"] == "nccl_collective_timeout"
    assert told["root_cause"]["line"] == 1
    assert {"class", "action", "ranks", "nodes", "losers", "does_not_prove", "counterfactual"} <= told.keys()


def test_a_healthy_log_has_exit_code_0() -> None:
    assert run(str(DATASETS / "c0294" / "case.log")).exit_code == 0


def test_standard_input_is_a_log_like_any_other() -> None:
    said = run("-", "--json", text="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n")
    assert json.loads(said.stdout)["failure"] == "cuda_oom"


def test_a_node_given_for_a_file_is_kept_out(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("NVRM: Xid (PCI:0000:0f:00): 79, pid=1, name=python, GPU has fallen off the bus.\n")
    told = json.loads(run(str(log), "--stream", f"{log}=kernel", "--node", f"{log}=n7", "--json").stdout)
    assert (told["action"], told["exclude_nodes"]) == ("restart_excluding", ["n7"])


def test_control_characters_of_a_log_never_reach_the_terminal(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_bytes(b"CUDA out of memory. Tried to allocate 2 GiB \x07\x9b2J \xe2\x80\xae evil\n")
    shown = run(str(log)).stdout
    assert "\x07" not in shown
    assert "\u202e" not in shown


def test_a_batch_writes_one_prediction_a_case_in_the_scorers_format(tmp_path: Path) -> None:
    for name in ("c0078", "c0226"):
        (tmp_path / name).mkdir()
        for file in (DATASETS / name).iterdir():
            if file.name != "label.json":
                (tmp_path / name / file.name).write_bytes(file.read_bytes())
    out = tmp_path / "predictions.jsonl"
    assert run("--batch", str(tmp_path), "--out", str(out)).exit_code == 0
    told = [json.loads(line) for line in out.read_text().splitlines()]
    assert [t["id"] for t in told] == ["c0078", "c0226"]
    assert all(t.keys() == {"id", "failure", "class", "action", "root_cause", "ranks", "nodes"} for t in told)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "no log named"),
        (("/no/such.log",), "cannot read /no/such.log"),
        (("--batch", "/no/such"), "is not a folder"),
        (("x.log", "--stream", "x.log"), "wants FILE=VALUE"),
        (("x.log", "--stream", "x.log=printer"), "is no stream; use one of application"),
        (("x.log", "--node", "y.log=n1"), "not among the files"),
    ],
)
def test_bad_usage_is_exit_code_2_with_the_way_out(words: tuple[str, ...], says: str) -> None:
    said = run(*words)
    assert said.exit_code == 2
    assert says in said.stderr


def test_faulty_rules_of_a_site_are_reported_in_place(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("id: site.bad\ntitle: x\n")
    said = run(str(DATASETS / "c0226" / "case.log"), "--rules", str(tmp_path))
    assert said.exit_code == 3
    assert "bad.yaml:1:1 site.bad" in said.stderr


def test_a_sites_own_signature_is_used(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(
        "id: site.cooling\ntitle: The cooling loop stopped\nfailure: gpu_thermal_throttle\nrole: root\n"
        "streams: [application]\nsource: [our plant]\ndoes_not_prove: which pump\n"
        "match: {any: [{text: 'COOLING LOOP DOWN'}]}\n"
        "tests: {fires: [{line: 'x COOLING LOOP DOWN'}], silent: [{line: 'cooling loop up'}]}\n"
    )
    log = tmp_path / "x.log"
    log.write_text("COOLING LOOP DOWN\n")
    told = json.loads(run(str(log), "--rules", str(tmp_path), "--json").stdout)
    assert told["signature"] == "site.cooling"


def test_without_a_promoted_model_a_hint_says_so_and_the_rules_speak_alone(tmp_path: Path) -> None:
    config = tmp_path / "relight.toml"
    config.write_text(f'[audit]\npath = "{tmp_path}/audit.duckdb"\n')
    log = tmp_path / "job.log"
    log.write_text("srun: error: n1: task 3: Exited with exit code 1\n")
    said = run("--hint", "--config", str(config), str(log))
    assert said.exit_code == 1
    assert "no model was promoted" in said.output
    assert said.output.count("guess") == 0
